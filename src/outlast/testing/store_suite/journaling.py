"""Flush: the fence, the numbers of its writer, and the entries that make no call and end nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.store.contract import BatchRejected
from outlast.store.entries import (
    AppendEvents,
    Batch,
    CommitIntent,
    Flushed,
    Note,
    RecordOutcome,
    TakeTurn,
    TaskWrites,
)
from outlast.store.records import OperationRow, Serves
from outlast.store.rows import EvidenceRow
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed, refused


class TestFence:
    """What ``flush`` compares before it writes."""

    async def test_a_current_lease_is_accepted(self, scene: Scene) -> None:
        claimed = await scene.running()
        assert await scene.flush(claimed, scene.step()) == Flushed(
            kind="accepted", refusals=(), state="running"
        )

    @pytest.mark.parametrize("other", [-1, 1, 40])
    async def test_another_epoch_is_stale(self, scene: Scene, other: int) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        verdict = await scene.flush(replace(claimed, epoch=claimed.epoch + other), scene.step())
        assert verdict.kind == "stale"
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_task_that_is_not_there_is_stale(self, scene: Scene) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        for stranger in (
            replace(claimed, tenant="tenant-other"),
            replace(claimed, task=scene.submission().task),
        ):
            assert (await scene.flush(stranger, scene.step())).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_lease_given_back_is_stale(self, scene: Scene) -> None:
        for end in (
            scene.success(),
            scene.failure(),
            scene.release(),
            scene.suspension("operator"),
            scene.failure(attempt_end="cancelled", task_state="cancelled"),
        ):
            claimed = await scene.running()
            await scene.write(claimed, end)
            before = await scene.store.dump()
            assert (await scene.flush(claimed, scene.step())).kind == "stale"
            assert changed(before, await scene.store.dump()) == {}

    async def test_a_lease_swept_away_is_stale(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.lose(claimed)
        before = await scene.store.dump()
        assert (await scene.flush(claimed, scene.step())).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_session_that_ran_out_but_was_not_swept_still_writes(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=31 * SECOND)
        scene.pass_time(HOUR)
        assert (await scene.flush(claimed, scene.step())).kind == "accepted"

    async def test_a_fenced_out_task_does_not_fail_its_neighbours(self, scene: Scene) -> None:
        first, stale, last = [await scene.running() for _ in range(3)]
        writes = [
            scene.writes(first, scene.step("a")),
            scene.writes(replace(stale, epoch=stale.epoch + 1), scene.step("b")),
            scene.writes(last, scene.step("c")),
        ]
        verdicts = await scene.store.flush(scene.batch(*writes), now=scene.now)
        assert [verdict.kind for verdict in verdicts] == ["accepted", "stale", "accepted"]
        dump = await scene.store.dump()
        assert {(row["task"], row["key"]) for row in dump["operations"]} == {
            (first.task, "a"),
            (last.task, "c"),
        }

    @pytest.mark.parametrize("stale_first", [True, False])
    async def test_two_leases_of_one_task_may_be_in_a_batch(self, scene: Scene, stale_first: bool) -> None:
        """A worker that lost a task and has it again has both on their way."""
        record = await scene.submit()
        stale = await scene.claim_task(record)
        await scene.lose(stale)
        current, other = await scene.claim_task(record), await scene.running()
        writes = [
            scene.writes(stale, *(scene.step() for _ in range(5)), scene.failure()),
            scene.writes(other, scene.step("c")),
            scene.writes(current, *(scene.step(key) for key in "abdef"), scene.success()),
        ]
        verdicts = await scene.store.flush(
            scene.batch(*(writes if stale_first else writes[::-1])), now=scene.now
        )
        kinds = [verdict.kind for verdict in verdicts]
        assert (kinds if stale_first else kinds[::-1]) == ["stale", "accepted", "accepted"]
        assert (await scene.task(record)).state == "succeeded"
        assert sorted(row["key"] for row in await scene.rows("operations", record)) == list("abdef")

    async def test_verdicts_come_in_the_order_of_the_batch(self, scene: Scene) -> None:
        claims = [await scene.running() for _ in range(6)]
        shuffled = [claims[i] for i in (4, 1, 5, 0, 3, 2)]
        writes = [
            scene.writes(one, scene.success() if place % 2 else scene.release())
            for place, one in enumerate(shuffled)
        ]
        verdicts = await scene.store.flush(scene.batch(*writes), now=scene.now)
        assert [verdict.state for verdict in verdicts] == ["queued", "succeeded"] * 3

    async def test_entries_of_one_task_are_written_in_order(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent("call")
        verdict = await scene.write(
            claimed,
            scene.planned(intent),
            replace(intent, events=(scene.event("operation.started"),)),
            RecordOutcome(key="call", attempt=1, turn=1, state="unknown", error="{}"),
            TakeTurn(key="call", attempt=1, turn=2),
            RecordOutcome(key="call", attempt=1, turn=3, state="succeeded", result='{"r": 1}'),
            scene.success(),
        )
        assert verdict.state == "succeeded"
        row = await scene.operation(claimed, "call")
        assert (row.state, row.attempt, row.turn, row.result) == ("succeeded", 1, 4, '{"r": 1}')


class TestWriters:
    """A batch is applied once, whatever its writer has to do to be sure."""

    async def test_a_batch_sent_again_answers_its_recorded_verdicts(self, scene: Scene) -> None:
        one, two, gone = [await scene.running() for _ in range(3)]
        batch = scene.batch(
            scene.writes(one, scene.step(events=(scene.event(),)), scene.intent("call", attempt=4)),
            scene.writes(replace(gone, epoch=9), scene.step()),
            scene.writes(two, scene.suspension("operator")),
        )
        first = await scene.store.flush(batch, now=scene.now)
        assert first == [
            Flushed(kind="accepted", refusals=((1, "not_planned"),), state="running"),
            replace(first[1], kind="stale"),
            Flushed(kind="accepted", refusals=(), state="waiting"),
        ]
        before = await scene.store.dump()
        for _ in range(2):
            assert await scene.store.flush(batch, now=scene.now + SECOND) == first
        assert changed(before, await scene.store.dump(), ignoring=()) == {}

    async def test_it_is_the_number_that_counts(self, scene: Scene) -> None:
        """The same (writer, number) with other content is the same batch: it was applied."""
        claimed = await scene.running()
        batch = scene.batch(scene.writes(claimed, scene.step()))
        first = await scene.store.flush(batch, now=scene.now)
        before = await scene.store.dump()
        other = replace(batch, writes=(scene.writes(claimed, scene.success()),))
        assert await scene.store.flush(other, now=scene.now) == first
        assert changed(before, await scene.store.dump()) == {}

    async def test_each_writer_counts_for_itself(self, scene: Scene) -> None:
        claimed = await scene.running()
        for writer in ("wr_red", "wr_blue"):
            for _ in range(3):
                batch = scene.batch(scene.writes(claimed, scene.step()), writer=writer)
                [verdict] = await scene.store.flush(batch, now=scene.now)
                assert verdict.kind == "accepted"
        dump = await scene.store.dump()
        assert {row["id"]: row["number"] for row in dump["writers"]} == {"wr_red": 3, "wr_blue": 3}
        assert len(dump["operations"]) == 6

    async def test_a_number_out_of_turn_is_refused(self, scene: Scene) -> None:
        """Neither a batch that skips a number nor one whose verdicts are no longer kept is applied."""
        claimed = await scene.running()
        for _ in range(3):
            await scene.write(claimed, scene.step())
        before = await scene.store.dump()
        for number in (1, 2, 5, 9):
            async with refused(f"batch {number} after batch 3"):
                await scene.store.flush(
                    Batch(writer=scene.writer, number=number, writes=(scene.writes(claimed, scene.step()),)),
                    now=scene.now,
                )
        assert changed(before, await scene.store.dump(), ignoring=()) == {}

    async def test_a_batch_that_cannot_be_stored_writes_nothing_and_may_be_sent_corrected(
        self, scene: Scene
    ) -> None:
        one, two = await scene.running(), await scene.running()
        before = await scene.store.dump()
        wrong = replace(scene.intent(), effect="nonsense")  # type: ignore[arg-type]
        batch = scene.batch(scene.writes(one, scene.step(events=(scene.event(),))), scene.writes(two, wrong))
        with pytest.raises(BatchRejected) as refusal:
            await scene.store.flush(batch, now=scene.now)
        # What is in a batch may be secret; the text says what is wrong and holds none of it.
        assert str(refusal.value)
        for value in (wrong.arguments, wrong.request, wrong.key, one.task):
            assert value not in str(refusal.value)
        assert changed(before, await scene.store.dump(), ignoring=()) == {}
        corrected = replace(batch, writes=batch.writes[:1])
        [verdict] = await scene.store.flush(corrected, now=scene.now)
        assert verdict.kind == "accepted"

    async def test_nothing_comes_after_the_end_of_an_attempt(self, scene: Scene) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        batch = scene.batch(scene.writes(claimed, scene.suspension("signal"), scene.step()))
        with pytest.raises(BatchRejected, match="entry 1 comes after the end of its attempt"):
            await scene.store.flush(batch, now=scene.now)
        assert changed(before, await scene.store.dump(), ignoring=()) == {}

    async def test_a_batch_of_nothing_takes_its_number(self, scene: Scene) -> None:
        batch = scene.batch()
        assert await scene.store.flush(batch, now=scene.now) == []
        assert await scene.store.flush(batch, now=scene.now) == []
        claimed = await scene.running()
        await scene.write(claimed, scene.step())
        batch = scene.batch()
        assert await scene.store.flush(batch, now=scene.now) == []
        await scene.write(claimed, scene.step())

    async def test_a_batch_of_stale_writes_takes_its_number(self, scene: Scene) -> None:
        claimed = await scene.running()
        batch = scene.batch(scene.writes(replace(claimed, epoch=9), scene.step()))
        first = await scene.store.flush(batch, now=scene.now)
        assert await scene.store.flush(batch, now=scene.now) == first
        await scene.write(claimed, scene.step())

    async def test_many_tasks_fit_in_one_batch(self, scene: Scene) -> None:
        records = [scene.submission(agent="agent-x", pool="pool-x") for _ in range(200)]
        await scene.accept(records)
        reply = await scene.claim(
            await scene.session(), pools=["pool-x"], serves=[Serves(agent="agent-x", version="v")], limit=200
        )
        writes = [
            scene.writes(c, scene.step("a", events=(scene.event(),)), scene.step("b"), scene.success())
            for c in reply.claims
        ]
        verdicts = await scene.store.flush(scene.batch(*writes), now=scene.now)
        assert verdicts == [Flushed(kind="accepted", refusals=(), state="succeeded")] * 200
        dump = await scene.store.dump()
        assert (len(dump["operations"]), len(dump["results"]), len(dump["leases"])) == (400, 200, 0)


class TestRecordOperation:
    """Entries that need no intent."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.write(await scene.claim_task(record), scene.release())
        claimed = await scene.claim_task(record)
        scene.pass_time(3 * SECOND)
        step = scene.step(error=scene.text("error"))
        await scene.write(claimed, step)
        assert await scene.operation(claimed, step.key) == OperationRow(
            tenant=claimed.tenant,
            task=claimed.task,
            key=step.key,
            position=step.position,
            kind="step",
            name=step.name,
            state="succeeded",
            request=step.request,
            decision=None,
            effect=None,
            attempt=0,
            turn=0,
            epoch=claimed.epoch,
            arguments=step.arguments,
            result=step.result,
            error=step.error,
            created_at=scene.now,
            intent_at=None,
            first_intent_at=None,
            deadline_at=None,
            due_at=None,
            ended_at=scene.now,
            settled_by=None,
        )

    async def test_of_many_at_once_each_meets_what_is_on_record_of_it(self, scene: Scene) -> None:
        one, other = await scene.running(), await scene.running()
        timer = scene.timer("timer", due_in_us=HOUR)
        await scene.write(
            one, scene.step("over", result='"first"'), timer, scene.step("gone", state="planned")
        )
        last = (await scene.task(one)).last_event
        steps = [
            scene.step(key, result='"second"', events=(scene.event(f"said.{key}"),))
            for key in ("new", "over", "timer", "gone", "newer")
        ]
        batch = scene.batch(
            scene.writes(other, scene.step("a"), scene.step("b")), scene.writes(one, *steps, scene.success())
        )
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [(one.kind, one.refusals) for one in verdicts] == [("accepted", ())] * 2
        results = {row["key"]: row["result"] for row in await scene.rows("operations", one)}
        assert results == dict.fromkeys(("new", "timer", "gone", "newer"), '"second"') | {"over": '"first"'}
        said = [kind for kind in await scene.kinds(one, after=last) if kind.startswith("said.")]
        assert said == [f"said.{step.key}" for step in steps]
        assert {row["key"] for row in await scene.rows("operations", other)} == {"a", "b"}

    @pytest.mark.parametrize("kind", ["step", "model", "tool", "timer", "signal", "child", "value"])
    async def test_takes_any_kind(self, scene: Scene, kind: str) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.step("it", kind=kind))
        assert (await scene.operation(claimed, "it")).kind == kind

    async def test_a_failed_one_keeps_its_error(self, scene: Scene) -> None:
        claimed = await scene.running()
        step = scene.step(state="failed", result=None, error=scene.text("error"))
        await scene.write(claimed, step)
        row = await scene.operation(claimed, step.key)
        assert (row.state, row.error, row.result, row.ended_at) == ("failed", step.error, None, scene.now)

    async def test_a_timer_is_due_after_now_or_at_an_instant(self, scene: Scene) -> None:
        claimed = await scene.running()
        scene.pass_time(3 * SECOND)
        await scene.write(
            claimed,
            scene.timer("relative", due_in_us=17 * SECOND),
            scene.timer("absolute", due_at=scene.now + 19 * SECOND),
        )
        relative = await scene.operation(claimed, "relative")
        absolute = await scene.operation(claimed, "absolute")
        assert (relative.state, relative.due_at) == ("running", scene.now + 17 * SECOND)
        assert (absolute.state, absolute.due_at) == ("running", scene.now + 19 * SECOND)
        assert (relative.ended_at, absolute.ended_at) == (None, None)

    async def test_a_timer_ends_by_a_second_record(self, scene: Scene) -> None:
        claimed = await scene.running()
        timer = scene.timer("nap", due_in_us=17 * SECOND)
        await scene.write(claimed, timer)
        began = scene.now
        scene.pass_time(17 * SECOND)
        await scene.write(
            claimed, replace(timer, state="succeeded", result='{"slept": 17}', due_in_us=None, due_at=None)
        )
        row = await scene.operation(claimed, "nap")
        assert (row.state, row.result, row.ended_at) == ("succeeded", '{"slept": 17}', scene.now)
        assert (row.created_at, row.position) == (began, timer.position)

    async def test_a_final_entry_is_not_replaced(self, scene: Scene) -> None:
        claimed = await scene.running()
        done = scene.step("done")
        failed = scene.step("failed", state="failed", result=None, error=scene.text("error"))
        await scene.write(claimed, done, failed)
        rows = [await scene.operation(claimed, key) for key in ("done", "failed")]
        assert (await scene.flush(claimed, scene.step("done"), scene.step("failed"))).kind == "accepted"
        assert [await scene.operation(claimed, key) for key in ("done", "failed")] == rows

    async def test_a_planned_call_has_no_attempt_yet(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, scene.planned(intent))
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.kind, row.name) == ("planned", "tool", intent.name)
        assert (row.attempt, row.turn, row.intent_at, row.ended_at) == (0, 0, None, None)

    async def test_a_planned_call_may_end_as_failed_without_an_intent(self, scene: Scene) -> None:
        """Refused by policy, or its time was over."""
        claimed = await scene.running()
        intent = scene.intent()
        planned = scene.planned(intent)
        await scene.write(claimed, planned)
        await scene.write(claimed, replace(planned, state="failed", error=scene.text("error")))
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.attempt, row.intent_at, row.ended_at) == ("failed", 0, None, scene.now)

    @pytest.mark.parametrize("state", ["running", "unknown"])
    async def test_does_not_replace_an_attempt_that_has_begun(self, scene: Scene, state: str) -> None:
        """What was sent ends by an outcome, which compares attempt and turn; a record compares nothing.

        The table of operations says so too: nothing but ``settle`` takes an unknown further.
        """
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        if state == "unknown":
            await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        row = await scene.operation(claimed, intent.key)
        unsettled = await scene.rows("unsettled", claimed)
        await scene.flush(claimed, scene.planned(intent, state="failed", error=scene.text("error")))
        await scene.flush(claimed, scene.planned(intent, state="succeeded", result=scene.text("result")))
        assert await scene.operation(claimed, intent.key) == row
        assert await scene.rows("unsettled", claimed) == unsettled

    async def test_refusing_a_call_that_backed_off_keeps_its_attempts(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        was = await scene.operation(claimed, intent.key)
        error = scene.text("error")
        await scene.write(claimed, scene.planned(intent, state="failed", error=error))
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.error, row.attempt) == ("failed", error, 1)
        assert (row.first_intent_at, row.effect, row.decision) == (
            was.first_intent_at,
            was.effect,
            was.decision,
        )

    async def test_one_key_in_two_tasks_is_two_operations(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        await scene.write(one, scene.step("same", result='{"of": "one"}'))
        await scene.write(two, scene.step("same", result='{"of": "two"}'))
        assert (await scene.operation(one, "same")).result == '{"of": "one"}'
        assert (await scene.operation(two, "same")).result == '{"of": "two"}'

    async def test_a_value_of_a_megabyte_is_kept(self, scene: Scene) -> None:
        claimed = await scene.running()
        large = '{"x": "' + "é" * 500_000 + '"}'
        await scene.write(claimed, scene.step("large", result=large))
        assert (await scene.operation(claimed, "large")).result == large


class TestEventsAndNotes:
    """Entries that change no operation."""

    async def test_events_have_dense_numbers_across_batches(self, scene: Scene) -> None:
        claimed = await scene.running()
        mine = [scene.event(f"kind.{i}") for i in range(6)]
        await scene.write(claimed, AppendEvents(events=tuple(mine[:2])), scene.step(events=(mine[2],)))
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, AppendEvents(events=tuple(mine[3:])))
        events = await scene.events(claimed)
        assert [event.number for event in events] == list(range(1, 9))
        assert [(event.kind, event.data) for event in events[2:]] == [(e.kind, e.data) for e in mine]
        assert {event.epoch for event in events[1:]} == {claimed.epoch}
        assert [event.at for event in events[5:]] == [scene.now] * 3
        assert (await scene.task(claimed)).last_event == 8

    async def test_events_of_one_batch_are_counted_task_by_task(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        batch = scene.batch(
            scene.writes(two, AppendEvents(events=(scene.event("two.a"), scene.event("two.b")))),
            scene.writes(one, AppendEvents(events=(scene.event("one.a"),))),
        )
        await scene.store.flush(batch, now=scene.now)
        assert [(e.number, e.kind) for e in await scene.events(two, 2)] == [(3, "two.a"), (4, "two.b")]
        assert [(e.number, e.kind) for e in await scene.events(one, 2)] == [(3, "one.a")]

    async def test_what_is_refused_leaves_no_hole_in_any_task_of_its_batch(self, scene: Scene) -> None:
        """Some go on, some end, and each may have something refused in front of what it says."""
        ends, waits, goes, speaks, is_silent, gone = [await scene.running() for _ in range(6)]
        refused = scene.intent("refused", attempt=1, events=(scene.event("never.said"),))
        late = replace(gone, epoch=gone.epoch + 1)
        said = AppendEvents(events=(scene.event("a"), scene.event("b")))
        batch = scene.batch(
            scene.writes(ends, refused, said, scene.success(events=(scene.event("last"),))),
            scene.writes(waits, scene.intent("call", events=(scene.event("c"),)), scene.suspension("signal")),
            scene.writes(goes, said, refused, scene.step(events=(scene.event("c"),))),
            scene.writes(late, said),
            scene.writes(speaks, said),
            scene.writes(is_silent, refused),
        )
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [one.kind for one in verdicts] == [*["accepted"] * 3, "stale", *["accepted"] * 2]
        for task, kinds in (
            (ends, ["a", "b", "last", "attempt.succeeded", "task.succeeded"]),
            (waits, ["c", "attempt.suspended", "task.waiting"]),
            (goes, ["a", "b", "c"]),
            (speaks, ["a", "b"]),
            (is_silent, []),
            (gone, []),
        ):
            events = await scene.events(task, after=2)
            assert [event.kind for event in events] == kinds
            assert [event.number for event in events] == list(range(3, 3 + len(kinds)))
            assert (await scene.task(task)).last_event == 2 + len(kinds)

    async def test_a_note_is_evidence_and_nothing_else(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.store.dump()
        scene.pass_time(3 * SECOND)
        one, two = scene.text("one"), scene.text("two")
        await scene.write(
            claimed,
            Note(key=key, attempt=1, source="asked", data=one),
            Note(key=key, attempt=2, source="answered", data=two),
        )
        rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert [replace(row, number=0) for row in rows] == [
            EvidenceRow(number=0, attempt=1, source="asked", data=one, at=scene.now),
            EvidenceRow(number=0, attempt=2, source="answered", data=two, at=scene.now),
        ]
        assert rows[0].number < rows[1].number
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_flush_is_by_the_databases_clock_in_production(self, scene: Scene) -> None:
        claimed = await scene.running()
        clock = (await scene.store.health()).now
        intent: CommitIntent = scene.intent(timeout_us=11 * SECOND)
        writes = TaskWrites(tenant=claimed.tenant, task=claimed.task, epoch=claimed.epoch, entries=(intent,))
        await scene.store.flush(scene.batch(writes))
        row = await scene.operation(claimed, intent.key)
        assert row.intent_at is not None
        assert clock <= row.intent_at <= clock + 60 * SECOND
        assert row.deadline_at == row.intent_at + 11 * SECOND
