"""Late evidence against what was settled, and about what nobody knows yet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.entries import TakeTurn
from outlast.store.records import Claimed
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.believing import sent_twice
from outlast.testing.store_suite.effects import holder, once
from outlast.testing.store_suite.reconciling import late, postponement, state_of, take, unknown
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

__all__ = ["TestContradictions"]


class TestContradictions:
    """Late evidence against what was settled."""

    @pytest.mark.parametrize("by", ["worker", "person:ann"])
    async def test_that_a_failed_one_happened(self, scene: Scene, by: str) -> None:
        claimed = await scene.running()
        if by == "worker":
            key = await scene.called(claimed, "failed")
        else:
            key = await scene.called(claimed, "unknown")
            settlement = scene.settlement(claimed, key, "did_not_happen", forced=True, by=by)
            await scene.store.settle([settlement], now=scene.now)
        await self.contradicts(scene, claimed, key, "happened")

    @pytest.mark.parametrize("by", ["settler", "person:ann"])
    async def test_that_one_settled_as_succeeded_did_not_happen(self, scene: Scene, by: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key, by=by)], now=scene.now)
        await self.contradicts(scene, claimed, key, "did_not_happen")

    async def test_that_one_happened_that_lost_its_race(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "planned")
        lost = scene.step(key, kind="tool", state="failed", result=None, error=scene.text("e"), lost=True)
        await scene.write(claimed, lost)
        await self.contradicts(scene, claimed, key, "happened")

    async def contradicts(self, scene: Scene, claimed: Claimed, key: str, says: str) -> None:
        """Demand that the operation is unknown again, with its record, its event and its place."""
        was, task = await scene.operation(claimed, key), await scene.task(claimed)
        [head] = await scene.rows("tasks", claimed)
        begun = len(await scene.store.read_evidence(claimed.tenant, claimed.task, key))
        before = await scene.store.dump()
        scene.pass_time(SECOND)
        evidence = late(claimed, key, says, data=scene.text("late"))
        await scene.store.note([evidence], now=scene.now)
        row = await scene.operation(claimed, key)
        assert (row.state, row.result, row.error) == ("unknown", was.result, was.error)
        assert (row.attempt, row.ended_at) == (was.attempt, None)
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.since, state.ask_at, state.asked) == (scene.now, None, 0)
        assert state.why == "late evidence contradicts what was settled"
        [event] = await scene.events(claimed, after=task.last_event)
        assert (event.number, event.kind, event.at) == (
            task.last_event + 1,
            "operation.contradicted",
            scene.now,
        )
        assert json.loads(event.data) == {"operation": key, "says": says}
        [after] = await scene.rows("tasks", claimed)
        assert after == {**head, "last_event": head["last_event"] + 1}
        kept = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert [one.data for one in kept[begun:]] == [evidence.data]
        # A person settles it, and the worker writes on.
        await scene.write(claimed, scene.step(events=(scene.event(),)))
        [settled] = await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert settled.kind == "settled"
        assert check_all(await scene.store.dump(), earlier=before) == []

    @pytest.mark.parametrize("says", ["happened", "did_not_happen"])
    async def test_what_changes_nothing_is_put_before_nobody(self, scene: Scene, says: str) -> None:
        claimed = await scene.running()
        if says == "happened":
            key = await scene.called(claimed, "failed", effect="read")
        else:
            key = await scene.called(claimed, "unknown", effect="read")
            await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, says)], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_of_an_ended_task_reopens_the_ledger_only(self, scene: Scene) -> None:
        claimed = await scene.running(announce=True)
        key = await scene.called(claimed, "failed")
        await scene.write(claimed, scene.failure())
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"operations", "unsettled", "evidence"}
        assert (await scene.operation(claimed, key)).state == "unknown"
        assert (await scene.kinds(claimed))[-1] == "task.failed"

    async def test_of_a_waiting_task_wakes_nobody(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "failed")
        await scene.write(claimed, scene.suspension("operator"))
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        task = await scene.task(claimed)
        assert (task.state, task.reason) == ("waiting", "operator")
        assert (await scene.kinds(claimed))[-1] == "operation.contradicted"

    @pytest.mark.parametrize(
        ("state", "says"),
        [
            ("failed", "did_not_happen"),
            ("failed", None),
            ("succeeded", "happened"),
            # Recorded by the worker that made the call: an answer, not a settlement.
            ("succeeded", "did_not_happen"),
            ("succeeded", None),
            ("planned", "did_not_happen"),
            ("running", "happened"),
            ("running", "did_not_happen"),
        ],
    )
    async def test_anything_else_is_evidence_only(self, scene: Scene, state: Any, says: Any) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, says)], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_that_an_earlier_attempt_did_not_happen_is_evidence_only(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await sent_twice(scene, claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "succeeded", settled_by="worker"))
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, "did_not_happen", attempt=1)], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}
        await scene.store.note([late(claimed, key, "did_not_happen", attempt=2)], now=scene.now)
        assert (await scene.operation(claimed, key)).state == "unknown"

    @pytest.mark.parametrize("attempt", [1, 2])
    async def test_that_any_attempt_happened_contradicts_a_failure(self, scene: Scene, attempt: int) -> None:
        """All attempts are the same call, under one key."""
        claimed = await scene.running()
        key = await sent_twice(scene, claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "failed"))
        await scene.store.note([late(claimed, key, "happened", attempt=attempt)], now=scene.now)
        assert (await scene.operation(claimed, key)).state == "unknown"
        assert check_all(await scene.store.dump()) == []

    async def test_of_an_attempt_that_was_never_made_is_evidence_only(self, scene: Scene) -> None:
        claimed = await scene.running()
        planned = scene.planned(scene.intent())
        failed = await scene.called(claimed, "failed")
        await scene.write(claimed, planned)
        before = await scene.store.dump()
        for key, attempt in ((failed, 2), (planned.key, 0), (planned.key, 1)):
            await scene.store.note([late(claimed, key, "happened", attempt=attempt)], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_a_contradicted_one_is_left_to_a_person(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "failed", name="look")
        await scene.write(claimed, scene.suspension("operator"))
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        scene.pass_time(9 * HOUR)
        assert await take(scene) == []

    async def test_a_success_in_doubt_holds_its_key_again(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", business=once())
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.store.note([late(claimed, key, "did_not_happen")], now=scene.now)
        held = await holder(scene, once())
        assert held is not None
        assert (held.key, held.state, held.until) == (key, "held", None)
        assert check_all(await scene.store.dump()) == []
        # So that nobody else does it meanwhile.
        other = await scene.running()
        assert (await scene.flush(other, scene.intent(business=once()))).refusals == ((0, "key_held"),)

    async def test_a_key_that_did_not_happen_after_all_is_given_up(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", business=once())
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.store.note([late(claimed, key, "did_not_happen")], now=scene.now)
        settlement = scene.settlement(claimed, key, "did_not_happen", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        assert await holder(scene, once()) is None

    @pytest.mark.parametrize("says", ["happened", "did_not_happen"])
    async def test_about_an_unknown_one_makes_it_due_at_once(self, scene: Scene, says: str) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        for seen, ask_in_us in enumerate((9 * HOUR, None)):
            await scene.store.postpone([postponement(item, ask_in_us, seen=seen)], now=scene.now)
            before = await state_of(scene, claimed, key)
            assert before is not None
            scene.pass_time(SECOND)
            await scene.store.note([late(claimed, key, says)], now=scene.now)
            assert await state_of(scene, claimed, key) == replace(before, ask_at=scene.now)
            [item] = await take(scene)
        assert (await scene.operation(claimed, key)).state == "unknown"

    async def test_about_an_unknown_one_never_makes_it_due_later(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        before = await scene.store.dump()
        due = scene.now
        scene.pass_time(SECOND)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert state.ask_at == due

    @pytest.mark.parametrize(("attempt", "last"), [(1, True), (2, False)])
    async def test_that_its_sender_is_gone_shows_and_makes_an_unknown_one_due(
        self, scene: Scene, attempt: int, last: bool
    ) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, None)], now=scene.now)
        before = await state_of(scene, claimed, key)
        assert before is not None
        row = await scene.operation(claimed, key)
        scene.pass_time(SECOND)
        await scene.store.note([late(claimed, key, "over", attempt=attempt)], now=scene.now)
        assert not before.sender_gone
        told = replace(before, ask_at=scene.now, sender_gone=True) if last else before
        assert await state_of(scene, claimed, key) == told
        assert await scene.operation(claimed, key) == row

    async def test_that_the_sender_of_one_to_be_sent_again_is_gone_leaves_it_so(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        settlement = scene.settlement(claimed, key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        before = await state_of(scene, claimed, key)
        assert before is not None
        assert (before.resend, before.sender_gone) == (True, False)
        await scene.store.note([late(claimed, key, "over")], now=scene.now)
        assert await state_of(scene, claimed, key) == replace(before, sender_gone=True)

    @pytest.mark.parametrize("attempt", [1, 2])
    @pytest.mark.parametrize("into", ["turn", "outcome", "failure", "cancel"])
    async def test_that_a_sender_is_gone_is_remembered_until_its_call_is_unknown(
        self, scene: Scene, into: str, attempt: int
    ) -> None:
        """A worker that was given up says so before anybody has looked at what it left."""
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        await scene.write(claimed, replace(intent, attempt=1, turn=2))
        await scene.store.note([late(claimed, intent.key, "over", attempt=attempt)], now=scene.now)
        assert await state_of(scene, claimed, intent.key) is None
        if into == "turn":
            await scene.write(claimed, TakeTurn(key=intent.key, attempt=2, turn=3))
        elif into == "outcome":
            await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        elif into == "failure":
            await scene.write(claimed, scene.failure())
        else:
            await scene.lose(claimed)
            await scene.cancel(claimed)
        state = await state_of(scene, claimed, intent.key)
        assert state is not None
        assert state.sender_gone is (attempt == 2)

    async def test_that_a_sender_is_gone_shows_when_its_settlement_is_contradicted(
        self, scene: Scene
    ) -> None:
        claimed, key = await unknown(scene)
        settlement = scene.settlement(claimed, key, "did_not_happen", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        await scene.store.note([late(claimed, key, "over")], now=scene.now)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert state.sender_gone

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen"])
    async def test_that_its_sender_is_gone_contradicts_nothing(self, scene: Scene, verdict: Any) -> None:
        claimed, key = await unknown(scene)
        await scene.store.settle([scene.settlement(claimed, key, verdict, forced=True)], now=scene.now)
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, "over")], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_that_says_nothing_leaves_the_time_alone(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, HOUR)], now=scene.now)
        before = await scene.store.dump()
        await scene.store.note([late(claimed, key, None)], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_pieces_of_one_call_are_judged_in_order(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        first, second = await scene.called(one, "failed"), await scene.called(two, "failed")
        await scene.store.note(
            [
                late(two, second, None),
                late(one, first, "happened"),
                late(two, second, "happened"),
                late(one, first, None),
            ],
            now=scene.now,
        )
        for claimed, key in ((one, first), (two, second)):
            assert (await scene.operation(claimed, key)).state == "unknown"
            assert (await scene.kinds(claimed)).count("operation.contradicted") == 1
            rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
            assert [row.number for row in rows] == [1, 2]

    async def test_the_other_tenants_twin_is_untouched(self, scene: Scene) -> None:
        claimed = await scene.running(tenant="tenant-blue")
        key = await scene.called(claimed, "failed")
        record = replace(scene.submission(tenant="tenant-red"), task=claimed.task)
        await scene.accept([record])
        twin = await scene.claim_task(record)
        await scene.called(twin, "failed", key=key)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        assert (await scene.operation(claimed, key)).state == "unknown"
        assert (await scene.operation(twin, key)).state == "failed"
