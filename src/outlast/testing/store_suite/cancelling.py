"""Cancels: the end of what does not run, the mark on what does, and that nothing else comes of either."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.transitions import WAITING_REASONS
from outlast.store.entries import TakeTurn
from outlast.store.posting import Cancel, CancelReply
from outlast.store.records import Claimed
from outlast.testing.store_suite.effects import lock, refusal, switch
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Scene, changed

__all__ = ["TestCancel", "TestEndingsUnderTheMark", "TestIntentsUnderTheMark"]

BY, WHY = "person:eve", "a customer called"


async def cancelled(scene: Scene, of: Any, *, effects_open: int = 0) -> None:
    """Demand that a task has ended as cancelled, once, for the reason that was given."""
    task = await scene.task(of)
    assert (task.state, task.reason, task.result) == ("cancelled", None, None)
    assert (task.effects_open, task.cancelling) == (effects_open, False)
    assert json.loads(task.error or "") == {"code": "cancelled", "message": WHY}
    [result] = await scene.rows("results", of)
    assert (result["round"], result["state"], result["error"]) == (ROUND, "cancelled", task.error)
    events = await scene.events(of)
    assert [event.kind for event in events].count("task.cancelled") == 1
    assert events[-1].kind == "task.cancelled"
    assert json.loads(events[-1].data) == {"by": BY, "reason": WHY, "effects_open": effects_open}
    assert not {"task.succeeded", "task.failed"} & {event.kind for event in events}
    for table in ("leases", "queue", "timers"):
        assert await scene.rows(table, of) == [], table


async def cancel(scene: Scene, of: Any) -> CancelReply:
    """Cancel for the reason of these tests."""
    return await scene.cancel(of, by=BY, reason=WHY)


class TestCancel:
    """The verb ``cancel``."""

    async def test_ends_a_queued_task(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=HOUR)
        neighbour = await scene.submit(agent=record.agent, pool=record.pool)
        scene.pass_time(3 * SECOND)
        assert await cancel(scene, record) == CancelReply(kind="cancelled", state="cancelled")
        await cancelled(scene, record)
        assert (await scene.task(record)).ended_at == scene.now
        assert (await scene.task(neighbour)).state == "queued"
        assert len(await scene.rows("queue", neighbour)) == 1

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_ends_a_waiting_task_whatever_it_waits_for(self, scene: Scene, reason: str) -> None:
        claimed = await scene.waiting(reason, deadline_us=9 * HOUR)
        assert (await cancel(scene, claimed)).kind == "cancelled"
        # What is unknown stays in the ledger, and the end says so.
        await cancelled(scene, claimed, effects_open=int(reason == "reconciliation"))
        assert len(await scene.rows("unsettled", claimed)) == int(reason == "reconciliation")
        scene.pass_time(20 * HOUR)
        assert (await scene.sweep()).woken == ()

    async def test_ends_a_task_whose_time_lies_ahead(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now + HOUR)
        assert (await cancel(scene, record)).kind == "cancelled"
        await cancelled(scene, record)

    async def test_marks_a_running_task(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=HOUR)
        last = (await scene.task(claimed)).last_event
        scene.pass_time(3 * SECOND)
        assert await cancel(scene, claimed) == CancelReply(kind="requested", state="running")
        task = await scene.task(claimed)
        assert (task.state, task.cancelling, task.epoch) == ("running", True, claimed.epoch)
        [event] = await scene.events(claimed, after=last)
        assert (event.number, event.kind, event.at) == (last + 1, "task.cancel_requested", scene.now)
        assert json.loads(event.data) == {"by": BY, "reason": WHY}
        [head] = await scene.rows("tasks", claimed)
        assert head["facts"] == claimed.facts + 1
        assert len(await scene.rows("leases", claimed)) == 1
        assert await scene.rows("results", claimed) == []

    async def test_a_repeat_changes_nothing(self, scene: Scene) -> None:
        claimed, record = await scene.running(), await scene.submit()
        await cancel(scene, claimed)
        await cancel(scene, record)
        before = await scene.store.dump()
        scene.pass_time(3 * SECOND)
        again = await scene.cancel(claimed, by="person:other", reason="another")
        assert again == CancelReply(kind="requested", state="running")
        again = await scene.cancel(record, by="person:other", reason="another")
        assert again == CancelReply(kind="already", state="cancelled")
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["succeeded", "failed"])
    async def test_what_ended_otherwise_stays_so(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success() if state == "succeeded" else scene.failure())
        before = await scene.store.dump()
        assert await cancel(scene, claimed) == CancelReply(kind="ended", state=state)
        assert changed(before, await scene.store.dump()) == {}

    async def test_of_nobodys_task_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        assert (await cancel(scene, replace(claimed, tenant="tenant-blue"))).kind == "not_found"
        assert (await cancel(scene, scene.submission())).kind == "not_found"
        assert changed(before, await scene.store.dump()) == {}

    async def test_answers_each_in_order(self, scene: Scene) -> None:
        queued, running, over = await scene.submit(), await scene.running(), await scene.running()
        await scene.write(over, scene.success())
        requests = [
            Cancel(tenant=of.tenant, task=of.task, by=BY, reason=WHY)
            for of in (running, over, queued, scene.submission(), queued, running)
        ]
        replies = await scene.store.cancel(requests, now=scene.now)
        assert [(reply.kind, reply.state) for reply in replies] == [
            ("requested", "running"),
            ("ended", "succeeded"),
            ("cancelled", "cancelled"),
            ("not_found", ""),
            ("already", "cancelled"),
            ("requested", "running"),
        ]
        assert await scene.store.cancel([], now=scene.now) == []

    @pytest.mark.parametrize("state", ["queued", "waiting", "running"])
    async def test_is_kept_in_the_audit_trail(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        if state != "running":
            await scene.write(claimed, scene.release() if state == "queued" else scene.suspension("signal"))
        scene.pass_time(3 * SECOND)
        await cancel(scene, claimed)
        await cancel(scene, claimed)
        [row] = await scene.store.read_audit(claimed.tenant)
        assert (row.at, row.who, row.what) == (scene.now, BY, "cancel")
        assert (row.subject, row.reason) == (claimed.task, WHY)

    async def test_an_announced_task_has_a_message_with_its_end(self, scene: Scene) -> None:
        record = await scene.submit(announce=True)
        await cancel(scene, record)
        topics = sorted(row["topic"] for row in await scene.rows("outbox", record))
        assert topics == ["task.cancelled", "task.submitted"]

    async def test_withdraws_what_people_were_asked(self, scene: Scene) -> None:
        claimed = await scene.running()
        pending, agreed, used, denied = (scene.ask() for _ in range(4))
        answered = scene.question()
        rows = {ask.key: await scene.asked(claimed, ask) for ask in (pending, agreed, used, answered, denied)}
        for ask, verdict in (
            (agreed, "approve"),
            (used, "approve"),
            (answered, "approve"),
            (denied, "reject"),
        ):
            assert (await scene.decide(rows[ask.key], verdict)).kind == "decided"
        await scene.write(claimed, scene.agreed_intent(used))
        await scene.write(claimed, await scene.outcome(claimed, used.key, "succeeded"))
        facts = (await scene.rows("tasks", claimed))[0]["facts"]
        await scene.write(claimed, scene.suspension("approval", facts=facts))
        last = (await scene.task(claimed)).last_event
        await cancel(scene, claimed)
        states = {
            row.key: row.state for row in await scene.store.read_approvals(claimed.tenant, claimed.task)
        }
        assert states == {
            pending.key: "withdrawn",
            agreed.key: "withdrawn",
            used.key: "used",
            answered.key: "approved",
            denied.key: "rejected",
        }
        events = await scene.events(claimed, after=last)
        assert [event.kind for event in events] == [*["approval.withdrawn"] * 2, "task.cancelled"]
        withdrawn = sorted(json.loads(event.data)["approval"] for event in events[:2])
        assert withdrawn == sorted([rows[pending.key].id, rows[agreed.key].id])

    async def test_counts_the_effects_that_are_open(self, scene: Scene) -> None:
        claimed = await scene.running()
        for _ in range(2):
            await scene.called(claimed, "unknown")
        await scene.called(claimed)
        await scene.write(claimed, scene.release())
        await cancel(scene, claimed)
        # What was under way when the lease was given back may have had its effect.
        await cancelled(scene, claimed, effects_open=3)

    async def test_gives_up_business_keys_of_what_was_not_sent(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "planned", business=lock("planned"))
        await scene.called(claimed, "unknown", business=lock("unknown"))
        await scene.write(claimed, scene.release())
        await cancel(scene, claimed)
        rows = (await scene.store.dump())["business_keys"]
        assert [row["value"] for row in rows] == ["unknown"]


# -- what comes after the mark ---------------------------------------------------------------------------


class TestIntentsUnderTheMark:
    """From the acknowledgement on nothing new is begun."""

    async def test_an_intent_is_refused(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        await cancel(scene, claimed)
        assert await refusal(scene, claimed, scene.intent()) == "cancelled"
        assert await refusal(scene, other, scene.intent()) is None

    async def test_one_that_undoes_is_let_through(self, scene: Scene) -> None:
        claimed = await scene.running()
        await cancel(scene, claimed)
        assert await refusal(scene, claimed, scene.intent(kind="compensation")) is None

    async def test_a_call_that_is_sent_again_is_refused_too(self, scene: Scene) -> None:
        claimed = await scene.running()
        again, unknown = scene.intent(), scene.intent()
        await scene.write(claimed, again, unknown)
        await scene.write(claimed, await scene.outcome(claimed, again.key, "planned"))
        await scene.write(claimed, await scene.outcome(claimed, unknown.key, "unknown"))
        await cancel(scene, claimed)
        for intent in (again, replace(unknown, resend=True)):
            row = await scene.operation(claimed, intent.key)
            repeat = replace(intent, attempt=row.attempt, turn=row.turn)
            assert await refusal(scene, claimed, repeat) == "cancelled"
        assert len(await scene.rows("unsettled", claimed)) == 1

    async def test_its_place_among_the_refusals(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=9 * HOUR, deadline_us=HOUR)
        await cancel(scene, claimed)
        await scene.store.pause(switch(claimed.tenant), now=scene.now)
        wrong = scene.intent(attempt=2, turn=2)
        assert await refusal(scene, claimed, wrong) == "cancelled"
        scene.now = claimed.deadline_at or 0
        assert await refusal(scene, claimed, wrong) == "deadline"

    async def test_records_are_still_taken(self, scene: Scene) -> None:
        """What was under way has its outcome; what is known is written down."""
        claimed = await scene.running()
        open_key, asked_key = await scene.called(claimed), await scene.called(claimed)
        await cancel(scene, claimed)
        await scene.write(
            claimed,
            scene.step("step"),
            await scene.outcome(claimed, open_key, "succeeded"),
            TakeTurn(key=asked_key, attempt=1, turn=1),
        )
        assert (await scene.operation(claimed, "step")).state == "succeeded"
        assert (await scene.operation(claimed, open_key)).state == "succeeded"
        assert (await scene.operation(claimed, asked_key)).state == "unknown"


async def lost(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed)


async def parked(scene: Scene, claimed: Claimed) -> None:
    assert (await scene.lose(claimed, max_deaths=1)).parked == ()


async def expired(scene: Scene, claimed: Claimed) -> None:
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=9 * HOUR, session=row["id"])
    scene.now = (claimed.deadline_at or 0) + 1
    await scene.sweep(grace_us=0)


async def reconciled(scene: Scene, claimed: Claimed) -> None:
    [lease] = await scene.rows("leases", claimed)
    await scene.store.reconcile(lease["session"], [], fence=1, now=scene.now)


def ended(make: Callable[[Scene], Any]) -> Callable[[Scene, Claimed], Awaitable[None]]:
    async def drive(scene: Scene, claimed: Claimed) -> None:
        verdict = await scene.write(claimed, make(scene))
        assert verdict.state == "cancelled"

    return drive


ENDINGS: dict[str, Callable[[Scene, Claimed], Awaitable[None]]] = {
    "succeeded": ended(lambda scene: scene.success()),
    "failed": ended(lambda scene: scene.failure()),
    "cancelled": ended(lambda s: s.failure(attempt_end="cancelled", task_state="cancelled")),
    "released": ended(lambda scene: scene.release()),
    "suspended": ended(lambda scene: scene.suspension("signal", facts=99)),
    "suspended-for-a-time": ended(lambda scene: scene.suspension("timer", wake_in_us=HOUR, facts=99)),
    "failed-to-be-tried-again": ended(
        lambda scene: scene.failure(task_state="waiting", reason="timer", wake_in_us=HOUR, facts=99)
    ),
    "failed-and-queued": ended(lambda scene: scene.failure(task_state="queued", error=None)),
    "lost": lost,
    "parked": parked,
    "expired": expired,
    "reconciled": reconciled,
}


class TestEndingsUnderTheMark:
    """Whatever ends the attempt ends the task, as cancelled."""

    @pytest.mark.parametrize("how", ENDINGS)
    async def test_every_ending_becomes_cancelled(self, scene: Scene, how: str) -> None:
        claimed = await scene.running(deadline_us=HOUR, announce=True)
        running = await scene.called(claimed)
        await scene.called(claimed, "unknown")
        await scene.called(claimed, "succeeded")
        asked = await scene.asked(claimed)
        await scene.write(claimed, scene.timer(due_in_us=SECOND))
        await cancel(scene, claimed)
        scene.pass_time(3 * SECOND)
        await ENDINGS[how](scene, claimed)
        await cancelled(scene, claimed, effects_open=2)
        [attempt] = await scene.rows("attempts", claimed)
        assert (attempt["epoch"], attempt["end"]) == (claimed.epoch, "cancelled")
        assert (await scene.operation(claimed, running)).state == "unknown"
        assert (await scene.approval(claimed, asked.key)).state == "withdrawn"
        topics = {row["topic"] for row in await scene.rows("outbox", claimed)}
        assert topics == {"task.submitted", "task.cancelled"}

    @pytest.mark.parametrize("how", ENDINGS)
    async def test_its_worker_has_no_say_any_more(self, scene: Scene, how: str) -> None:
        claimed = await scene.running(deadline_us=HOUR)
        await cancel(scene, claimed)
        await ENDINGS[how](scene, claimed)
        before = await scene.store.dump()
        for entry in (scene.success(), scene.step(), scene.intent()):
            assert (await scene.flush(claimed, entry)).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}
        assert (await cancel(scene, claimed)).kind == "already"

    async def test_keeps_what_else_the_worker_says(self, scene: Scene) -> None:
        claimed = await scene.running()
        await cancel(scene, claimed)
        last = (await scene.task(claimed)).last_event
        await scene.write(claimed, scene.step("done"), scene.success(events=(scene.event("mine"),)))
        assert await scene.kinds(claimed, after=last) == ["mine", "attempt.cancelled", "task.cancelled"]
        assert (await scene.operation(claimed, "done")).state == "succeeded"

    async def test_leaves_its_neighbours_in_the_batch(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        await cancel(scene, claimed)
        batch = scene.batch(scene.writes(other, scene.success()), scene.writes(claimed, scene.success()))
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [verdict.state for verdict in verdicts] == ["succeeded", "cancelled"]
        assert (await scene.task(other)).state == "succeeded"
        await cancelled(scene, claimed)

    async def test_completion_before_it_stands(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success())
        assert await cancel(scene, claimed) == CancelReply(kind="ended", state="succeeded")
        assert (await scene.kinds(claimed))[-1] == "task.succeeded"
