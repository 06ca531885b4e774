"""How the unknowns of a tool were settled, each counted once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.operation import OperationState
from outlast.store.reconciling import UnknownCount
from outlast.testing.store_suite.effects import switch
from outlast.testing.store_suite.reconciling import late, unknown
from outlast.testing.store_suite.scene import HOUR, Reopen, Scene

__all__ = ["TestSettledCounts"]


class TestSettledCounts:
    """How often a tool's unknowns were settled, and as what."""

    async def counts(self, scene: Scene, tenant: str | None = None) -> list[tuple[str, int, int, int, int]]:
        """Read a tenant's counts: unknown, happened, did not happen, sent again."""
        rows = await scene.store.read_settled_counts(tenant or scene.tenant)
        return [(r.tool, r.unknown, r.happened, r.did_not_happen, r.sent_again) for r in rows]

    @pytest.mark.parametrize("by", ["settler", "person:ann"])
    async def test_each_verdict_counts_for_its_tool_and_tenant(self, scene: Scene, by: str) -> None:
        assert await self.counts(scene) == []
        verdicts = {"look": ("happened",) * 3, "post": ("did_not_happen", "send_again", "send_again")}
        settlements = []
        for tool, wanted in verdicts.items():
            for verdict in wanted:
                claimed = await scene.running()
                key = await scene.called(claimed, "unknown", name=tool)
                settlements.append(scene.settlement(claimed, key, verdict, forced=True, by=by))
        foreign = await scene.running(tenant="tenant-blue")
        key = await scene.called(foreign, "unknown", name="look")
        settlements.insert(2, scene.settlement(foreign, key, "did_not_happen", forced=True, by=by))
        await scene.store.settle(settlements[:4], now=scene.now)
        await scene.store.settle(settlements[4:], now=scene.now)
        # Those to be sent again are unknown, and count as sent again with the intent of their resend.
        assert await self.counts(scene) == [("look", 0, 3, 0, 0), ("post", 2, 0, 1, 0)]
        assert await self.counts(scene, "tenant-blue") == [("look", 0, 0, 1, 0)]
        assert await self.counts(scene, "tenant-none") == []

    async def test_what_is_open_counts_while_it_is(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        other = await scene.running()
        await scene.called(other, "unknown", name="post")
        await scene.called(other, "unknown", name="post")
        await scene.called(other, "unknown", name="gpt", kind="model")
        await scene.called(other, "running", name="post")
        await unknown(scene, tenant="tenant-blue")
        assert await self.counts(scene) == [("look", 1, 0, 0, 0), ("post", 2, 0, 0, 0)]
        everybodys = [UnknownCount(tool="look", unknown=2), UnknownCount(tool="post", unknown=2)]
        assert await scene.store.count_unknown() == everybodys
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert await self.counts(scene) == [("look", 0, 1, 0, 0), ("post", 2, 0, 0, 0)]

    async def test_what_is_refused_does_not_count(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        done = await scene.called(claimed, "succeeded", name="look")
        refused = [
            scene.settlement(claimed, key, "did_not_happen"),
            scene.settlement(claimed, key, turn=77),
            scene.settlement(claimed, done),
            scene.settlement(claimed, "missing"),
        ]
        verdicts = await scene.store.settle(refused, now=scene.now)
        assert [one.kind for one in verdicts] == ["too_early", "conflict", "conflict", "not_found"]
        assert await self.counts(scene) == [("look", 1, 0, 0, 0)]
        assert (await scene.store.dump())["settled_counts"] == []

    @pytest.mark.parametrize(
        ("state", "expected"),
        [("succeeded", (0, 1, 0, 0)), ("failed", (0, 0, 1, 0))],
    )
    async def test_a_workers_own_settlement_counts_once(
        self, scene: Scene, state: Any, expected: tuple[int, ...]
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        outcome = await scene.outcome(claimed, key, state, settled_by="worker")
        batch = scene.batch(scene.writes(claimed, outcome))
        for _ in range(2):
            # The answer of the first may have been lost.
            await scene.store.flush(batch, now=scene.now)
        # Its turn has passed.
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert await self.counts(scene) == [("look", *expected)]

    async def test_what_nobody_settled_does_not_count(self, scene: Scene) -> None:
        claimed = await scene.running()
        states: tuple[OperationState, ...] = ("succeeded", "failed")
        for state in states:
            await scene.called(claimed, state, name="look")
            key = await scene.called(claimed, "unknown", name="look")
            await scene.write(claimed, await scene.outcome(claimed, key, state))
        model = await scene.called(claimed, "unknown", name="look", kind="model")
        await scene.write(claimed, await scene.outcome(claimed, model, "succeeded", settled_by="worker"))
        assert await self.counts(scene) == []

    @pytest.mark.parametrize("paused", [False, True])
    async def test_a_resend_counts_when_its_intent_is_admitted(self, scene: Scene, paused: bool) -> None:
        claimed = await scene.running()
        intent = scene.intent(name="look")
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        # Another one of the same batch, settled otherwise, counts whatever becomes of this one.
        found = await scene.called(claimed, "unknown", name="look")
        if paused:
            await scene.store.pause(switch(scene.tenant), now=scene.now)
        verdict = await scene.flush(
            claimed,
            replace(intent, attempt=1, turn=2, resend=True),
            await scene.outcome(claimed, found, "succeeded", settled_by="worker"),
        )
        assert verdict.refusals == (((0, "paused"),) if paused else ())
        assert await self.counts(scene) == [("look", int(paused), 1, 0, int(not paused))]

    async def test_a_contradicted_settlement_counts_and_so_does_the_next(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        first = scene.settlement(claimed, key, "did_not_happen", forced=True)
        await scene.store.settle([first], now=scene.now)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        assert await self.counts(scene) == [("look", 1, 0, 1, 0)]
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert await self.counts(scene) == [("look", 0, 1, 1, 0)]

    async def test_two_processes_lose_no_count(self, scene: Scene, reopen: Reopen) -> None:
        """They settle the same tools, in opposite orders, and write each other's rows."""
        tools = [f"tool-{n}" for n in range(6)]
        stores = [scene.store, await reopen()]
        claims = [await scene.running(ttl_us=HOUR) for _ in stores]
        work = []
        for _ in range(5):
            for store, claimed, order in zip(stores, claims, (tools, tools[::-1]), strict=True):
                keys = [await scene.called(claimed, "unknown", name=tool) for tool in order]
                work.append((store, [scene.settlement(claimed, key) for key in keys]))
        answers = await asyncio.gather(*(store.settle(batch, now=scene.now) for store, batch in work))
        assert {settled.kind for batch in answers for settled in batch} == {"settled"}
        assert await self.counts(scene) == [(tool, 0, 10, 0, 0) for tool in tools]
