"""Settle and note: facts from outside, with or without a lease."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outlast.store.entries import RecordOutcome
from outlast.store.records import Evidence, Settled
from outlast.store.rows import EvidenceRow
from outlast.testing.store_suite.scene import SECOND, Scene, changed

VERDICTS = {"happened": "succeeded", "did_not_happen": "failed", "send_again": "unknown"}


class TestSettle:
    """The verb ``settle``."""

    @pytest.mark.parametrize("verdict", VERDICTS)
    async def test_settles_an_unknown(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND)
        was = await scene.operation(claimed, key)
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, key, verdict)
        assert await scene.store.settle([settlement], now=scene.now) == [
            Settled(kind="settled", state=VERDICTS[verdict], wait_us=0)
        ]
        row = await scene.operation(claimed, key)
        assert (row.state, row.attempt, row.turn) == (VERDICTS[verdict], was.attempt, was.turn + 1)
        assert row.result == settlement.result
        if verdict != "send_again":
            assert row.settled_by == settlement.by
        assert row.ended_at == (None if verdict == "send_again" else scene.now)
        assert (row.position, row.request, row.arguments, row.decision, row.effect) == (
            was.position,
            was.request,
            was.arguments,
            was.decision,
            was.effect,
        )
        assert (row.first_intent_at, row.intent_at) == (was.first_intent_at, was.intent_at)
        if verdict == "did_not_happen":
            assert row.error is not None
            assert json.loads(row.error)["code"] == "did_not_happen"
        else:
            # What is to be sent again keeps why it is unknown.
            assert row.error == (was.error if verdict == "send_again" else None)
        # What is to be sent again stays in the queue until that is done.
        assert len(await scene.rows("unsettled", claimed)) == (verdict == "send_again")

    @pytest.mark.parametrize("verdict", VERDICTS)
    async def test_keeps_who_and_why_as_evidence(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, key, verdict)
        await scene.store.settle([settlement], now=scene.now)
        [evidence] = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert (evidence.attempt, evidence.source, evidence.at) == (1, "person", scene.now)
        kept = json.loads(evidence.data)
        assert settlement.by in kept.values()
        assert settlement.reason in kept.values()
        assert verdict in kept.values()
        # The evidence is JSON text; whether it is kept as text or as the value is the store's affair.
        assert settlement.evidence in kept.values() or json.loads(settlement.evidence) in kept.values()

    async def test_the_settlers_evidence_is_told_from_a_persons(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key, by="settler")], now=scene.now)
        assert (await scene.operation(claimed, key)).settled_by == "settler"
        [evidence] = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert evidence.source != "person"

    @pytest.mark.parametrize("verdict", VERDICTS)
    async def test_tells_a_live_task(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, key, verdict)
        last = (await scene.task(claimed)).last_event
        await scene.store.settle([settlement], now=scene.now)
        [head] = await scene.rows("tasks", claimed)
        assert (head["facts"], head["state"], head["epoch"]) == (
            claimed.facts + 1,
            "running",
            claimed.epoch,
        )
        [event] = await scene.events(claimed, after=last)
        assert (event.number, event.kind, event.at) == (last + 1, "operation.settled", scene.now)
        assert json.loads(event.data) == {"operation": key, "verdict": verdict, "by": settlement.by}

    async def test_the_worker_writes_on_afterwards(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.write(claimed, scene.step(events=(scene.event(),)))
        assert [event.number for event in await scene.events(claimed)] == [1, 2, 3, 4]

    @pytest.mark.parametrize("verdict", VERDICTS)
    async def test_wakes_a_task_that_waits_for_it(self, scene: Scene, verdict: str) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed, "unknown")
        await scene.write(claimed, scene.suspension("reconciliation"))
        scene.pass_time(12 * SECOND)
        await scene.store.settle([scene.settlement(claimed, key, verdict)], now=scene.now)
        task = await scene.task(record)
        assert (task.state, task.reason) == ("queued", None)
        assert len(await scene.rows("queue", record)) == 1
        assert "operation.settled" in await scene.kinds(record)
        again = await scene.claim_task(record)
        assert (again.epoch, again.facts) == (2, 1)

    async def test_wakes_a_task_when_the_last_of_several_is_settled(self, scene: Scene) -> None:
        """Whether it wakes earlier is open; after the last it must."""
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        keys = [await scene.called(claimed, "unknown") for _ in range(3)]
        await scene.write(claimed, scene.suspension("reconciliation"))
        for key in keys:
            [settled] = await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
            assert settled.kind == "settled"
        assert (await scene.task(record)).state == "queued"
        await scene.claim_task(record)

    async def test_leaves_a_task_that_waits_for_an_operator(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.write(claimed, scene.suspension("operator"))
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        [head] = await scene.rows("tasks", claimed)
        assert (head["state"], head["reason"], head["facts"]) == ("waiting", "operator", 1)

    async def test_of_an_ended_task_settles_the_ledger_only(self, scene: Scene) -> None:
        """The final event stays the last, and the result stays as it was told."""
        claimed = await scene.running(announce=True)
        key = await scene.called(claimed)
        await scene.write(claimed, scene.failure())
        before = await scene.store.dump()
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, key)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"
        assert (await scene.operation(claimed, key)).state == "succeeded"
        difference = changed(before, await scene.store.dump())
        assert set(difference) == {"operations", "unsettled", "evidence", "audit", "settled_counts"}
        assert (await scene.kinds(claimed))[-1] == "task.failed"
        assert (await scene.task(claimed)).state == "failed"

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_is_too_early_before_the_attempts_deadline(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND)
        scene.pass_time(4 * SECOND)
        before = await scene.store.dump()
        settlement = scene.settlement(claimed, key, verdict)
        assert await scene.store.settle([settlement], now=scene.now) == [
            Settled(kind="too_early", state="unknown", wait_us=7 * SECOND)
        ]
        assert changed(before, await scene.store.dump()) == {}
        scene.pass_time(7 * SECOND)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_of_a_person_is_too_early_before_the_effect_has_to_be_visible(
        self, scene: Scene, verdict: str
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND, visible_us=7 * SECOND)
        settlement = scene.settlement(claimed, key, verdict)
        row = await scene.operation(claimed, key)
        assert row.visible_at == (row.deadline_at or 0) + 7 * SECOND
        before = await scene.store.dump()
        # At the deadline, and a microsecond before the effect has to be visible.
        for at, left in ((row.deadline_at, 7 * SECOND), (row.visible_at - 1, 1)):
            assert await scene.store.settle([settlement], now=at) == [
                Settled(kind="too_early", state="unknown", wait_us=left)
            ]
            assert changed(before, await scene.store.dump()) == {}
        [settled] = await scene.store.settle([settlement], now=row.visible_at)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    @pytest.mark.parametrize("by", ["person:ada", "settler"])
    async def test_is_never_too_early_where_nothing_was_ever_sent(
        self, scene: Scene, verdict: str, by: str
    ) -> None:
        # An undo whose task had no time left, say: it waits for a person, and has no attempt to wait for.
        claimed = await scene.running()
        step = scene.step("undo", kind="compensation", state="running", arguments="[]", result=None)
        unknown = RecordOutcome(key="undo", attempt=0, turn=0, state="unknown")
        await scene.write(claimed, step, unknown)
        settlement = scene.settlement(claimed, "undo", verdict, by=by, turn=1)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    @pytest.mark.parametrize("after_us", [0, 1, SECOND])
    async def test_of_a_person_is_open_once_the_effect_had_to_be_visible(
        self, scene: Scene, verdict: str, after_us: int
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND, visible_us=7 * SECOND)
        scene.pass_time(18 * SECOND + after_us)
        [settled] = await scene.store.settle([scene.settlement(claimed, key, verdict)], now=scene.now)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    async def test_of_a_person_that_happened_or_is_forced_need_not_be_visible(
        self, scene: Scene, verdict: str
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND, visible_us=7 * SECOND)
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, key, verdict, forced=verdict != "happened")
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"

    async def test_counts_from_the_last_attempt_and_what_its_tool_said_then(self, scene: Scene) -> None:
        """Each intent records it: a tool that is declared anew changes nothing for a call that was made."""
        claimed = await scene.running()
        intent = scene.intent(timeout_us=11 * SECOND, visible_us=900 * SECOND)
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        again = scene.settlement(claimed, intent.key, "send_again", forced=True)
        await scene.store.settle([again], now=scene.now)
        row = await scene.operation(claimed, intent.key)
        scene.pass_time(3 * SECOND)
        resend = replace(intent, attempt=row.attempt, turn=row.turn, resend=True, visible_us=5 * SECOND)
        await scene.write(claimed, resend)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        settlement = scene.settlement(claimed, intent.key, "did_not_happen")
        opens = scene.now + 16 * SECOND
        assert (await scene.operation(claimed, intent.key)).visible_at == opens
        assert [one.kind for one in await scene.store.settle([settlement], now=opens - 1)] == ["too_early"]
        assert [one.kind for one in await scene.store.settle([settlement], now=opens)] == ["settled"]

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_of_the_settler_waits_for_the_deadline_alone(self, scene: Scene, verdict: str) -> None:
        """It knows what it has seen; when absence counts is ``core.settle.plan``'s to say."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND, visible_us=7 * SECOND)
        settlement = scene.settlement(claimed, key, verdict, by="settler")
        scene.pass_time(11 * SECOND - 1)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert (settled.kind, settled.wait_us) == ("too_early", 1)
        scene.pass_time(1)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_may_be_forced(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND)
        [settled] = await scene.store.settle(
            [scene.settlement(claimed, key, verdict, forced=True)], now=scene.now
        )
        assert (settled.kind, settled.state) == ("settled", VERDICTS[verdict])

    async def test_that_it_happened_is_never_too_early(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", timeout_us=11 * SECOND)
        [settled] = await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert settled.kind == "settled"

    async def test_is_not_found_where_there_is_no_such_operation(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.store.dump()
        right = scene.settlement(claimed, key)
        wrong = [
            replace(right, tenant="tenant-other"),
            replace(right, task=scene.submission().task),
            replace(right, key="missing"),
        ]
        verdicts = await scene.store.settle(wrong, now=scene.now)
        assert [verdict.kind for verdict in verdicts] == ["not_found"] * 3
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["planned", "running", "succeeded", "failed"])
    @pytest.mark.parametrize("verdict", VERDICTS)
    async def test_conflicts_unless_it_is_unknown(self, scene: Scene, state: str, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)  # type: ignore[arg-type]
        scene.pass_time(12 * SECOND)
        before = await scene.store.dump()
        settlement = scene.settlement(claimed, key, verdict, forced=True)
        assert await scene.store.settle([settlement], now=scene.now) == [
            Settled(kind="conflict", state=state)
        ]
        assert changed(before, await scene.store.dump()) == {}

    async def test_conflicts_when_the_turn_that_was_seen_has_passed(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        before = await scene.store.dump()
        for turn in (0, 1, 3):
            settlement = scene.settlement(claimed, key, turn=turn)
            assert await scene.store.settle([settlement], now=scene.now) == [
                Settled(kind="conflict", state="unknown")
            ]
        assert changed(before, await scene.store.dump()) == {}
        [settled] = await scene.store.settle([scene.settlement(claimed, key, turn=2)], now=scene.now)
        assert settled.kind == "settled"

    async def test_a_second_settlement_conflicts_with_what_is_recorded(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        first = scene.settlement(claimed, key)
        await scene.store.settle([first], now=scene.now)
        row = await scene.operation(claimed, key)
        for again in (first, scene.settlement(claimed, key, "did_not_happen", forced=True)):
            assert await scene.store.settle([again], now=scene.now) == [
                Settled(kind="conflict", state="succeeded")
            ]
        assert await scene.operation(claimed, key) == row

    async def test_a_batch_answers_in_order_one_verdict_each(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        here, there = await scene.called(one, "unknown"), await scene.called(two, "unknown")
        late = await scene.called(two, "unknown", timeout_us=90 * SECOND)
        done = await scene.called(one, "succeeded")
        verdicts = await scene.store.settle(
            [
                scene.settlement(two, late, "send_again"),
                scene.settlement(one, here),
                scene.settlement(one, "missing"),
                scene.settlement(two, there),
                scene.settlement(one, here),
                scene.settlement(one, done),
            ],
            now=scene.now,
        )
        assert [(v.kind, v.state) for v in verdicts if v.kind != "not_found"] == [
            ("too_early", "unknown"),
            ("settled", "succeeded"),
            ("settled", "succeeded"),
            ("conflict", "succeeded"),
            ("conflict", "succeeded"),
        ]
        assert verdicts[2].kind == "not_found"
        for claimed in (one, two):
            numbers = [event.number for event in await scene.events(claimed)]
            assert numbers == [1, 2, 3]

    async def test_of_one_task_leaves_another_with_the_same_key(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        for claimed in (one, two):
            await scene.called(claimed, "unknown", key="same")
        before = await scene.operation(two, "same")
        await scene.store.settle([scene.settlement(one, "same")], now=scene.now)
        assert (await scene.operation(one, "same")).state == "succeeded"
        assert await scene.operation(two, "same") == before
        assert len(await scene.rows("unsettled", two)) == 1

    async def test_shuts_out_the_workers_outcome(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        outcome = await scene.outcome(claimed, key, "failed")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert (await scene.operation(claimed, key)).state == "succeeded"

    async def test_send_again_allows_one_more_intent_under_the_same_key(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent()
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        await scene.store.settle(
            [scene.settlement(claimed, intent.key, "send_again", forced=True)], now=scene.now
        )
        row = await scene.operation(claimed, intent.key)
        await scene.write(claimed, replace(intent, attempt=row.attempt, turn=row.turn, resend=True))
        assert (await scene.operation(claimed, intent.key)).attempt == 2

    async def test_of_nothing_is_nothing(self, scene: Scene) -> None:
        assert await scene.store.settle([], now=scene.now) == []


class TestNote:
    """The verb ``note``."""

    async def test_appends_without_a_lease(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.lose(claimed)
        before = await scene.store.dump()
        scene.pass_time(3 * SECOND)
        late = Evidence(
            tenant=claimed.tenant,
            task=claimed.task,
            key=key,
            attempt=4,
            source="late",
            data=scene.text("late"),
        )
        await scene.store.note([late], now=scene.now)
        assert await scene.store.read_evidence(claimed.tenant, claimed.task, key) == [
            EvidenceRow(number=1, attempt=4, source="late", data=late.data, at=scene.now)
        ]
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_orders_what_it_appends(self, scene: Scene) -> None:
        claimed = await scene.running()
        one, two = await scene.called(claimed, "unknown"), await scene.called(claimed, "unknown")
        pieces = [
            Evidence(
                tenant=claimed.tenant,
                task=claimed.task,
                key=key,
                attempt=1,
                source="asked",
                data=scene.text("asked"),
            )
            for key in (one, two, one, one, two)
        ]
        await scene.store.note(pieces[:3], now=scene.now)
        await scene.store.note(pieces[3:], now=scene.now)
        other = await scene.running()
        await scene.called(other, "unknown", key=one)
        await scene.store.note([replace(pieces[0], task=other.task)], now=scene.now)
        assert [row.number for row in await scene.store.read_evidence(other.tenant, other.task, one)] == [1]
        for key in (one, two):
            rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
            assert [row.data for row in rows] == [piece.data for piece in pieces if piece.key == key]
            assert [row.number for row in rows] == list(range(1, len(rows) + 1))

    async def test_of_an_ended_task_changes_nothing_else(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "succeeded")
        await scene.write(claimed, scene.success())
        before = await scene.store.dump()
        late = Evidence(
            tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="late", data="{}"
        )
        await scene.store.note([late], now=scene.now)
        assert set(changed(before, await scene.store.dump())) == {"evidence"}

    async def test_of_nothing_is_nothing(self, scene: Scene) -> None:
        await scene.store.note([], now=scene.now)
