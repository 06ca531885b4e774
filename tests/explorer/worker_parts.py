"""The parts of workers, and of those who submit and settle: tasks, leases, the journal, unknowns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.explorer.exploring import Act
from tests.explorer.parts import ACTS, SKIPS, VERBS, WRITERS, acts, always, writes
from tests.explorer.scenes import KEY, Props

from outlast.core import ids
from outlast.store.entries import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    Batch,
    BusinessKey,
    CommitIntent,
    EndAttempt,
    Entry,
    ExpireApproval,
    Note,
    RecordOperation,
    RecordOutcome,
    TakeTurn,
    TaskWrites,
)
from outlast.store.reconciling import OpenRequest, Postponement
from outlast.store.records import (
    ClaimRequest,
    Evidence,
    Held,
    Parent,
    Serves,
    SessionRenewal,
    Submission,
    SweepRequest,
)
from outlast.testing.store_suite.scene import HOUR, SECOND

# ── tasks, sessions, leases ─────────────────────────────────────────────────────────────────────────


def _new(props: Props, n: int, **changes: Any) -> Submission:
    record = Submission(
        tenant=props.record.tenant,
        task=ids.new_id(ids.TASK, 1_700_000_900_000 + n, n),
        key=None,
        request_digest="digest-new",
        agent="agent-task",
        pool="pool-task",
        version="v1",
    )
    return replace(record, **changes)


@acts("submit")
def _submit(props: Props) -> Any:
    return [_new(props, 1, key="key-twin", announce=True)]


@acts("submit", "submit_same_key")
def _submit_same_key(props: Props) -> Any:
    return [_new(props, 2, key="key-twin")]


@acts("submit", "submit_child")
def _submit_child(props: Props) -> Any:
    parent = Parent(
        task=props.task.task, epoch=props.claimed.epoch, key="newborn", position=77, request="request-newborn"
    )
    return [_new(props, 3, parent=parent)]


# A passage reads how long a session lives without holding it: what it says may be older, and so be less. A
# worker keeps its name: whoever tells of it reads that without holding the session.
@acts("renew", loose=True)
def _renew(props: Props) -> Any:
    return SessionRenewal(session=props.session, name=props.worker, ttl_us=60 * SECOND)


@acts("retire")
def _retire(props: Props) -> Any:
    return props.spare


def _claimed(replies: list[Any]) -> Any:
    told = [repr(one) for reply in replies for one in (*reply.claims, *reply.loaded)]
    return replies[-1].refused, sorted(told)


TAKES: dict[str, Any] = {"loose": True, "again": always, "merge": _claimed}


def _claiming(session: str) -> ClaimRequest:
    serves = (Serves(agent="agent-task", version="v1"),)
    return ClaimRequest(session=session, pools=("pool-task",), serves=serves, limit=5, config="config-1")


@acts("claim", **TAKES)
def _claim(props: Props) -> Any:
    return _claiming(props.spare)


@acts("claim", "claim_by_its_worker", **TAKES)
def _claim_by_its_worker(props: Props) -> Any:
    return _claiming(props.session)


def _along(answers: list[Any]) -> Any:
    # Where a twin was in its way it has done nothing, and comes again.
    verdicts, replies = zip(*filter(None, answers), strict=True)
    return verdicts[0], _claimed([*replies])


@acts("submit_and_claim", **{**TAKES, "merge": _along})
def _submit_and_claim(props: Props) -> Any:
    return [_new(props, 90, key="key-twin", priority=3)], _claiming(props.spare)


@acts("reconcile")
def _reconcile(props: Props) -> Any:
    known = props.parent
    return props.session, [Held(tenant=known.tenant, task=known.task, epoch=known.epoch)], 1


@acts("sweep", **SKIPS)
def _sweep(props: Props) -> Any:
    return SweepRequest()


# ── the journal ─────────────────────────────────────────────────────────────────────────────────────


@writes("record", RecordOperation)
def _record(props: Props) -> Entry:
    return props.scene.step("written", events=(props.scene.event(),))


@writes("takes", RecordOperation)
def _takes(props: Props) -> Entry:
    return props.scene.step("heard", kind="signal", takes=(props.facts,))


@writes("hears", RecordOperation)
def _hears(props: Props) -> Entry:
    return props.scene.step("kid-that-ended", kind="child", state="failed", takes_end=True)


@writes("intent", CommitIntent)
def _intent(props: Props) -> Entry:
    business = BusinessKey(tool="pay", value="invoice-2", mode="lock")
    return props.scene.intent("another", name="pay", business=business)


@writes("intent_of_a_held_key", CommitIntent)
def _intent_of_a_held_key(props: Props) -> Entry:
    return props.scene.intent("another", name="pay", business=KEY)


@writes("intent_as_agreed", CommitIntent)
def _intent_as_agreed(props: Props) -> Entry:
    return props.scene.agreed_intent(props.ask)


@writes("resend", CommitIntent)
def _resend(props: Props) -> Entry:
    return replace(props.intent, attempt=props.open.attempt, turn=props.open.turn, resend=True)


@writes("parent_intent", CommitIntent, parent=True)
def _parent_intent(props: Props) -> Entry:
    business = BusinessKey(tool="pay", value="invoice-2", mode="lock")
    return props.scene.intent("parents", name="pay", business=business)


@writes("parent_attach", AttachSession, parent=True)
def _parent_attach(props: Props) -> Entry:
    return AttachSession(provider="provider-1", session="session-2")


# It locks no head but its own: a child that ends at the same moment is told to end once more, in vain.
@writes("parent_success", EndAttempt, parent=True, loose=True)
def _parent_success(props: Props) -> Entry:
    return props.scene.success()


@writes("outcome", RecordOutcome)
def _outcome(props: Props) -> Entry:
    return RecordOutcome(
        key="call", attempt=props.call.attempt, turn=props.call.turn, state="succeeded", result='"paid"'
    )


@writes("turn", TakeTurn)
def _turn(props: Props) -> Entry:
    return TakeTurn(key="open", attempt=props.open.attempt, turn=props.open.turn)


def _turn_and_look(props: Props) -> Act:
    """Take a call's turn, and read what was noted of it before."""
    name, of = "flush_turn_and_look", props.claimed
    entry = TakeTurn(key="call", attempt=props.call.attempt, turn=props.call.turn)
    one = TaskWrites(tenant=of.tenant, task=of.task, epoch=of.epoch, entries=(entry,))

    async def play(store: Any, times: int) -> Any:
        [verdict] = await store.flush(Batch(writer=f"wr_{name}", number=times, writes=(one,)))
        return verdict, verdict.kind == "accepted" and await store.read_evidence(of.tenant, of.task, "call")

    return Act(
        name=name,
        verb="flush",
        play=play,
        views=("read_evidence",),
        own=WRITERS,
        again=lambda said: said[0].kind == "deferred",
    )


ACTS["flush_turn_and_look"], VERBS["flush_turn_and_look"] = _turn_and_look, "flush"


@writes("note", Note)
def _flush_note(props: Props) -> Entry:
    return Note(key="open", attempt=1, source="asked", data='{"asked":1}')


@writes("events", AppendEvents)
def _events(props: Props) -> Entry:
    return AppendEvents(events=(props.scene.event(), props.scene.event("log")))


@writes("ask", AskApproval)
def _ask(props: Props) -> Entry:
    return replace(props.ask, number=2, fingerprint="fingerprint-2")


@writes("expire", ExpireApproval)
def _expire(props: Props) -> Entry:
    return ExpireApproval(key="asked", number=1)


@writes("attach", AttachSession)
def _attach(props: Props) -> Entry:
    return AttachSession(provider="provider-1", session="session-2")


@writes("adopt_issued", AdoptIssued)
def _adopt_issued(props: Props) -> Entry:
    return AdoptIssued(key="open", position=5)


@writes("suspend", EndAttempt)
def _suspend(props: Props) -> Entry:
    return props.scene.suspension("signal", facts=props.facts)


@writes("release", EndAttempt)
def _release(props: Props) -> Entry:
    return props.scene.release()


@writes("success", EndAttempt)
def _success(props: Props) -> Entry:
    return props.scene.success()


# ── unknowns ────────────────────────────────────────────────────────────────────────────────────────


@acts("settle", "settle_happened")
def _happened(props: Props) -> Any:
    return [props.scene.settlement(props.claimed, "open", "happened")]


@acts("settle", "settle_did_not_happen")
def _did_not_happen(props: Props) -> Any:
    return [
        props.scene.settlement(props.claimed, "open", "did_not_happen", turn=props.open.turn, by="settler")
    ]


@acts("settle", "settle_send_again")
def _send_again(props: Props) -> Any:
    return [props.scene.settlement(props.claimed, "open", "send_again")]


def _evidence(props: Props, **changes: Any) -> Evidence:
    record = Evidence(
        **props.of,
        key="open",
        attempt=1,
        source="late",
        data='{"seen":1}',
    )
    return replace(record, **changes)


@acts("note")
def _note(props: Props) -> Any:
    return [_evidence(props, says="happened")]


@acts("note", "note_over")
def _note_over(props: Props) -> Any:
    return [_evidence(props, key="call", says="over")]


@acts("admit")
def _admit(props: Props) -> Any:
    return [_evidence(props, key="call", source="gateway")]


@acts("claim_open", **SKIPS)
def _claim_open(props: Props) -> Any:
    return OpenRequest(session=props.spare, tools=("mail", "pay"), limit=5, lease_us=30 * SECOND)


@acts("postpone")
def _postpone(props: Props) -> Any:
    return [
        Postponement(
            **props.of,
            key="open",
            turn=props.open.turn,
            ask_in_us=HOUR,
            unusable=True,
            why="nobody answered",
        )
    ]
