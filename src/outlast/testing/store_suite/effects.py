"""The gate of an intent: switches and shared waits, the order of refusals, and the audit trail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.store.entries import BusinessKey, CommitIntent
from outlast.store.reconciling import EVERY_TENANT, AuditRow, KeyHolder, Pause
from outlast.store.records import Claimed
from outlast.testing.store_suite.guards import refuses, where
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor, Scene, changed

__all__ = [
    "TestAudit",
    "TestPauses",
    "TestProviderWaits",
    "TestRefusalOrder",
]

PROVIDER = "mail.example"


def lock(value: str = "invoice-1", tool: str = "refund") -> BusinessKey:
    """Make a business key that one operation at a time holds."""
    return BusinessKey(tool=tool, value=value, mode="lock")


def once(value: str = "invoice-1", window_us: int = HOUR, tool: str = "refund") -> BusinessKey:
    """Make a business key that stands for a while after a success."""
    return BusinessKey(tool=tool, value=value, mode="once", window_us=window_us)


def switch(tenant: str, scope: str = "all", **changes: Any) -> Pause:
    """Make a switch."""
    return replace(
        Pause(tenant=tenant, scope=scope, reason="too many complaints", by="person:ann"), **changes
    )


async def refusal(scene: Scene, claimed: Claimed, intent: CommitIntent) -> str | None:
    """Write one intent; answer the name of its refusal, None when it was admitted."""
    before = await scene.store.dump()
    verdict = await scene.flush(claimed, replace(intent, events=(scene.event("mine"),)))
    assert verdict.kind == "accepted"
    if not verdict.refusals:
        assert (await scene.operation(claimed, intent.key)).state == "running"
        return None
    [(index, name)] = verdict.refusals
    assert index == 0
    left = changed(before, await scene.store.dump())
    # By this whoever takes the switch back finds the task.
    held: Any = left.pop("held_tasks", None) if name == "paused" else None
    assert left == {}
    if held is not None:
        assert held["gone"] == []
        assert [(row["tenant"], row["task"]) for row in held["come"]] == [(claimed.tenant, claimed.task)]
    return name


async def holder(scene: Scene, business: BusinessKey, tenant: str | None = None) -> KeyHolder | None:
    """Read who holds a business key."""
    return await scene.store.read_business_key(tenant or scene.tenant, business.tool, business.value)


async def key_rows(scene: Scene) -> list[dict[str, Any]]:
    """Read every business key."""
    return (await scene.store.dump())["business_keys"]


def held_by(claimed: Claimed, key: str) -> KeyHolder:
    """Make what is read of a key that this operation holds."""
    return KeyHolder(task=claimed.task, key=key, state="held", until=None)


async def again(scene: Scene, claimed: Claimed, intent: CommitIntent) -> CommitIntent:
    """Make the next intent of the same operation, as it stands."""
    row = await scene.operation(claimed, intent.key)
    return replace(intent, attempt=row.attempt, turn=row.turn)


class TestPauses:
    """Switches that stop new intents."""

    @pytest.mark.parametrize("scope", ["all", "tool:refund"])
    @pytest.mark.parametrize("everybody", [False, True])
    async def test_a_switch_stops_new_intents(self, scene: Scene, scope: str, everybody: bool) -> None:
        claimed = await scene.running()
        tenant = EVERY_TENANT if everybody else claimed.tenant
        await scene.store.pause(switch(tenant, scope), now=scene.now)
        intent = scene.intent(name="refund")
        assert await refusal(scene, claimed, intent) == "paused"
        assert await scene.store.resume(switch(tenant, scope), now=scene.now) is True
        assert await refusal(scene, claimed, intent) is None

    @pytest.mark.parametrize(
        ("tenant", "scope"),
        [
            ("tenant-other", "all"),
            ("tenant-other", "tool:refund"),
            ("tenant-green", "tool:other"),
            ("tenant-green", "tool:refun"),
            ("tenant-green", "refund"),
            (EVERY_TENANT, "tool:other"),
        ],
    )
    async def test_others_go_on(self, scene: Scene, tenant: str, scope: str) -> None:
        claimed = await scene.running()
        await scene.store.pause(switch(tenant, scope), now=scene.now)
        assert await refusal(scene, claimed, scene.intent(name="refund")) is None

    async def test_within_one_batch_each_intent_is_judged_by_itself(self, scene: Scene) -> None:
        green, blue = await scene.running(), await scene.running(tenant="tenant-blue")
        await scene.store.pause(switch(green.tenant, "tool:refund"), now=scene.now)
        batch = scene.batch(
            scene.writes(green, scene.intent(name="refund"), scene.intent(name="other")),
            scene.writes(blue, scene.intent(name="refund")),
        )
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [verdict.refusals for verdict in verdicts] == [((0, "paused"),), ()]

    async def test_what_is_under_way_is_recorded_all_the_same(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        await scene.store.pause(switch(EVERY_TENANT), now=scene.now)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "succeeded"))
        await scene.write(claimed, scene.step(), scene.success())

    async def test_switches_are_listed_with_those_for_everybody(self, scene: Scene) -> None:
        pauses = [
            switch("tenant-green", "all", reason="one"),
            switch("tenant-green", "tool:x", by="person:bob"),
            switch(EVERY_TENANT, "tool:x", reason="three"),
            switch("tenant-blue", "all"),
        ]
        for pause in pauses:
            await scene.store.pause(pause, now=scene.now)
        shown = await scene.store.list_pauses("tenant-green")
        expected = [replace(pause, at=scene.now) for pause in pauses[:3]]
        assert sorted(shown, key=lambda p: (p.tenant, p.scope)) == sorted(
            expected, key=lambda p: (p.tenant, p.scope)
        )
        assert await scene.store.list_pauses("tenant-red") == [expected[2]]
        assert await scene.store.list_pauses(EVERY_TENANT) == [expected[2]]

    async def test_a_repeated_pause_changes_nothing(self, scene: Scene) -> None:
        pause = switch("tenant-green")
        await scene.store.pause(pause, now=scene.now)
        before = await scene.store.dump()
        scene.pass_time(SECOND)
        await scene.store.pause(pause, now=scene.now)
        assert changed(before, await scene.store.dump()) == {}

    async def test_another_persons_reason_takes_the_place_of_the_first(self, scene: Scene) -> None:
        await scene.store.pause(switch("tenant-green"), now=scene.now)
        scene.pass_time(SECOND)
        second = switch("tenant-green", by="person:bob", reason="still")
        await scene.store.pause(second, now=scene.now)
        assert await scene.store.list_pauses("tenant-green") == [replace(second, at=scene.now)]
        assert len(await scene.store.read_audit("tenant-green")) == 2

    async def test_resuming_what_does_not_stand_changes_nothing(self, scene: Scene) -> None:
        await scene.store.pause(switch("tenant-green", "tool:x"), now=scene.now)
        before = await scene.store.dump()
        for other in (
            switch("tenant-green"),
            switch("tenant-blue", "tool:x"),
            switch(EVERY_TENANT, "tool:x"),
        ):
            assert await scene.store.resume(other, now=scene.now) is False
        assert changed(before, await scene.store.dump()) == {}


class TestProviderWaits:
    """What a provider asked everybody to wait."""

    async def waits(self, scene: Scene, us: int, tenant: str = "tenant-green") -> None:
        """Have an outcome that says that the provider asked for a wait."""
        claimed = await scene.running(tenant=tenant)
        key = await scene.called(claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "planned", wait=(PROVIDER, us)))

    async def test_holds_every_intent_of_that_provider(self, scene: Scene) -> None:
        await self.waits(scene, 7 * SECOND)
        claimed = await scene.running()
        intent = scene.intent(provider=PROVIDER)
        scene.pass_time(2 * SECOND)
        assert await refusal(scene, claimed, intent) == f"held {5 * SECOND}"
        scene.pass_time(5 * SECOND - 1)
        assert await refusal(scene, claimed, intent) == "held 1"
        scene.pass_time(1)
        assert await refusal(scene, claimed, intent) is None

    async def test_holds_nobody_else(self, scene: Scene) -> None:
        await self.waits(scene, 7 * SECOND)
        claimed, other = await scene.running(), await scene.running(tenant="tenant-blue")
        assert await refusal(scene, claimed, scene.intent()) is None
        assert await refusal(scene, claimed, scene.intent(provider="other.example")) is None
        assert await refusal(scene, other, scene.intent(provider=PROVIDER)) is None

    async def test_the_longer_wait_is_kept(self, scene: Scene) -> None:
        claimed = await scene.running()
        await self.waits(scene, 7 * SECOND)
        await self.waits(scene, 3 * SECOND)
        intent = scene.intent(provider=PROVIDER)
        assert await refusal(scene, claimed, intent) == f"held {7 * SECOND}"
        await self.waits(scene, 9 * SECOND)
        assert await refusal(scene, claimed, intent) == f"held {9 * SECOND}"

    @pytest.mark.parametrize("state", ["succeeded", "failed", "unknown", "planned"])
    async def test_any_outcome_may_bring_one(self, scene: Scene, state: Any) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, state, wait=(PROVIDER, SECOND)))
        assert (await scene.store.dump())["provider_waits"] == [
            {"tenant": claimed.tenant, "provider": PROVIDER, "until_at": scene.now + SECOND}
        ]

    async def test_a_refused_outcome_brings_none(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        stale = await scene.outcome(claimed, key, "failed", turn=9, wait=(PROVIDER, SECOND))
        assert (await scene.flush(claimed, stale)).refusals == ((0, "turn_passed"),)
        assert (await scene.store.dump())["provider_waits"] == []

    async def test_of_several_in_one_batch_the_longest_is_kept(self, scene: Scene) -> None:
        writes = []
        for us in (SECOND, 4 * SECOND, 2 * SECOND):
            claimed = await scene.running()
            key = await scene.called(claimed)
            outcome = await scene.outcome(claimed, key, "planned", wait=(PROVIDER, us))
            writes.append(scene.writes(claimed, outcome))
        await scene.store.flush(scene.batch(*writes), now=scene.now)
        [row] = (await scene.store.dump())["provider_waits"]
        assert row["until_at"] == scene.now + 4 * SECOND

    async def test_holds_an_intent_that_follows_in_the_same_batch(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent(provider=PROVIDER)
        await scene.write(claimed, intent)
        outcome = await scene.outcome(claimed, intent.key, "planned", wait=(PROVIDER, 3 * SECOND))
        next_one = replace(intent, attempt=outcome.attempt, turn=outcome.turn + 1)
        verdict = await scene.flush(claimed, outcome, next_one)
        assert verdict.refusals == ((1, f"held {3 * SECOND}"),)

    async def test_a_sweep_removes_those_that_are_over(self, scene: Scene) -> None:
        await self.waits(scene, 3 * SECOND)
        await self.waits(scene, 9 * SECOND, tenant="tenant-blue")
        await scene.sweep()
        assert len((await scene.store.dump())["provider_waits"]) == 2
        scene.pass_time(3 * SECOND)
        await scene.sweep()
        assert [row["tenant"] for row in (await scene.store.dump())["provider_waits"]] == ["tenant-blue"]


class TestRefusalOrder:
    """The first refusal that applies is the one that is told."""

    async def test_each_comes_before_the_next(self, scene: Scene) -> None:
        other = await scene.running(ttl_us=9 * HOUR)
        held = await scene.called(other, business=lock("held"))
        await scene.called(other, "succeeded", business=once("done", window_us=9 * HOUR))
        waiting = await scene.called(other)
        outcome = await scene.outcome(other, waiting, "planned", wait=(PROVIDER, 2 * HOUR))
        await scene.write(other, outcome)
        await scene.store.pause(switch(other.tenant, "tool:refund"), now=scene.now)

        claimed = await scene.running(ttl_us=9 * HOUR, deadline_us=HOUR)
        wrong: dict[str, Any] = {"attempt": 2, "turn": 2}
        common: dict[str, Any] = {"name": "refund", "provider": PROVIDER}
        busy = scene.intent(business=lock("held"), **common)
        done = scene.intent(business=lock("done"), **common)
        deadline = claimed.deadline_at or 0
        assert await refusal(scene, claimed, replace(busy, **wrong)) == "not_planned"
        assert await refusal(scene, claimed, busy) == "paused"
        await scene.store.resume(switch(other.tenant, "tool:refund"), now=scene.now)
        assert await refusal(scene, claimed, busy) == f"held {2 * HOUR}"
        assert await refusal(scene, claimed, done) == f"held {2 * HOUR}"
        assert await refusal(scene, claimed, replace(busy, provider=None)) == "key_held"
        assert await refusal(scene, claimed, replace(done, provider=None)) == "key_done"
        await scene.store.pause(switch(other.tenant, "tool:refund"), now=scene.now)
        scene.now = deadline
        assert await refusal(scene, claimed, replace(busy, **wrong)) == "deadline"
        assert (await scene.operation(other, held)).state == "running"


class TestAudit:
    """Who did what to what, and why."""

    async def test_switches_are_kept(self, scene: Scene) -> None:
        await scene.store.pause(
            switch("tenant-green", "tool:x", by="person:ann", reason="one"), now=scene.now
        )
        begun = scene.now
        scene.pass_time(SECOND)
        await scene.store.resume(
            switch("tenant-green", "tool:x", by="person:bob", reason="two"), now=scene.now
        )
        await scene.store.pause(switch(EVERY_TENANT), now=scene.now)
        rows = await scene.store.read_audit("tenant-green")
        assert [(row.at, row.who, row.what, row.subject, row.reason) for row in rows] == [
            (begun, "person:ann", "pause:tool:x", "tool:x", "one"),
            (scene.now, "person:bob", "resume:tool:x", "tool:x", "two"),
        ]
        [everybody] = await scene.store.read_audit(EVERY_TENANT)
        assert (everybody.what, everybody.subject) == ("pause:all", "all")

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    async def test_settlements_by_a_person_are_kept(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        settlement = scene.settlement(claimed, key, verdict, forced=True)
        await scene.store.settle([settlement], now=scene.now)
        [row] = await scene.store.read_audit(claimed.tenant)
        assert row == AuditRow(
            number=row.number,
            at=scene.now,
            who=settlement.by,
            what=f"settle:{verdict}",
            subject=f"{claimed.task}:{key}",
            reason=settlement.reason,
            data=settlement.evidence,
        )

    async def test_others_and_refused_ones_are_not(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        early = scene.settlement(claimed, key, "did_not_happen")
        lost = scene.settlement(claimed, "missing")
        passed = scene.settlement(claimed, key, turn=1)
        verdicts = await scene.store.settle([early, lost, passed], now=scene.now)
        assert [verdict.kind for verdict in verdicts] == ["too_early", "not_found", "conflict"]
        await scene.store.settle([scene.settlement(claimed, key, by="settler")], now=scene.now)
        assert await scene.store.read_audit(claimed.tenant) == []

    async def test_is_read_in_pages_and_by_tenant(self, scene: Scene) -> None:
        for number in range(5):
            await scene.store.pause(switch("tenant-green", f"tool:{number}"), now=scene.now)
            await scene.store.pause(switch("tenant-blue", f"tool:{number}"), now=scene.now)
        seen: list[str] = []
        after = 0
        while page := await scene.store.read_audit("tenant-green", after=after, limit=2):
            assert len(page) <= 2
            numbers = [row.number for row in page]
            assert numbers == sorted(set(numbers))
            assert numbers[0] > after
            after = numbers[-1]
            seen += [row.what for row in page]
        assert seen == [f"pause:tool:{number}" for number in range(5)]

    async def test_is_only_ever_added_to(self, scene: Scene, backdoor: Backdoor) -> None:
        await scene.store.pause(switch("tenant-green"), now=scene.now)
        [row] = (await scene.store.dump())["audit"]
        here = where(row, "tenant", "number")
        await refuses(
            scene,
            backdoor,
            f"update audit set reason = 'other' where {here}",
            f"update audit set who = 'nobody' where {here}",
            f"delete from audit where {here}",
        )
