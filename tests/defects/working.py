"""Deliberate faults in what workers and their journal do: leases, the queue, facts, intents and evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.defects.declaring import Patch, defect, nothing

from outlast import clock
from outlast.core import settle as settle_rules
from outlast.engine import effects, finding, outcomes, settling
from outlast.engine.journal import Journal
from outlast.engine.offers import Offer
from outlast.engine.run import Run
from outlast.engine.session import Session
from outlast.engine.worker import Worker
from outlast.store.entries import CommitIntent, RecordOutcome
from outlast.store.sqlite import claim, counts, flush, gate, settle, sweep
from outlast.testing.simulation import Faults
from outlast.testing.simulation.node import NodeStore
from outlast.tools import classify

# ── fences and leases ────────────────────────────────────────────────────────────────────────────


@defect("entries are written whatever their epoch is")
def epoch_not_compared(patch: Patch) -> None:
    patch.set(flush, "_holds", lambda head, writes: head is not None and head.state == "running")


@defect("a claim leaves the epoch as it was", quick=True)
def epoch_not_raised(patch: Patch) -> None:
    patch.sql("claim_heads", "epoch = epoch + 1", "epoch = max(epoch, 1)")


@defect("a session that was swept may claim")
def dead_session_claims(patch: Patch) -> None:
    def anybody(tx: Any, request: Any) -> Any:
        row = tx.row("read_session", (request.session,))
        return None if row is None or row[3] > request.fence else row[0]

    patch.set(claim, "_session_name", anybody)


@defect("what a claim took whose answer was lost is given back by nobody")
def lost_claim_forgotten(patch: Patch) -> None:
    patch.set(claim, "reconcile", lambda *_: [])


@defect("whoever took an offer to claim says, where the answer was lost, that nothing was tried")
def lost_offer_answered(patch: Patch) -> None:
    patch.set(Offer, "lose", lambda offer, why: offer.answer(None))


@defect("what somebody has claimed for a worker that offered to is forgotten, as its wait is over")
def taken_offer_forgotten(patch: Patch) -> None:
    async def nobody(_: Offer) -> None:
        return None

    patch.set(Offer, "reply", nobody)


@defect("a worker that is told that its lease is gone goes on as if it had been written")
def stale_verdict_ignored(patch: Patch) -> None:
    def believe(journal: Any, lease: Any, waiting: Any) -> None:
        for _, future, told, _ in waiting:
            if told is not None:
                told(None, None)
            elif future is not None and not future.done():
                future.set_result(None)

    patch.set(Journal, "_refuse", believe)


@defect("nobody looks at the lease before a call is sent")
def lease_not_looked_at(patch: Patch) -> None:
    patch.set(Run, "guard", nothing)
    patch.set(Session, "trust", _trusting)


async def _trusting(_: Any) -> None:
    return None


@defect("a lease that ended stays")
def lease_kept(patch: Patch) -> None:
    patch.sql("drop_leases", "delete from leases", "update leases\nset news = news")


@defect(
    "the lease is given back while calls are under way, and nobody waits for them",
    agents=("fan", "booker"),
    faults=Faults(drains=3, cancels=2),
)
def lease_released_before_draining(patch: Patch) -> None:
    async def at_once(run: Run) -> None:
        run.sealed = True
        for key in list(run.works.open):
            run.works.cut(key)

    patch.set(Run, "_drain_calls", at_once)


@defect("workers judge time by their own wall clocks")
def wall_clock_judges(patch: Patch) -> None:
    swept, flushed = NodeStore.sweep, NodeStore.flush

    async def sweep_by_own(self: Any, request: Any, *, now: int | None = None) -> Any:
        return await swept(self, request, now=clock.unix_us())

    async def flush_by_own(self: Any, batch: Any, *, now: int | None = None) -> Any:
        return await flushed(self, batch, now=clock.unix_us())

    patch.set(NodeStore, "sweep", sweep_by_own)
    patch.set(NodeStore, "flush", flush_by_own)


# ── the queue, timers and facts ──────────────────────────────────────────────────────────────────


@defect("a timer that is due wakes nobody", quick=True)
def timers_wake_nobody(patch: Patch) -> None:
    patch.set(sweep, "_wake", lambda *_: [])


@defect("the timers of a task that has ended stay")
def timers_kept(patch: Patch) -> None:
    patch.sql("clear_timers", "where ", "where 0 and ")


@defect("a suspension does not look whether what it waits for is there already")
def suspension_looks_away(patch: Patch) -> None:
    patch.set(flush, "_is_over", lambda tx, head, entry, due_at: due_at is not None and due_at <= head.at)


@defect("the number of facts is not raised for a signal, a decision or a child's end", quick=True)
def facts_not_raised(patch: Patch) -> None:
    patch.sql("write_heads", "facts = :facts", "facts = facts + 0 * :facts")


@defect(
    "a worker counts facts as heard before it has read the inbox",
    agents=("family",),
    faults=Faults(freezes=1, store=0.3),
)
def facts_before_inbox(patch: Patch) -> None:
    hear = Run.hear

    async def early(run: Run, news: Any) -> None:
        if news.facts > run.facts and not news.cancelling:
            run.facts = news.facts
            await run.read_inbox()
            for posted in run._posted:
                posted.set()
            return
        await hear(run, news)

    patch.set(Run, "hear", early)


@defect(
    "news that came in between is cleared with what was heard",
    quick=True,
    agents=("attentive",),
    faults=Faults(hints=0.2),
)
def news_cleared_unseen(patch: Patch) -> None:
    patch.sql("clear_news", "news between 1 and :facts", "news >= 1 and :facts >= 0")


@defect("a signal that a wait has taken stays in the inbox")
def signals_not_taken(patch: Patch) -> None:
    patch.sql("take_inbox", "set taken_by = :key", "set taken_by = nullif(:key, :key)")


@defect("a signal that comes again under its key is another signal", quick=True)
def signal_keys_ignored(patch: Patch) -> None:
    patch.sql("read_signal", "where ", "where 0 and ")


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


@defect("the call does not wait for its intent to be on disk", quick=True)
def barrier_forgotten(patch: Patch) -> None:
    commit = Run.commit

    async def hasty(run: Run, entry: Any) -> str | None:
        if isinstance(entry, CommitIntent):
            run.append(entry)
            return None
        return await commit(run, entry)

    patch.set(effects, "_asks_nobody", lambda operation: False)
    patch.set(Run, "commit", hasty)


@defect("the intent is written after the call", quick=True)
def intent_after_call(patch: Patch) -> None:
    commit, record = Run.commit, outcomes.record
    late: dict[tuple[str, str], CommitIntent] = {}

    async def later(run: Run, entry: Any) -> str | None:
        if isinstance(entry, CommitIntent):
            late[run.task, entry.key] = entry
            return None
        return await commit(run, entry)

    async def both(run: Run, operation: Any, outcome: Any, wait: Any) -> Any:
        await commit(run, late.pop((run.task, operation.key)))
        return await record(run, operation, outcome, wait)

    patch.set(effects, "_asks_nobody", lambda operation: False)
    patch.set(Run, "commit", later)
    patch.set(outcomes, "record", both)


@defect("an outcome is taken whatever its attempt and turn")
def stale_turn_accepted(patch: Patch) -> None:
    patch.sql("record_outcome", "attempt = :attempt and turn = :turn", ":attempt >= 0 and :turn >= 0")
    patch.sql("record_outcome", "(state = 'running' or ", "(state <> 'failed' or ")


@defect("a question to the other side takes no turn of its own", quick=True)
def turn_not_compared(patch: Patch) -> None:
    patch.sql("take_turn", "attempt = :attempt and turn = :turn", ":attempt >= 0 and :turn >= 0")
    patch.sql("settle_operation", "turn = :turn and state = 'unknown'", ":turn >= 0")
    one_by_one = settle._settle_one

    def any_turn(tx: Any, one: Any, at: int) -> Any:
        return one_by_one(tx, dataclasses.replace(one, turn=None), at)

    patch.set(settle, "_settle_one", any_turn)


@defect("a batch that is sent again is applied again")
def batch_applied_twice(patch: Patch) -> None:
    patch.sql("read_writer", "where ", "where 0 and ")


@defect("numbers of events are given out twice")
def event_numbers_reused(patch: Patch) -> None:
    patch.sql("count_events", "= :last_event", "= last_event + 0 * :last_event")
    patch.sql("append_events", "insert into events", "insert or replace into events")


@defect("calls that are under way when their task ends are left as running")
def open_calls_forgotten(patch: Patch) -> None:
    patch.sql("open_effects", "where ", "where 0 and ")


@defect(
    "a resend leaves the reconciliation queue before its intent is on disk",
    agents=("fan", "racer"),
    faults=Faults(crashes=3, tools=0.5, cancels=3),
)
def resend_taken_out_early(patch: Patch) -> None:
    patch.sql(
        "record_outcome", "(state = 'unknown' and :state <> 'planned')", "(state = 'unknown' or :state = '')"
    )
    settled = settling.settle

    async def early(run: Run, operation: Any, *, pause_us: int | None) -> Any:
        answer = await settled(run, operation, pause_us=pause_us)
        if answer is settling.SEND and not operation.undoes:
            operation.resend = None
            await settling._outcome(
                run,
                operation,
                RecordOutcome(
                    key=operation.key, attempt=operation.attempt, turn=operation.turn, state="planned"
                ),
            )
        return answer

    patch.set(settling, "settle", early)


@defect("how an unknown was settled is not counted", quick=True)
def settlements_not_counted(patch: Patch) -> None:
    patch.set(counts, "count", nothing)


# ── evidence ─────────────────────────────────────────────────────────────────────────────────────


@defect("absence is believed before the effect would have to be visible", quick=True, agents=("booker",))
def absence_believed_at_once(patch: Patch) -> None:
    of_absence = settle_rules._of_absence

    def at_once(operation: Any, asked: Any) -> Any:
        return of_absence(dataclasses.replace(operation, deadline_at=0, visible_within_us=0), asked)

    patch.set(settle_rules, "_of_absence", at_once)
    patch.set(settle, "_settle_one", _forcing(settle._settle_one))


def _forcing(settle_one: Any) -> Any:
    return lambda tx, one, at: settle_one(tx, dataclasses.replace(one, forced=True), at)


@defect("what became of a call is guessed", quick=True)
def outcome_guessed(patch: Patch) -> None:
    async def guess(run: Any, operation: Any, **_: Any) -> Any:
        return await settling._happened(run, operation, {"ticket": "R-1"})

    patch.set(settling, "settle", guess)


@defect("every unknown call is made again", agents=("booker", "transfer"))
def unknown_sent_again(patch: Patch) -> None:
    async def again(run: Any, operation: Any, *, pause_us: int | None) -> Any:
        if operation.state == "running":
            await settling._take_turn(run, operation)
        operation.resend = "why not"
        return settling.SEND

    patch.set(settling, "settle", again)


@defect("answers that come too late are thrown away", quick=True)
def late_evidence_ignored(patch: Patch) -> None:
    patch.set(Worker, "keep_evidence", nothing)


@defect("a second attempt is sent under a key of its own")
def another_key_for_a_resend(patch: Patch) -> None:
    body = effects._body

    async def careless(run: Run, operation: Any, *more: Any) -> Any:
        operation.idempotency_key = f"{run.task}:{operation.key}/{operation.attempt}"
        return await body(run, operation, *more)

    patch.set(effects, "_body", careless)


# ── waits that a service asks for ────────────────────────────────────────────────────────────────

THROTTLED = Faults(throttled=0.2)


@defect("the wait that a call was told of is kept by its worker alone", faults=THROTTLED, quick=True)
def wait_not_shared(patch: Patch) -> None:
    patch.set(effects, "_shared_wait", nothing)


@defect("no intent looks at what its provider has asked for", faults=THROTTLED, quick=True)
def wait_not_looked_at(patch: Patch) -> None:
    patch.set(gate, "any_waits", lambda *_: False)


@defect("a wait is cut short", faults=THROTTLED, quick=True)
def wait_cut_short(patch: Patch) -> None:
    patch.sql("keep_wait", ":until_at)", ":until_at - 500000)")


@defect("a wait that is on record keeps nobody from asking", faults=THROTTLED)
def wait_keeps_nobody_from_asking(patch: Patch) -> None:
    patch.sql("read_open", "and until_at > :now", "and until_at < 0 * :now")


@defect("the wait that a question was told of is kept by nobody", faults=THROTTLED)
def wait_of_a_question_forgotten(patch: Patch) -> None:
    patch.set(finding, "shared_wait", nothing)


@defect(
    "a wait until a date is counted by the worker's wall clock",
    faults=Faults(throttled=0.2, clock_steps=1),
    seen="left alone no more",
)
def wait_by_wall_clock(patch: Patch) -> None:
    asked = classify._asked_wait
    patch.set(classify, "_asked_wait", lambda headers, now: asked({**headers, "date": ""}, now))
