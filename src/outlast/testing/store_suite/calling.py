"""What the journal takes of a call: its intent, its outcome, and its next turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.store.entries import AppendEvents, RecordOutcome, TakeTurn
from outlast.store.records import OperationRow
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed


class TestCommitIntent:
    """The gate before a call."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.write(await scene.claim_task(record), scene.release())
        await scene.write(await scene.claim_task(record), scene.release())
        claimed = await scene.claim_task(record)
        scene.pass_time(3 * SECOND)
        intent = scene.intent(timeout_us=11 * SECOND, visible_us=7 * SECOND)
        assert (await scene.flush(claimed, intent)).refusals == ()
        assert await scene.operation(claimed, intent.key) == OperationRow(
            tenant=claimed.tenant,
            task=claimed.task,
            key=intent.key,
            position=intent.position,
            kind="tool",
            name=intent.name,
            state="running",
            request=intent.request,
            decision=intent.decision,
            effect="keyed",
            attempt=1,
            turn=1,
            epoch=claimed.epoch,
            arguments=intent.arguments,
            result=None,
            error=None,
            created_at=scene.now,
            intent_at=scene.now,
            first_intent_at=scene.now,
            deadline_at=scene.now + 11 * SECOND,
            visible_at=scene.now + 18 * SECOND,
            due_at=None,
            ended_at=None,
            settled_by=None,
        )

    @pytest.mark.parametrize("effect", ["read", "idempotent", "keyed", "queryable", "manual"])
    async def test_takes_any_effect_class(self, scene: Scene, effect: str) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.intent("call", effect=effect))
        assert (await scene.operation(claimed, "call")).effect == effect

    async def test_admits_a_planned_call(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, scene.planned(intent))
        began = scene.now
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, intent)
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.attempt, row.turn, row.created_at) == ("running", 1, 1, began)
        assert (row.intent_at, row.first_intent_at, row.decision) == (scene.now, scene.now, intent.decision)
        assert (row.effect, row.deadline_at) == ("keyed", scene.now + intent.timeout_us)

    async def test_admits_the_next_attempt_after_a_back_off(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        intent = scene.intent()
        await scene.write(claimed, intent)
        first = scene.now
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        await scene.write(claimed, scene.release())
        claimed = await scene.claim_task(record)
        scene.pass_time(3 * SECOND)
        row = await scene.operation(claimed, intent.key)
        assert (row.attempt, row.turn) == (1, 2)
        await scene.write(claimed, replace(intent, attempt=1, turn=2, timeout_us=23 * SECOND))
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.attempt, row.turn, row.epoch) == ("running", 2, 3, claimed.epoch)
        assert (row.first_intent_at, row.intent_at) == (first, scene.now)
        assert row.deadline_at == scene.now + 23 * SECOND

    async def test_is_never_later_than_the_tasks_deadline(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=977 * SECOND)
        await scene.write(claimed, scene.intent("call", timeout_us=HOUR))
        assert (await scene.operation(claimed, "call")).deadline_at == claimed.deadline_at

    async def test_is_refused_when_the_tasks_time_is_over(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND, ttl_us=HOUR)
        assert claimed.deadline_at is not None
        scene.now = claimed.deadline_at
        planned = scene.intent("planned")
        await scene.write(claimed, scene.planned(planned))
        before = await scene.store.dump()
        for intent in (scene.intent("new", events=(scene.event(),)), planned):
            verdict = await scene.flush(claimed, intent)
            assert (verdict.kind, verdict.refusals) == ("accepted", ((0, "deadline"),))
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_admitted_up_to_the_tasks_deadline(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND, ttl_us=HOUR)
        assert claimed.deadline_at is not None
        scene.now = claimed.deadline_at - 1
        await scene.write(claimed, scene.intent())

    @pytest.mark.parametrize("state", ["running", "succeeded", "failed", "unknown"])
    async def test_is_refused_unless_planned(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        if state != "running":
            await scene.write(claimed, await scene.outcome(claimed, intent.key, state))  # type: ignore[arg-type]
        row = await scene.operation(claimed, intent.key)
        assert row.state == state
        before = await scene.store.dump()
        for attempt, turn in ((0, 0), (row.attempt, row.turn)):
            again = replace(intent, attempt=attempt, turn=turn, events=(scene.event(),))
            assert (await scene.flush(claimed, again)).refusals == ((0, "not_planned"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_refused_for_another_attempt_or_turn(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        before = await scene.store.dump()
        for attempt, turn in ((0, 0), (1, 1), (1, 3), (0, 2), (2, 2)):
            again = replace(intent, attempt=attempt, turn=turn)
            assert (await scene.flush(claimed, again)).refusals == ((0, "not_planned"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_refused_where_there_is_news_that_was_not_heard(self, scene: Scene) -> None:
        """Only of those who say what they have heard; the ledger's own word comes first."""
        claimed = await scene.running()
        [posted] = await scene.store.post([scene.signal(claimed)], now=scene.now)
        heard = posted.number
        assert heard is not None
        before = await scene.store.dump()
        deaf, wrong = scene.intent("deaf", heard=heard - 1), scene.intent("wrong", heard=heard - 1, attempt=1)
        assert (await scene.flush(claimed, deaf)).refusals == ((0, "news"),)
        assert (await scene.flush(claimed, wrong)).refusals == ((0, "not_planned"),)
        assert changed(before, await scene.store.dump()) == {}
        for intent in (replace(deaf, heard=heard), scene.intent("says-nothing")):
            assert (await scene.flush(claimed, intent)).refusals == ()

    @pytest.mark.parametrize(("attempt", "turn"), [(1, 0), (0, 1), (3, 5)])
    async def test_a_new_operation_begins_at_nought(self, scene: Scene, attempt: int, turn: int) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        verdict = await scene.flush(claimed, scene.intent(attempt=attempt, turn=turn))
        assert verdict.refusals == ((0, "not_planned"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_of_two_intents_of_one_call_in_a_batch_one_is_admitted(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        verdict = await scene.flush(claimed, intent, replace(intent, arguments="{}"))
        assert verdict.refusals == ((1, "not_planned"),)
        row = await scene.operation(claimed, intent.key)
        assert (row.attempt, row.arguments) == (1, intent.arguments)

    async def test_a_refused_one_does_not_undo_its_neighbours(self, scene: Scene) -> None:
        claimed = await scene.running()
        last = (await scene.task(claimed)).last_event
        verdict = await scene.flush(
            claimed,
            scene.step("before", events=(scene.event("e.one"),)),
            scene.intent("refused", attempt=1, events=(scene.event("e.two"),)),
            scene.intent("admitted", events=(scene.event("e.three"),)),
            scene.intent("refused-too", turn=1, events=(scene.event("e.four"),)),
            AppendEvents(events=(scene.event("e.five"),)),
        )
        assert (verdict.kind, verdict.refusals) == ("accepted", ((1, "not_planned"), (3, "not_planned")))
        events = await scene.events(claimed, after=last)
        assert [(e.number, e.kind) for e in events] == [
            (last + 1, "e.one"),
            (last + 2, "e.three"),
            (last + 3, "e.five"),
        ]


class TestRecordOutcome:
    """How an attempt ended, by compare-and-set."""

    async def test_succeeded(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        was = await scene.operation(claimed, key)
        scene.pass_time(3 * SECOND)
        outcome = await scene.outcome(claimed, key, "succeeded")
        await scene.write(claimed, outcome)
        assert await scene.operation(claimed, key) == replace(
            was, state="succeeded", turn=2, result=outcome.result, ended_at=scene.now
        )

    async def test_failed(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        was = await scene.operation(claimed, key)
        scene.pass_time(3 * SECOND)
        outcome = await scene.outcome(claimed, key, "failed")
        await scene.write(claimed, outcome)
        assert await scene.operation(claimed, key) == replace(
            was, state="failed", turn=2, error=outcome.error, ended_at=scene.now
        )

    async def test_unknown_goes_into_the_reconciliation_queue(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        scene.pass_time(3 * SECOND)
        outcome = await scene.outcome(claimed, key, "unknown")
        await scene.write(claimed, outcome)
        row = await scene.operation(claimed, key)
        assert (row.state, row.attempt, row.turn, row.error) == ("unknown", 1, 2, outcome.error)
        assert (row.result, row.settled_by) == (None, None)
        [queued] = await scene.rows("unsettled", claimed)
        assert (queued["key"], queued["since"]) == (key, scene.now)
        assert (await scene.task(claimed)).effects_open == 1

    async def test_still_unknown_stays_in_the_queue_since_it_came(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.rows("unsettled", claimed)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown"))
        assert ((await scene.operation(claimed, key)).state, (await scene.operation(claimed, key)).turn) == (
            "unknown",
            3,
        )
        assert await scene.rows("unsettled", claimed) == before

    async def test_planned_puts_the_call_back(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "planned"))
        row = await scene.operation(claimed, key)
        assert (row.state, row.attempt, row.turn, row.result, row.ended_at) == ("planned", 1, 2, None, None)
        assert await scene.rows("unsettled", claimed) == []

    async def test_an_unknown_call_is_not_put_back(self, scene: Scene) -> None:
        """It leaves the reconciliation queue by an outcome, or by the very intent of a resend."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.store.dump()
        outcome = await scene.outcome(claimed, key, "planned", events=(scene.event(),))
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["succeeded", "failed"])
    async def test_evidence_takes_an_unknown_out_of_the_queue(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        scene.pass_time(3 * SECOND)
        outcome = await scene.outcome(claimed, key, state, settled_by="worker")  # type: ignore[arg-type]
        await scene.write(claimed, outcome)
        row = await scene.operation(claimed, key)
        assert (row.state, row.turn, row.settled_by, row.result) == (state, 3, "worker", outcome.result)
        assert await scene.rows("unsettled", claimed) == []
        assert (await scene.task(claimed)).effects_open == 0

    @pytest.mark.parametrize("state", ["planned", "succeeded", "failed"])
    async def test_is_refused_unless_the_attempt_is_open(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)  # type: ignore[arg-type]
        before = await scene.store.dump()
        for target in ("succeeded", "failed", "unknown", "planned"):
            outcome = await scene.outcome(claimed, key, target, events=(scene.event(),))
            assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_refused_for_another_attempt_or_turn(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.store.dump()
        for attempt, turn in ((0, 2), (2, 2), (1, 1), (1, 3), (0, 0)):
            outcome = await scene.outcome(claimed, key, "succeeded", attempt=attempt, turn=turn)
            assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_an_answer_of_an_earlier_attempt_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        late = await scene.outcome(claimed, intent.key, "succeeded")
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        await scene.write(claimed, replace(intent, attempt=1, turn=2))
        before = await scene.store.dump()
        assert (await scene.flush(claimed, late)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_of_an_operation_that_is_not_there_is_refused(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        await scene.called(other, key="theirs")
        outcome = RecordOutcome(key="theirs", attempt=1, turn=1, state="succeeded", result="{}")
        before = await scene.store.dump()
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_successor_may_record_the_outcome_of_a_lost_attempt(self, scene: Scene) -> None:
        """The compare-and-set is on attempt and turn; the epoch fences the task, not the operation."""
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed)
        await scene.lose(claimed)
        successor = await scene.claim_task(record)
        await scene.write(successor, await scene.outcome(successor, key, "unknown"))
        assert (await scene.operation(successor, key)).state == "unknown"


class TestTakeTurn:
    """The gate before asking the other side."""

    async def test_moves_a_running_call_to_unknown(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=1, reason="worker lost"))
        row = await scene.operation(claimed, key)
        assert (row.state, row.attempt, row.turn) == ("unknown", 1, 2)
        [item] = await scene.rows("unsettled", claimed)
        assert (item["key"], item["since"]) == (key, scene.now)

    async def test_takes_the_turn_of_an_unknown_one_and_leaves_it_in_the_queue(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.rows("unsettled", claimed)
        was = await scene.operation(claimed, key)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=2))
        row = await scene.operation(claimed, key)
        assert (row.state, row.turn, row.result) == ("unknown", 3, was.result)
        assert await scene.rows("unsettled", claimed) == before

    async def test_can_be_taken_once(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        turn = TakeTurn(key=key, attempt=1, turn=1, events=(scene.event("asked"),))
        verdict = await scene.flush(claimed, turn, turn)
        assert verdict.refusals == ((1, "turn_passed"),)
        assert (await scene.kinds(claimed)).count("asked") == 1

    async def test_shuts_out_whoever_saw_the_turn_before(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        outcome = await scene.outcome(claimed, key, "succeeded")
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=1))
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert (await scene.operation(claimed, key)).state == "unknown"

    @pytest.mark.parametrize("state", ["planned", "succeeded", "failed"])
    async def test_is_refused_unless_the_attempt_is_open(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)  # type: ignore[arg-type]
        before = await scene.store.dump()
        for attempt, turn in ((1, 2), (1, 1), (1, 3), (2, 2)):
            entry = TakeTurn(key=key, attempt=attempt, turn=turn, events=(scene.event(),))
            assert (await scene.flush(claimed, entry)).refusals == ((0, "turn_passed"),)
        missing = TakeTurn(key="missing", attempt=0, turn=0)
        assert (await scene.flush(claimed, missing)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}
