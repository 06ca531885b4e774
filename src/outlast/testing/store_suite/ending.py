"""Endings: how an attempt gives back its lease, and what must be there for the task to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.transitions import WAITING_REASONS
from outlast.store.records import Serves, TaskRef
from outlast.store.rows import AttemptRow
from outlast.testing.store_suite.scene import ROUND, SECOND, Scene, changed

FINAL = ("succeeded", "failed", "cancelled")


def final_end(scene: Scene, state: str, **changes: Any) -> Any:
    """Make the ending that leads to a final state."""
    if state == "succeeded":
        return scene.success(**changes)
    return scene.failure(attempt_end=state, task_state=state, **changes)


class TestFinalEndings:
    """``EndAttempt`` into ``succeeded``, ``failed`` and ``cancelled``."""

    @pytest.mark.parametrize("state", FINAL)
    async def test_stores_every_value_in_its_place(self, scene: Scene, state: str) -> None:
        record = await scene.submit(deadline_us=977 * SECOND)
        await scene.write(await scene.claim_task(record), scene.release())
        session = await scene.session()
        claimed = await scene.claim_task(record, session=session)
        began = scene.now
        [lease] = await scene.rows("leases", record)
        scene.pass_time(3 * SECOND)
        end = final_end(scene, state)
        verdict = await scene.write(claimed, end)
        assert verdict.state == state
        assert await scene.rows("results", record) == [
            {
                "tenant": record.tenant,
                "task": record.task,
                "round": ROUND,
                "state": state,
                "result": end.result,
                "error": end.error,
                "effects_open": 0,
                "ended_at": scene.now,
            }
        ]
        task = await scene.task(record)
        assert (task.state, task.reason, task.epoch, task.round) == (state, None, claimed.epoch, ROUND)
        assert (task.result, task.error, task.ended_at) == (end.result, end.error, scene.now)
        assert (task.attempts, task.effects_open) == (2, 0)
        attempts = await scene.store.read_attempts(TaskRef(tenant=record.tenant, task=record.task))
        assert attempts[-1] == AttemptRow(
            epoch=claimed.epoch,
            round=ROUND,
            session=session,
            worker=attempts[-1].worker,
            version="version-77",
            config=lease["config"],
            started_at=began,
            ended_at=scene.now,
            end=state,
        )
        assert attempts[-1].worker.startswith("worker-")

    @pytest.mark.parametrize("state", FINAL)
    async def test_leaves_nothing_that_would_start_it_again(self, scene: Scene, state: str) -> None:
        claimed = await scene.running(deadline_us=977 * SECOND)
        await scene.write(claimed, scene.timer(due_in_us=SECOND), final_end(scene, state))
        for table in ("leases", "queue", "timers"):
            assert await scene.rows(table, claimed) == [], table
        scene.pass_time(5000 * SECOND)
        swept = await scene.sweep()
        assert (swept.woken, swept.expired, swept.lost) == ((), (), ())
        assert (await scene.task(claimed)).state == state

    @pytest.mark.parametrize("state", FINAL)
    async def test_the_final_event_is_the_last(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        last = (await scene.task(claimed)).last_event
        await scene.write(claimed, scene.step(events=(scene.event("e.one"),)))
        await scene.write(
            claimed,
            scene.step(events=(scene.event("e.two"),)),
            final_end(scene, state, events=(scene.event("e.three"), scene.event("e.four"))),
        )
        events = await scene.events(claimed, after=last)
        assert [(event.number, event.kind) for event in events] == [
            (last + 1, "e.one"),
            (last + 2, "e.two"),
            (last + 3, "e.three"),
            (last + 4, "e.four"),
            (last + 5, f"attempt.{state}"),
            (last + 6, f"task.{state}"),
        ]
        assert json.loads(events[-2].data) == {}
        assert json.loads(events[-1].data) == {"effects_open": 0}
        assert {event.epoch for event in events[:-1]} == {claimed.epoch}
        assert (await scene.task(claimed)).last_event == last + 6

    @pytest.mark.parametrize("state", FINAL)
    async def test_running_effects_become_unknown(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        kinds = ("tool", "model", "compensation")
        for kind in kinds:
            await scene.called(claimed, key=f"open-{kind}", kind=kind)
        # Waits are no effects: nothing of them is left to settle.
        waits = ("timer", "signal", "child")
        for kind in waits:
            await scene.write(claimed, scene.wait(kind, f"open-{kind}", due_in_us=SECOND))
        await scene.called(claimed, "succeeded", key="done")
        await scene.called(claimed, "failed", key="declined")
        await scene.called(claimed, "unknown", key="lost")
        await scene.write(claimed, scene.planned(scene.intent("never-sent")))
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, final_end(scene, state))
        states = {key: (await scene.operation(claimed, key)).state for key in ("done", "declined", "lost")}
        assert states == {"done": "succeeded", "declined": "failed", "lost": "unknown"}
        assert (await scene.operation(claimed, "never-sent")).state == "planned"
        for kind in waits:
            assert (await scene.operation(claimed, f"open-{kind}")).state == "running", kind
        opened = {f"open-{kind}" for kind in kinds}
        for key in opened:
            assert (await scene.operation(claimed, key)).state == "unknown", key
        unsettled = await scene.rows("unsettled", claimed)
        assert {row["key"] for row in unsettled} == opened | {"lost"}
        assert {row["since"] for row in unsettled if row["key"] != "lost"} == {scene.now}
        [result] = await scene.rows("results", claimed)
        assert result["effects_open"] == (await scene.task(claimed)).effects_open == 4
        assert json.loads((await scene.events(claimed))[-1].data) == {"effects_open": 4}

    @pytest.mark.parametrize("state", FINAL)
    async def test_an_announced_task_has_a_message_with_its_end(self, scene: Scene, state: str) -> None:
        claimed = await scene.running(announce=True)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, final_end(scene, state))
        begun, ended = sorted(await scene.rows("outbox", claimed), key=lambda row: int(row["number"]))
        assert (begun["topic"], ended["topic"]) == ("task.submitted", f"task.{state}")
        assert (ended["created_at"], ended["parked"]) == (scene.now, None)
        assert isinstance(json.loads(ended["data"]), dict)

    async def test_another_has_none(self, scene: Scene) -> None:
        claimed = await scene.running(announce=False)
        await scene.write(claimed, scene.success())
        assert await scene.rows("outbox", claimed) == []

    async def test_ends_once(self, scene: Scene) -> None:
        claimed = await scene.running(announce=True)
        await scene.write(claimed, scene.success())
        before = await scene.store.dump()
        for end in (scene.success(), scene.failure(), scene.release()):
            assert (await scene.flush(claimed, end)).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}

    async def test_lasts_beyond_its_session(self, scene: Scene) -> None:
        session = await scene.session(ttl_us=31 * SECOND)
        claimed = await scene.running(session=session)
        await scene.write(claimed, scene.success())
        scene.pass_time(32 * SECOND)
        swept = await scene.sweep()
        assert (swept.sessions, swept.lost) == ((session,), ())
        assert (await scene.task(claimed)).state == "succeeded"


class TestSuspensions:
    """``EndAttempt`` into ``waiting``."""

    @pytest.mark.parametrize("reason", ["signal", "approval", "child", "limit", "operator"])
    async def test_waits_for_what_somebody_posts(self, scene: Scene, reason: str) -> None:
        assert reason in WAITING_REASONS
        claimed = await scene.running()
        verdict = await scene.write(claimed, scene.suspension(reason))
        task = await scene.task(claimed)
        assert (verdict.state, task.state, task.reason) == ("waiting", "waiting", reason)
        for table in ("leases", "queue", "timers", "results"):
            assert await scene.rows(table, claimed) == [], table
        [attempt] = await scene.rows("attempts", claimed)
        assert (attempt["end"], attempt["ended_at"]) == ("suspended", scene.now)
        assert (task.result, task.error, task.ended_at) == (None, None, None)

    async def test_says_so_in_its_events(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.suspension("operator", events=(scene.event("mine"),)))
        events = (await scene.events(claimed))[2:]
        assert [event.kind for event in events] == ["mine", "attempt.suspended", "task.waiting"]
        assert json.loads(events[1].data) == {}
        assert json.loads(events[2].data) == {"reason": "operator"}

    async def test_keeps_its_deadline(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=977 * SECOND)
        await scene.write(claimed, scene.suspension("operator"))
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("deadline", claimed.deadline_at)

    async def test_waits_a_time_from_now(self, scene: Scene) -> None:
        claimed = await scene.running()
        scene.pass_time(3 * SECOND)
        verdict = await scene.write(claimed, scene.suspension("timer", wake_in_us=29 * SECOND))
        assert verdict.state == "waiting"
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + 29 * SECOND)

    @pytest.mark.parametrize("first", ["timer", "signal", "child"])
    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_waits_for_the_earliest_of_its_running_waits(
        self, scene: Scene, reason: str, first: str
    ) -> None:
        """Whatever it is said to wait for: a wait that has a time limit is over then."""
        claimed = await scene.running()
        await scene.called(claimed, "unknown")
        over = scene.wait("timer", "over", due_in_us=SECOND)
        await scene.write(
            claimed,
            *(scene.wait(kind, f"late-{kind}", due_in_us=90 * SECOND) for kind in ("timer", "signal")),
            scene.wait(first, "early", due_in_us=19 * SECOND),
            scene.wait("signal", "for-ever"),
            # Steps and calls have no time of their own here, and what is over has none any more.
            scene.step("no-wait", state="planned", result=None, due_in_us=7 * SECOND),
            over,
            replace(over, state="succeeded", result="{}"),
        )
        verdict = await scene.write(claimed, scene.suspension(reason))
        assert verdict.state == "waiting"
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + 19 * SECOND)
        scene.pass_time(19 * SECOND)
        assert [one.task for one in (await scene.sweep()).woken] == [claimed.task]
        [event] = (await scene.events(claimed))[-1:]
        assert (event.kind, json.loads(event.data)) == ("task.woken", {"reason": reason})

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_its_own_word_comes_before_their_times(self, scene: Scene, reason: str) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "unknown")
        await scene.write(claimed, scene.timer(due_in_us=19 * SECOND))
        await scene.write(claimed, scene.suspension(reason, wake_in_us=29 * SECOND))
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + 29 * SECOND)

    @pytest.mark.parametrize(("wake_in_us", "expected"), [(9 * SECOND, 9), (29 * SECOND, 19), (None, 19)])
    async def test_its_own_word_may_be_a_bound(
        self, scene: Scene, wake_in_us: int | None, expected: int
    ) -> None:
        """It was counted from when it was said; what is on record has a time of its own."""
        claimed = await scene.running()
        await scene.write(claimed, scene.timer(due_in_us=19 * SECOND))
        await scene.write(claimed, scene.suspension("timer", wake_in_us=wake_in_us, at_latest=True))
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + expected * SECOND)

    async def test_a_bound_without_waits_on_record_is_when_it_is_over(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.suspension("timer", wake_in_us=9 * SECOND, at_latest=True))
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + 9 * SECOND)

    @pytest.mark.parametrize("wake_in_us", [0, None])
    @pytest.mark.parametrize("kind", ["timer", "signal", "child"])
    async def test_a_wait_that_is_due_queues_it_at_once(
        self, scene: Scene, kind: str, wake_in_us: int | None
    ) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.wait(kind, "due", due_in_us=2 * SECOND))
        scene.pass_time(2 * SECOND)
        reason = kind if kind != "timer" else "operator"
        verdict = await scene.write(claimed, scene.suspension(reason, wake_in_us=wake_in_us))
        await queued_again(scene, claimed, verdict.state, "suspended")

    async def test_for_a_time_that_nothing_tells_it_does_not_wait(self, scene: Scene) -> None:
        claimed = await scene.running()
        verdict = await scene.write(claimed, scene.suspension("timer"))
        await queued_again(scene, claimed, verdict.state, "suspended")

    async def test_waits_for_a_settlement(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "unknown")
        verdict = await scene.write(claimed, scene.suspension("reconciliation"))
        assert verdict.state == "waiting"
        assert (await scene.task(claimed)).reason == "reconciliation"

    async def test_nothing_left_to_settle_queues_it_at_once(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.write(claimed, await scene.outcome(claimed, key, "succeeded"))
        verdict = await scene.write(claimed, scene.suspension("reconciliation"))
        await queued_again(scene, claimed, verdict.state, "suspended")

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_facts_that_it_has_not_seen_queue_it_at_once(self, scene: Scene, reason: str) -> None:
        """No wake-up is lost between what the worker knew and its suspension."""
        claimed = await scene.running()
        open_key = await scene.called(claimed, "unknown")
        settled = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, settled)], now=scene.now)
        assert (await scene.operation(claimed, open_key)).state == "unknown"
        wake = {"wake_in_us": 90 * SECOND} if reason == "timer" else {}
        verdict = await scene.write(claimed, scene.suspension(reason, facts=claimed.facts, **wake))
        await queued_again(scene, claimed, verdict.state, "suspended")

    async def test_facts_that_it_has_seen_do_not(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        verdict = await scene.write(claimed, scene.suspension("operator", facts=claimed.facts + 1))
        assert verdict.state == "waiting"

    async def test_the_next_claim_knows_the_facts(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.write(claimed, scene.release())
        again = await scene.claim_task(record)
        assert again.facts == claimed.facts + 1
        verdict = await scene.write(again, scene.suspension("operator", facts=again.facts))
        assert verdict.state == "waiting"

    async def test_a_failed_attempt_may_wait_for_its_next(self, scene: Scene) -> None:
        """The agent's retry policy: the attempt failed, the task did not."""
        claimed = await scene.running()
        end = scene.failure(task_state="waiting", reason="timer", wake_in_us=29 * SECOND)
        verdict = await scene.write(claimed, end)
        assert verdict.state == "waiting"
        [attempt] = await scene.rows("attempts", claimed)
        assert attempt["end"] == "failed"
        assert await scene.rows("results", claimed) == []
        assert (await scene.kinds(claimed))[-2:] == ["attempt.failed", "task.waiting"]


class TestReleases:
    """``EndAttempt`` into ``queued``."""

    async def test_goes_back_to_the_queue(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=977 * SECOND)
        verdict = await scene.write(claimed, scene.release(events=(scene.event("mine"),)))
        await queued_again(scene, claimed, verdict.state, "released")
        assert [timer["kind"] for timer in await scene.rows("timers", claimed)] == ["deadline"]
        events = (await scene.events(claimed))[2:5]
        assert [event.kind for event in events] == ["mine", "attempt.released", "task.queued"]
        assert [json.loads(event.data) for event in events[1:]] == [{}, {}]

    async def test_keeps_its_journal(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, scene.step("done"))
        before = await scene.rows("operations", claimed)
        await scene.write(claimed, scene.release())
        assert await scene.rows("operations", claimed) == before
        assert (await scene.operation(claimed, key)).state == "running"

    async def test_opens_failed_operations_again(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        again = scene.intent("again")
        await scene.write(claimed, again)
        await scene.write(claimed, await scene.outcome(claimed, "again", "failed"))
        for key, state in (("stays", "failed"), ("done", "succeeded"), ("lost", "unknown")):
            await scene.called(claimed, state, key=key)  # type: ignore[arg-type]
        was = {row["key"]: row for row in await scene.rows("operations", claimed)}
        end = scene.failure(task_state="queued", error=None, reopen=("again", "done", "lost", "missing"))
        await scene.write(claimed, end)
        now = {row["key"]: row for row in await scene.rows("operations", claimed)}
        assert {key: row["state"] for key, row in now.items()} == {
            "again": "planned",
            "stays": "failed",
            "done": "succeeded",
            "lost": "unknown",
        }
        assert {key: now[key] for key in ("stays", "done", "lost")} == {
            key: was[key] for key in ("stays", "done", "lost")
        }
        row = await scene.operation(record, "again")
        assert (row.attempt, row.first_intent_at, row.error) == (1, was["again"]["first_intent_at"], None)
        successor = await scene.claim_task(record)
        await scene.write(successor, replace(again, attempt=row.attempt, turn=row.turn))
        row = await scene.operation(record, "again")
        assert (row.state, row.attempt, row.epoch) == ("running", 2, successor.epoch)

    async def test_is_claimed_after_those_that_waited_longer(self, scene: Scene) -> None:
        await scene.accept([scene.submission(agent="agent-x", pool="pool-x", version="v") for _ in range(3)])
        session, serves = await scene.session(), [Serves(agent="agent-x", version="v")]
        [first] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
        await scene.write(first, scene.release())
        rest = await scene.claim(session, pools=["pool-x"], serves=serves, limit=3)
        assert [claimed.task for claimed in rest.claims][-1] == first.task


async def queued_again(scene: Scene, claimed: Any, verdict_state: str, end: str) -> None:
    """Demand that a task is in the queue, its lease is gone, and that it can be claimed once more."""
    task = await scene.task(claimed)
    assert (verdict_state, task.state, task.reason) == ("queued", "queued", None)
    assert await scene.rows("leases", claimed) == []
    assert len(await scene.rows("queue", claimed)) == 1
    assert [timer for timer in await scene.rows("timers", claimed) if timer["kind"] == "wake"] == []
    assert [attempt["end"] for attempt in await scene.rows("attempts", claimed)] == [end]
    [inputs] = await scene.rows("inputs", claimed)
    reply = await scene.claim(
        await scene.session(),
        pools=[inputs["pool"]],
        serves=[Serves(agent=inputs["agent"], version=claimed.version)],
        limit=5,
    )
    assert [(one.task, one.epoch) for one in reply.claims] == [(claimed.task, claimed.epoch + 1)]
    await scene.write(reply.claims[0], scene.release())
