"""Cancels that undo first: the task goes back to a worker, and ends as cancelled and as nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.transitions import WAITING_REASONS
from outlast.store.entries import EndAttempt
from outlast.store.posting import CancelReply, News
from outlast.store.reconciling import OpenRequest, SettledCounts
from outlast.store.records import Claimed, TaskRef
from outlast.testing.store_suite.effects import refusal
from outlast.testing.store_suite.guards import refuses
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Backdoor, Scene, changed

__all__ = [
    "TestCancelOfADecidedUndo",
    "TestCancelWithUndo",
    "TestCompensations",
    "TestEndingsOfAnUndo",
    "TestLossOfAnUndo",
]

BY, WHY = "person:uma", "the order was a mistake"


async def undo(scene: Scene, of: Any) -> CancelReply:
    """Cancel with undo, for the reason of these tests."""
    return await scene.cancel(of, by=BY, reason=WHY, undo=True)


async def undoing(scene: Scene, **changes: Any) -> Claimed:
    """Have a task that undoes what it has done."""
    claimed = await scene.running(**changes)
    assert (await undo(scene, claimed)).kind == "requested"
    return claimed


async def decided(scene: Scene, claimed: Claimed, **changes: Any) -> None:
    """Put on record that a task undoes what it has done."""
    said = {"task": claimed.task, "round": claimed.round, "error": {}, **changes}
    await scene.write(claimed, scene.step("undo!", kind="value", name="undo", result=json.dumps(said)))


async def attempt_ends(scene: Scene, of: Any) -> list[str | None]:
    """Read how a task's attempts have ended."""
    ref = TaskRef(tenant=of.tenant, task=of.task)
    return [row.end for row in await scene.store.read_attempts(ref)]


async def cancelled(scene: Scene, of: Any, error: Any = None) -> None:
    """Demand that a task has ended as cancelled, for the reason that was given, with no mark left."""
    task = await scene.task(of)
    assert (task.state, task.cancelling) == ("cancelled", False)
    assert json.loads(task.error or "") == (error or {"code": "cancelled", "message": WHY})
    [head] = await scene.rows("tasks", of)
    assert not head["undoing"]
    last = (await scene.events(of))[-1]
    assert (last.kind, json.loads(last.data)["by"], json.loads(last.data)["reason"]) == (
        "task.cancelled",
        BY,
        WHY,
    )
    for table in ("leases", "queue", "timers"):
        assert await scene.rows(table, of) == [], table


class TestCancelWithUndo:
    """The verb ``cancel`` with ``undo``."""

    async def test_a_running_task_takes_both_marks_and_its_worker_hears(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        last = await scene.task(claimed)
        assert await undo(scene, claimed) == CancelReply(kind="requested", state="running")
        [head] = await scene.rows("tasks", claimed)
        assert (head["state"], bool(head["cancelling"]), bool(head["undoing"])) == ("running", True, True)
        [event] = await scene.events(claimed, after=last.last_event)
        assert (event.kind, json.loads(event.data)) == (
            "task.cancel_requested",
            {"by": BY, "reason": WHY, "undo": True},
        )
        assert await scene.news(session) == [
            News(
                tenant=claimed.tenant,
                task=claimed.task,
                facts=claimed.facts + 1,
                cancelling=True,
                undoing=True,
            )
        ]

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_a_waiting_task_goes_back_to_a_worker(self, scene: Scene, reason: str) -> None:
        claimed = await scene.waiting(reason, deadline_us=9 * HOUR)
        last = (await scene.task(claimed)).last_event
        assert await undo(scene, claimed) == CancelReply(kind="requested", state="queued")
        task = await scene.task(claimed)
        assert (task.state, task.reason, task.cancelling) == ("queued", None, True)
        assert await scene.kinds(claimed, after=last) == ["task.cancel_requested", "task.woken"]
        assert [row["kind"] for row in await scene.rows("timers", claimed)] == ["deadline"]
        again = await scene.claim_task(claimed)
        assert (again.cancelling, again.epoch, again.facts) == (True, claimed.epoch + 1, claimed.facts + 1)
        await scene.write(again, scene.failure())
        await cancelled(scene, claimed)

    async def test_a_queued_task_that_has_begun_stays_queued(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.release())
        assert await undo(scene, claimed) == CancelReply(kind="requested", state="queued")
        assert len(await scene.rows("queue", claimed)) == 1
        assert (await scene.claim_task(claimed)).cancelling

    @pytest.mark.parametrize("ahead", [False, True])
    async def test_a_task_that_has_not_begun_has_nothing_to_undo(self, scene: Scene, ahead: bool) -> None:
        record = await scene.submit(run_at=scene.now + HOUR if ahead else None)
        assert await undo(scene, record) == CancelReply(kind="cancelled", state="cancelled")
        await cancelled(scene, record)

    @pytest.mark.parametrize("again", [False, True])
    async def test_a_second_cancel_changes_nothing(self, scene: Scene, again: bool) -> None:
        claimed = await scene.waiting("signal")
        await undo(scene, claimed)
        before = await scene.store.dump()
        assert await scene.cancel(claimed, undo=again) == CancelReply(kind="requested", state="queued")
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_cancel_that_stands_does_not_become_an_undo(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed)
        before = await scene.store.dump()
        assert await undo(scene, claimed) == CancelReply(kind="requested", state="running")
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_plain_claim_bears_no_mark(self, scene: Scene) -> None:
        assert not (await scene.running()).cancelling

    async def test_only_what_is_cancelled_undoes(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        await refuses(scene, backdoor, f"update tasks set undoing = (1 = 1) where id = '{claimed.task}'")

    async def test_no_child_is_had_any_more(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        child = scene.submission(parent=scene.parent(claimed), key=None)
        assert [one.kind for one in await scene.store.submit([child])] == ["stale"]


class TestCompensations:
    """Calls of kind ``compensation``."""

    @pytest.mark.parametrize("kind", ["tool", "model", "compensation"])
    async def test_nothing_but_an_undo_is_admitted(self, scene: Scene, kind: Any) -> None:
        claimed = await undoing(scene)
        refused = await refusal(scene, claimed, scene.intent(kind=kind))
        assert refused == (None if kind == "compensation" else "cancelled")

    async def test_an_undo_that_nobody_knows_of_is_an_open_effect(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        key = await scene.called(claimed, kind="compensation", name="withdraw")
        await scene.write(claimed, scene.failure())
        assert (await scene.task(claimed)).effects_open == 1
        assert (await scene.operation(claimed, key)).state == "unknown"
        session = await scene.session()
        request = OpenRequest(session=session, tools=("withdraw",), limit=9, lease_us=HOUR)
        [item] = await scene.store.claim_open(request, now=scene.now)
        assert (item.operation.key, item.operation.kind, item.task_ended) == (key, "compensation", True)
        scene.pass_time(HOUR)
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert await scene.store.read_settled_counts(scene.tenant) == [
            SettledCounts(tool="withdraw", unknown=0, happened=1, did_not_happen=0, sent_again=0)
        ]


class TestCancelOfADecidedUndo:
    """A plain cancel of a task that undoes what it has done, since it failed."""

    @pytest.mark.parametrize("state", ["running", "queued", "waiting"])
    async def test_it_lets_the_undo_come_to_its_end(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        await decided(scene, claimed)
        if state == "queued":
            await scene.write(claimed, scene.release())
        elif state == "waiting":
            await scene.write(claimed, scene.suspension("limit", facts=claimed.facts, wake_in_us=HOUR))
        assert (await scene.task(claimed)).state == state
        assert (await scene.cancel(claimed, by=BY, reason=WHY)).kind == "requested"
        [head] = await scene.rows("tasks", claimed)
        assert (bool(head["cancelling"]), bool(head["undoing"])) == (True, True)
        if state == "running":
            end = scene.suspension("limit", facts=claimed.facts + 1, wake_in_us=HOUR)
            assert (await scene.write(claimed, end)).state == "waiting"
        else:
            again = await scene.claim_task(claimed)
            assert again.cancelling
            await scene.write(again, scene.failure())
            await cancelled(scene, claimed)

    async def test_a_decision_of_another_round_or_task_is_none(self, scene: Scene) -> None:
        for changes in ({"round": ROUND + 1}, {"task": "another"}):
            claimed = await scene.running()
            await decided(scene, claimed, **changes)
            await scene.write(claimed, scene.release())
            assert (await scene.cancel(claimed, by=BY, reason=WHY)).kind == "cancelled"


ENDS: dict[str, Callable[[Scene], EndAttempt]] = {
    "succeeded": lambda scene: scene.success(),
    "failed": lambda scene: scene.failure(),
    "cancelled": lambda scene: scene.failure(attempt_end="cancelled", task_state="cancelled"),
}


class TestEndingsOfAnUndo:
    """What an attempt comes to while its task undoes."""

    @pytest.mark.parametrize("end", ENDS)
    async def test_every_end_is_a_cancel(self, scene: Scene, end: str) -> None:
        claimed = await undoing(scene, deadline_us=HOUR)
        verdict = await scene.write(claimed, ENDS[end](scene))
        assert verdict.state == "cancelled"
        await cancelled(scene, claimed)
        assert await attempt_ends(scene, claimed) == ["cancelled"]

    async def test_the_workers_word_of_what_was_undone_is_kept(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        said = {
            "code": "cancelled",
            "message": "undone",
            "compensation": {"state": "incomplete", "undone": ["mail"], "left": ["ticket"]},
        }
        await scene.write(claimed, replace(ENDS["cancelled"](scene), error=json.dumps(said)))
        await cancelled(scene, claimed, said)

    async def test_a_plain_cancel_keeps_its_own_word(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed, by=BY, reason=WHY)
        said = json.dumps({"code": "cancelled", "message": "another"})
        await scene.write(claimed, replace(ENDS["cancelled"](scene), error=said))
        await cancelled(scene, claimed)

    async def test_a_plain_cancel_that_meets_an_undo_keeps_what_was_undone(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed, by=BY, reason=WHY)
        said = {"code": "cancelled", "message": "undone", "compensation": {"state": "complete"}}
        await scene.write(claimed, scene.failure(error=json.dumps(said)))
        await cancelled(scene, claimed, said)

    @pytest.mark.parametrize("asked", ["undo", "plain"])
    async def test_what_was_undone_before_the_cancel_was_heard_is_kept(
        self, scene: Scene, asked: str
    ) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed, by=BY, reason=WHY, undo=asked == "undo")
        undone = {"state": "complete", "undone": ["mail"], "left": []}
        said = {"code": "agent_error", "message": "it broke", "compensation": undone}
        await scene.write(claimed, scene.failure(error=json.dumps(said)))
        await cancelled(scene, claimed, {"code": "cancelled", "message": WHY, "compensation": undone})

    async def test_a_release_and_a_suspension_are_what_they_are(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        assert (await scene.write(claimed, scene.release())).state == "queued"
        again = await scene.claim_task(claimed)
        assert again.cancelling
        end = scene.suspension("reconciliation", facts=again.facts)
        await scene.called(again, "unknown", kind="compensation")
        assert (await scene.write(again, end)).state == "waiting"
        task = await scene.task(claimed)
        assert (task.state, task.reason, task.cancelling) == ("waiting", "reconciliation", True)
        assert await attempt_ends(scene, claimed) == ["released", "suspended"]
        await scene.post(scene.signal(claimed))
        assert (await scene.claim_task(claimed)).cancelling

    async def test_a_failed_undo_is_opened_again_by_its_own_retry_policy(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        key = await scene.called(claimed, "failed", kind="compensation")
        await scene.write(
            claimed, scene.suspension("timer", wake_in_us=HOUR, facts=claimed.facts + 1, reopen=(key,))
        )
        assert (await scene.operation(claimed, key)).state == "planned"
        scene.pass_time(HOUR)
        assert len((await scene.sweep()).woken) == 1
        assert (await scene.claim_task(claimed)).cancelling


class TestLossOfAnUndo:
    """Workers that die, and time that passes, while a task undoes."""

    async def test_it_is_handed_to_another_worker(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        swept = await scene.lose(claimed)
        assert [one.task for one in swept.lost] == [claimed.task]
        assert (await scene.task(claimed)).state == "queued"
        assert (await scene.claim_task(claimed)).cancelling

    async def test_one_that_kills_its_workers_ends_as_cancelled(self, scene: Scene) -> None:
        claimed = await undoing(scene)
        for _ in range(2):
            await scene.lose(claimed, max_deaths=3)
            claimed = await scene.claim_task(claimed)
        swept = await scene.lose(claimed, max_deaths=3)
        assert ([one.task for one in swept.parked], swept.lost) == ([claimed.task], ())
        await cancelled(scene, claimed)

    @pytest.mark.parametrize("state", ["running", "queued", "waiting"])
    async def test_its_deadline_ends_it_as_cancelled(self, scene: Scene, state: str) -> None:
        claimed = await undoing(scene, deadline_us=HOUR, ttl_us=9 * HOUR)
        if state == "queued":
            await scene.write(claimed, scene.release())
        elif state == "waiting":
            await scene.write(claimed, scene.suspension("signal", facts=claimed.facts + 1))
        assert (await scene.task(claimed)).state == state
        scene.pass_time(2 * HOUR)
        swept = await scene.sweep()
        assert [one.task for one in swept.expired] == [claimed.task]
        await cancelled(scene, claimed)
        [result] = await scene.rows("results", claimed)
        assert (result["round"], result["state"]) == (ROUND, "cancelled")

    async def test_a_lease_that_nobody_knows_of_is_given_back(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await undo(scene, claimed)
        given = await scene.store.reconcile(session, [], fence=1, now=scene.now)
        assert [one.task for one in given] == [claimed.task]
        assert (await scene.task(claimed)).state == "queued"
        scene.pass_time(SECOND)
        assert (await scene.claim_task(claimed)).cancelling
