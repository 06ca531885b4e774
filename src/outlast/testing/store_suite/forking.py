"""Forks: what is copied, what is kept of the calls behind them, and what comes of those in the fork."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.core import ids
from outlast.store.changing import Fork, Forked
from outlast.store.entries import AdoptIssued, BusinessKey
from outlast.store.records import (
    ANY_VERSION,
    Claimed,
    Loaded,
    OperationRow,
    Serves,
    Submission,
    Submitted,
)
from outlast.store.rows import OperationFilter
from outlast.testing.store_suite.bringing import agrees
from outlast.testing.store_suite.guards import refuses
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Backdoor, Refused, Scene, changed

__all__ = ["TestAdoptIssued", "TestFork", "TestForkOfAFork", "TestIssued"]


def fork_of(scene: Scene, of: Any, before: str | None = None, **changes: Any) -> Fork:
    """Make a person's wish for a fork."""
    n = scene.number()
    record = Fork(
        tenant=of.tenant,
        task=of.task,
        new=ids.new_id(ids.TASK, 1_700_000_000_000 + n, n),
        before=before,
        by=f"person:flo-{scene.number()}",
        reason=f"reason-{scene.number()}",
    )
    return replace(record, **changes)


async def ledger(scene: Scene, tenant: str, task: str) -> list[OperationRow]:
    """Read a task's journal."""
    return await scene.store.list_operations(OperationFilter(tenant=tenant, task=task))


async def forked(scene: Scene, origin: Submission, before: str | None = None, **changes: Any) -> Submission:
    """Have a fork, which the scene can claim."""
    asked = fork_of(scene, origin, before, **changes)
    assert await scene.store.fork([asked], now=scene.now) == [Forked(kind="forked")]
    record = replace(origin, task=asked.new, version=asked.version or origin.version)
    scene.remember(record)
    return record


async def run_fork(scene: Scene, origin: Submission, before: str | None = None) -> tuple[Claimed, Loaded]:
    """Have a fork that runs, and what its worker loads."""
    claimed = await scene.claim_task(await forked(scene, origin, before))
    [loaded] = await scene.store.load([claimed])
    return claimed, loaded


class TestFork:
    """The verb ``fork``."""

    @pytest.mark.parametrize("before", [None, "call-a"])
    async def test_a_claim_brings_nothing_along_of_a_fork(self, scene: Scene, before: str | None) -> None:
        """Not even where its journal is empty: it has calls behind it."""
        origin = await scene.submit()
        claimed = await scene.claim_task(origin)
        await made(scene, claimed, "call-a")
        await scene.write(claimed, scene.success())
        copy = await forked(scene, origin, before)
        assert (await ledger(scene, copy.tenant, copy.task) == []) == (before is not None)
        serves = [Serves(agent=copy.agent, version=(await scene.task(copy)).version)]
        reply = await scene.claim(await scene.session(), pools=[copy.pool], serves=serves)
        assert [(one.task, one.epoch) for one in reply.claims] == [(copy.task, 1)]
        assert await agrees(scene, reply) == [False]

    async def test_copies_what_was_asked_for(self, scene: Scene) -> None:
        record = await scene.submit(budget=scene.text("budget"), announce=True, deadline_us=HOUR)
        claimed = await scene.claim_task(record)
        step = scene.step()
        await scene.write(claimed, step, scene.success())
        last = await scene.task(claimed)
        scene.pass_time(7 * SECOND)
        asked = fork_of(scene, record, deadline_us=2 * HOUR)
        before = await scene.store.dump()
        assert await scene.store.fork([asked], now=scene.now) == [Forked(kind="forked")]
        ref = replace(record, task=asked.new)
        task = await scene.task(ref)
        assert (task.state, task.reason, task.epoch, task.round, task.last_event) == (
            "queued",
            None,
            0,
            ROUND,
            1,
        )
        assert (task.agent, task.version, task.pool, task.priority) == (
            record.agent,
            last.version,
            record.pool,
            record.priority,
        )
        assert (task.input, task.user, task.budget, task.key) == (
            record.input,
            record.user,
            record.budget,
            None,
        )
        assert (task.forked_from, task.parent, task.children) == (record.task, None, 0)
        assert (task.submitted_at, task.deadline_at) == (scene.now, scene.now + 2 * HOUR)
        assert [(row["kind"], row["due_at"]) for row in await scene.rows("timers", ref)] == [
            ("deadline", scene.now + 2 * HOUR)
        ]
        [event] = await scene.events(ref)
        data = {"agent": record.agent, "pool": record.pool, "forked_from": record.task}
        assert (event.number, event.kind, event.epoch, json.loads(event.data)) == (
            1,
            "task.submitted",
            0,
            data,
        )
        assert [row["topic"] for row in await scene.rows("outbox", ref)] == ["task.submitted"]
        rows = (await scene.store.dump())["audit"]
        assert [(row["who"], row["what"], row["subject"], row["reason"]) for row in rows] == [
            (asked.by, "fork", subject, asked.reason) for subject in (record.task, asked.new)
        ]
        assert [json.loads(row["data"]) for row in rows] == [
            {"fork": asked.new, "before": None},
            {"forked_from": record.task, "before": None},
        ]
        # The task itself is as it was.
        assert await scene.task(claimed) == last
        assert changed(before, await scene.store.dump())["operations"] == {
            "gone": [],
            "come": await scene.rows("operations", ref),
        }

    async def test_a_key_stands_for_the_first_request(self, scene: Scene) -> None:
        record, other = await scene.submit(), await scene.submit()
        first = fork_of(scene, record, key="key-of-a-fork", digest="digest-one")
        assert await scene.store.fork([first], now=scene.now) == [Forked(kind="forked")]
        made = await scene.task(replace(record, task=first.new))
        assert (made.key, made.forked_from) == ("key-of-a-fork", record.task)
        before = await scene.store.dump()
        repeat = replace(first, new=fork_of(scene, record).new)
        asked = [
            first,
            repeat,
            # Whatever it is about now: a key that is known is answered before anything else is looked at.
            replace(repeat, before="nothing"),
            replace(repeat, digest="digest-two"),
            replace(repeat, key=other.key, digest="digest-two"),
            replace(repeat, key=other.key, digest=other.request_digest),
        ]
        assert await scene.store.fork(asked, now=scene.now) == [
            Forked(kind="forked"),
            Forked(kind="replayed", task=first.new),
            Forked(kind="replayed", task=first.new),
            Forked(kind="conflict", task=first.new),
            Forked(kind="conflict", task=other.task),
            Forked(kind="replayed", task=other.task),
        ]
        submission = scene.submission(key=first.key, request_digest="digest-three")
        assert await scene.store.submit([submission]) == [Submitted(kind="conflict", task=first.new)]
        assert changed(before, await scene.store.dump()) == {}
        foreign = await scene.submit(tenant="tenant-blue")
        theirs = fork_of(scene, foreign, key=first.key, digest="digest-two")
        twins = [fork_of(scene, record, key="key-two", digest="d") for _ in range(2)]
        assert await scene.store.fork([theirs, *twins], now=scene.now) == [
            Forked(kind="forked"),
            Forked(kind="forked"),
            Forked(kind="replayed", task=twins[0].new),
        ]

    async def test_copies_operations_as_they_stand(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        step, early = scene.step(), scene.step(state="failed", result=None, error=scene.text("error"))
        await scene.write(claimed, step, early)
        call = scene.intent(business=BusinessKey(tool="tool-1", value="value-1", mode="lock"))
        await scene.write(claimed, call)
        await scene.write(
            claimed, await scene.outcome(claimed, call.key, "succeeded", usage=scene.text("used"))
        )
        late = scene.step()
        await scene.write(claimed, late)
        mine, loaded = await run_fork(scene, record, late.key)
        kept = [one for one in await ledger(scene, claimed.tenant, claimed.task) if one.key != late.key]
        assert [one.key for one in loaded.operations] == [one.key for one in kept]
        for copied, original in zip(loaded.operations, kept, strict=True):
            sent = f"{record.task}:{original.key}" if original.attempt else None
            assert copied == replace(original, task=mine.task, epoch=0, idempotency_key=sent)
        assert loaded.issued == ()
        # Nobody holds a key for it.
        held = await scene.store.dump()
        assert [row for row in held["business_keys"] if row["task"] == mine.task] == []

    async def test_leaves_out_what_lost_a_race_that_the_fork_runs_again(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        failed = {"state": "failed", "result": None, "error": scene.text("error")}
        won, fails, cut = scene.step(), scene.step(**failed), scene.step(**failed, lost=True)
        # One was put on record before it was cut.
        planned = scene.step(state="planned", result=None)
        race, last = scene.step(), scene.step()
        await scene.write(claimed, won, fails, cut, planned)
        await scene.write(claimed, scene.step(planned.key, **failed, lost=True), race, last)
        _, again = await run_fork(scene, record, race.key)
        assert [one.key for one in again.operations] == [won.key, fails.key]
        # One that copies all has the record of the race as well.
        copy = await forked(scene, record)
        [whole] = await scene.store.load([await scene.claim_task(copy)])
        kept = [won.key, fails.key, cut.key, planned.key, race.key, last.key]
        assert [one.key for one in whole.operations] == kept
        # A fork of that one leaves them out again.
        assert [one.key for one in (await run_fork(scene, copy, race.key))[1].operations] == kept[:2]

    async def test_takes_another_input_and_another_version(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-1")
        await scene.write(claimed, scene.failure())
        other = scene.text("input")
        mine = await forked(scene, record, input=other, version="version-2")
        task = await scene.task(mine)
        assert (task.input, task.version) == (other, "version-2")
        assert (await scene.claim_task(mine)).version == "version-2"
        free = await forked(scene, record, version=ANY_VERSION)
        assert (await scene.task(free)).version == ANY_VERSION
        assert (await scene.claim_task(free, version="version-3")).version == "version-3"

    async def test_a_repeat_makes_nothing_more(self, scene: Scene) -> None:
        record = await scene.submit()
        asked = fork_of(scene, record)
        assert await scene.store.fork([asked, asked], now=scene.now) == [Forked(kind="forked")] * 2
        before = await scene.store.dump()
        assert await scene.store.fork([asked], now=scene.now) == [Forked(kind="forked")]
        assert changed(before, await scene.store.dump()) == {}

    async def test_an_id_that_is_anothers_is_refused(self, scene: Scene) -> None:
        record, other = await scene.submit(), await scene.submit()
        before = await scene.store.dump()
        async with Refused("a fork under the id of another task"):
            await scene.store.fork([fork_of(scene, record, new=other.task)], now=scene.now)
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["planned", "running", "unknown"])
    async def test_refuses_a_prefix_that_has_not_ended(self, scene: Scene, state: Any) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        first = scene.intent()
        await scene.write(claimed, scene.planned(first) if state == "planned" else first)
        if state == "unknown":
            await scene.write(claimed, await scene.outcome(claimed, first.key, "unknown"))
        timer, last = scene.timer(due_in_us=HOUR), scene.step()
        await scene.write(claimed, timer, last)
        before = await scene.store.dump()
        asked = [fork_of(scene, record, key) for key in (last.key, None, timer.key, first.key)]
        answers = await scene.store.fork(asked[:3], now=scene.now)
        assert answers == [
            Forked(kind="unsettled", keys=(first.key, timer.key)),
            Forked(kind="unsettled", keys=(first.key, timer.key)),
            Forked(kind="unsettled", keys=(first.key,)),
        ]
        assert changed(before, await scene.store.dump(), ignoring=("writers", "lanes")) == {}
        assert await scene.store.fork(asked[3:], now=scene.now) == [Forked(kind="forked")]

    async def test_refuses_a_prefix_whose_effects_were_undone(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        await scene.called(claimed, "succeeded", key="ticket")
        await scene.called(claimed, "succeeded", key="mail")
        await scene.called(claimed, "succeeded", key="mail/undo", kind="compensation")
        await scene.write(claimed, scene.failure())
        asked = [fork_of(scene, record, key) for key in (None, "mail/undo", "mail")]
        assert await scene.store.fork(asked, now=scene.now) == [
            Forked(kind="unsettled", keys=("mail",)),
            Forked(kind="unsettled", keys=("mail",)),
            Forked(kind="forked"),
        ]
        # What was undone is made anew, and not taken over under the key of an effect that is gone.
        issued = [row["key"] for row in await scene.rows("issued", replace(record, task=asked[2].new))]
        assert issued == ["mail/undo"]

    async def test_knows_neither_strange_tasks_nor_strange_operations(self, scene: Scene) -> None:
        record = await scene.submit()
        foreign = fork_of(scene, record, tenant="tenant-red")
        assert await scene.store.fork([foreign, fork_of(scene, record, "nothing")], now=scene.now) == [
            Forked(kind="not_found"),
            Forked(kind="no_operation"),
        ]


async def made(scene: Scene, claimed: Claimed, *keys: str, state: Any = "succeeded") -> list[OperationRow]:
    """Have calls made, in order; answer how they stand."""
    for key in keys:
        await scene.called(claimed, state, key=key)
    return [await scene.operation(claimed, key) for key in keys]


class TestIssued:
    """The calls that were made behind a fork."""

    async def test_calls_behind_the_fork_are_kept_with_the_keys_that_were_sent(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        await made(scene, claimed, "call-a")
        scene.pass_time(2 * SECOND)
        [second] = await made(scene, claimed, "call-b")
        step, planned = scene.step(), scene.intent()
        await scene.write(claimed, step, scene.planned(planned))
        scene.pass_time(2 * SECOND)
        [third] = await made(scene, claimed, "call-c", state="running")
        mine, loaded = await run_fork(scene, record, "call-b")
        assert [one.key for one in loaded.operations] == ["call-a"]
        assert list(loaded.issued) == [
            OperationRow(
                tenant=record.tenant,
                task=mine.task,
                key=one.key,
                position=0,
                kind=one.kind,
                name=one.name,
                state=one.state,
                request=one.request,
                decision=one.decision,
                effect=one.effect,
                attempt=one.attempt,
                turn=one.turn,
                arguments=one.arguments,
                intent_at=one.intent_at,
                first_intent_at=one.first_intent_at,
                deadline_at=one.deadline_at,
                visible_at=one.visible_at,
                idempotency_key=f"{record.task}:{one.key}",
            )
            for one in (second, third)
        ]

    async def test_a_fork_of_everything_leaves_nothing_behind_it(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        await made(scene, claimed, "call-a")
        _, loaded = await run_fork(scene, record)
        assert ([one.key for one in loaded.operations], loaded.issued) == (["call-a"], ())

    async def test_what_was_issued_is_never_changed(self, scene: Scene, backdoor: Backdoor) -> None:
        record = await scene.submit()
        await made(scene, await scene.claim_task(record), "call-a")
        await forked(scene, record, "call-a")
        await refuses(scene, backdoor, "update issued set idempotency_key = 'other'", "delete from issued")


class TestAdoptIssued:
    """The record ``AdoptIssued``."""

    @pytest.mark.parametrize("state", ["running", "unknown", "succeeded", "failed"])
    async def test_takes_a_call_over_as_unknown_under_its_old_key(self, scene: Scene, state: Any) -> None:
        record = await scene.submit()
        [call] = await made(scene, await scene.claim_task(record), "call-a", state=state)
        scene.pass_time(3 * SECOND)
        mine, _ = await run_fork(scene, record, "call-a")
        last = (await scene.task(mine)).last_event
        position, event = scene.number(), scene.event("operation.adopted")
        await scene.write(mine, AdoptIssued(key="call-a", position=position, events=(event,)))
        assert await scene.operation(mine, "call-a") == replace(
            call,
            task=mine.task,
            position=position,
            state="unknown",
            turn=call.turn + 1,
            epoch=mine.epoch,
            result=None,
            error=None,
            created_at=scene.now,
            ended_at=None,
            idempotency_key=f"{record.task}:call-a",
        )
        place = await scene.store.read_open(mine.tenant, mine.task, "call-a")
        assert place is not None
        assert (place.since, place.ask_at, place.asked, place.resend) == (scene.now, scene.now, 0, False)
        assert place.sender_gone == (state in ("succeeded", "failed"))
        assert [event.kind for event in await scene.events(mine, after=last)] == ["operation.adopted"]

    async def test_its_resend_keeps_the_old_key_and_the_first_intent(self, scene: Scene) -> None:
        record = await scene.submit()
        [call] = await made(scene, await scene.claim_task(record), "call-a")
        mine, _ = await run_fork(scene, record, "call-a")
        await scene.write(mine, AdoptIssued(key="call-a", position=scene.number()))
        scene.pass_time(HOUR)
        row = await scene.operation(mine, "call-a")
        again = scene.intent("call-a", attempt=row.attempt, turn=row.turn, resend=True)
        await scene.write(mine, again)
        sent = await scene.operation(mine, "call-a")
        assert (sent.state, sent.attempt, sent.turn) == ("running", call.attempt + 1, call.turn + 2)
        assert (sent.idempotency_key, sent.first_intent_at) == (
            f"{record.task}:call-a",
            call.first_intent_at,
        )
        assert await scene.store.read_open(mine.tenant, mine.task, "call-a") is None

    async def test_says_nothing_where_there_is_nothing_or_the_ledger_has_the_key(self, scene: Scene) -> None:
        record = await scene.submit()
        await made(scene, await scene.claim_task(record), "call-a", "call-b")
        mine, _ = await run_fork(scene, record, "call-a")
        await scene.write(mine, scene.step("call-a"))
        await scene.write(mine, AdoptIssued(key="call-b", position=scene.number()))
        await scene.write(mine, await scene.outcome(mine, "call-b", "succeeded"))
        before = await scene.store.dump()
        nothing = [
            AdoptIssued(key=key, position=scene.number(), events=(scene.event(),))
            for key in ("call-a", "call-b", "call-z")
        ]
        await scene.write(mine, *nothing)
        assert changed(before, await scene.store.dump()) == {}

    async def test_comes_in_its_place_among_the_entries_of_its_operation(self, scene: Scene) -> None:
        record = await scene.submit()
        [call] = await made(scene, await scene.claim_task(record), "call-a")
        mine, _ = await run_fork(scene, record, "call-a")
        result = scene.text("result")
        outcome = replace(
            await scene.outcome(replace(mine, task=record.task), "call-a", "succeeded", settled_by="worker"),
            turn=call.turn + 1,
            result=result,
        )
        await scene.write(mine, AdoptIssued(key="call-a", position=scene.number()), outcome)
        row = await scene.operation(mine, "call-a")
        assert (row.state, row.result, row.turn) == ("succeeded", result, call.turn + 2)
        assert await scene.rows("unsettled", mine) == []


class TestForkOfAFork:
    """Keys live on in forks of forks."""

    async def test_keys_that_were_sent_are_copied_on(self, scene: Scene) -> None:
        first = await scene.submit()
        await made(scene, await scene.claim_task(first), "call-a", "call-b", "call-c")
        second = await forked(scene, first, "call-b")
        running = await scene.claim_task(second)
        # One is taken over and settled, one is made by the fork itself, one is left.
        await scene.write(running, AdoptIssued(key="call-b", position=scene.number()))
        await scene.write(running, await scene.outcome(running, "call-b", "succeeded"))
        await made(scene, running, "call-d")
        _, whole = await run_fork(scene, second)
        assert {one.key: one.idempotency_key for one in whole.operations} == {
            "call-a": f"{first.task}:call-a",
            "call-b": f"{first.task}:call-b",
            "call-d": f"{second.task}:call-d",
        }
        assert {one.key: one.idempotency_key for one in whole.issued} == {"call-c": f"{first.task}:call-c"}
        _, part = await run_fork(scene, second, "call-b")
        assert [one.key for one in part.operations] == ["call-a"]
        assert {one.key: one.idempotency_key for one in part.issued} == {
            "call-b": f"{first.task}:call-b",
            "call-c": f"{first.task}:call-c",
            "call-d": f"{second.task}:call-d",
        }
