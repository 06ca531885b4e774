"""What each verb of the contract does to the task in question: the parts that players are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tests.explorer.exploring import Act
from tests.explorer.scenes import KEY, Props

from outlast.core import ids
from outlast.store.changing import Acceptance, Adopt, Fork, OutsideEvent, Retry
from outlast.store.posting import Cancel, Heard
from outlast.store.reconciling import OpenRequest, Pause, Postponement
from outlast.store.records import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    Batch,
    BusinessKey,
    ClaimRequest,
    CommitIntent,
    EndAttempt,
    Entry,
    Evidence,
    ExpireApproval,
    Note,
    Parent,
    RecordOperation,
    RecordOutcome,
    Serves,
    SessionRenewal,
    Submission,
    SweepRequest,
    TakeTurn,
    TaskRef,
    TaskWrites,
)
from outlast.store.rows import Publication
from outlast.store.scheduling import DueRequest, PutSchedule, SetSchedule
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.scene import HOUR, SECOND

Make = Callable[[Props], Act]
ACTS: dict[str, Make] = {}
"""Every part by name."""
VERBS: dict[str, str] = {}
"""The verb of the contract that each part carries out."""
ENTRIES: dict[str, type] = {}
"""The kind of journal entry that each part of ``flush`` writes."""


def acts(verb: str, name: str | None = None, **how: Any) -> Callable[[Callable[[Props], Any]], None]:
    """Register a part: what it is given is made once, so that every run does the very same."""

    def register(make: Callable[[Props], Any]) -> None:
        called = name or verb

        def made(props: Props) -> Act:
            given = make(props)
            arguments = given if isinstance(given, tuple) else (given,)

            async def play(store: Any, _times: int) -> Any:
                return await getattr(store, verb)(*arguments)

            return Act(name=called, verb=verb, play=play, **how)

        assert called not in ACTS
        ACTS[called], VERBS[called] = made, verb

    return register


def _always(_: Any) -> bool:
    return True


def _union(answers: list[Any]) -> dict[str, Any]:
    """Make one answer of two sweeps or deliveries: what they did, and not what is left to do."""
    found: dict[str, list[str]] = {}
    for answer in answers:
        for name, value in asdict(answer).items() if not isinstance(answer, list) else [("all", answer)]:
            if isinstance(value, list | tuple):
                found.setdefault(name, []).extend(repr(one) for one in value)
    return {name: sorted(set(values)) for name, values in found.items()}


SKIPS: dict[str, Any] = {"loose": True, "again": _always, "merge": _union}
"""How verbs are played that leave alone what others hold, as if they came after those: they come again."""


# ── tasks, sessions, leases ──────────────────────────────────────────────────────────────────────


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
    parent = Parent(task=props.task.task, epoch=props.claimed.epoch, key="newborn")
    return [_new(props, 3, parent=parent)]


# A passage reads how long a session lives without holding it: what it says may be older, and so be less.
@acts("renew", loose=True)
def _renew(props: Props) -> Any:
    return SessionRenewal(session=props.session, name="again", ttl_us=60 * SECOND)


@acts("retire")
def _retire(props: Props) -> Any:
    return props.spare


def _claimed(replies: list[Any]) -> Any:
    return replies[-1].refused, sorted(repr(one) for reply in replies for one in reply.claims)


TAKES: dict[str, Any] = {"loose": True, "again": _always, "merge": _claimed}


def _claiming(session: str) -> ClaimRequest:
    serves = (Serves(agent="agent-task", version="v1"),)
    return ClaimRequest(session=session, pools=("pool-task",), serves=serves, limit=5, config="config-1")


@acts("claim", **TAKES)
def _claim(props: Props) -> Any:
    return _claiming(props.spare)


@acts("claim", "claim_by_its_worker", **TAKES)
def _claim_by_its_worker(props: Props) -> Any:
    return _claiming(props.session)


@acts("reconcile")
def _reconcile(props: Props) -> Any:
    return props.session, [TaskRef(tenant=props.parent.tenant, task=props.parent.task)]


@acts("sweep", **SKIPS)
def _sweep(props: Props) -> Any:
    return SweepRequest()


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


def writes(
    name: str, kind: type, *, parent: bool = False, loose: bool = False
) -> Callable[[Callable[[Props], Entry]], None]:
    """Register an entry that the task's worker writes, or its parent's; a deferred batch is sent again."""

    def register(make: Callable[[Props], Entry]) -> None:
        called = f"flush_{name}"

        def made(props: Props) -> Act:
            entry = make(props)
            of = props.parent if parent else props.claimed
            one = TaskWrites(tenant=of.tenant, task=of.task, epoch=of.epoch, entries=(entry,))
            assert type(entry) is kind

            async def play(store: Any, times: int) -> Any:
                return await store.flush(Batch(writer=f"wr_{called}", number=times, writes=(one,)))

            return Act(
                name=called,
                verb="flush",
                play=play,
                loose=loose,
                again=lambda verdicts: verdicts[0].kind == "deferred",
            )

        ACTS[called], VERBS[called], ENTRIES[called] = made, "flush", kind

    return register


@writes("record", RecordOperation)
def _record(props: Props) -> Entry:
    return props.scene.step("written", events=(props.scene.event(),))


@writes("takes", RecordOperation)
def _takes(props: Props) -> Entry:
    return props.scene.step("heard", kind="signal", takes=(props.facts,))


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

    return Act(name=name, verb="flush", play=play, again=lambda said: said[0].kind == "deferred")


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


# ── unknowns ─────────────────────────────────────────────────────────────────────────────────────


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
        tenant=props.claimed.tenant,
        task=props.claimed.task,
        key="open",
        attempt=1,
        source="late",
        data='{"seen":1}',
    )
    return replace(record, **changes)


@acts("note")
def _note(props: Props) -> Any:
    return [_evidence(props, says="happened")]


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
            tenant=props.claimed.tenant,
            task=props.claimed.task,
            key="open",
            turn=props.open.turn,
            ask_in_us=HOUR,
            unusable=True,
            why="nobody answered",
        )
    ]


# ── facts and people ─────────────────────────────────────────────────────────────────────────────


@acts("post")
def _post(props: Props) -> Any:
    return [props.scene.signal(props.claimed, "go", key="key-1")]


@acts("post", "post_family")
def _post_family(props: Props) -> Any:
    return [props.scene.signal(one, "go") for one in (props.parent, props.claimed, props.kid)]


@acts("cancel")
def _cancel(props: Props) -> Any:
    return [Cancel(tenant=props.claimed.tenant, task=props.claimed.task, by="person:eve", reason="enough")]


@acts("cancel", "cancel_undo")
def _cancel_undo(props: Props) -> Any:
    return [
        Cancel(
            tenant=props.claimed.tenant, task=props.claimed.task, by="person:eve", reason="undo", undo=True
        )
    ]


@acts("cancel", "cancel_family")
def _cancel_family(props: Props) -> Any:
    return [
        Cancel(tenant=one.tenant, task=one.task, by="person:eve", reason="all")
        for one in (props.kid, props.claimed, props.parent)
    ]


@acts("news", loose=True, again=_always)
def _news(props: Props) -> Any:
    return props.session, [Heard(tenant=props.claimed.tenant, task=props.claimed.task, facts=props.facts)]


def _deliver(props: Props) -> Act:
    """Deliver; and when it is done again, as long as there is something."""

    async def play(store: Any, times: int) -> Any:
        delivered = [await store.deliver(100)]
        while times > 1 and (delivered[-1].told or delivered[-1].cancelled or delivered[-1].more):
            delivered.append(await store.deliver(100))
        return delivered

    return Act(
        name="deliver",
        verb="deliver",
        play=play,
        loose=True,
        again=_always,
        merge=lambda answers: _union([one for answer in answers for one in answer]),
    )


ACTS["deliver"], VERBS["deliver"] = _deliver, "deliver"


@acts("decide", "decide_approve")
def _approve(props: Props) -> Any:
    return [props.scene.decision(props.asked, "approve")]


@acts("decide", "decide_reject")
def _reject(props: Props) -> Any:
    return [props.scene.decision(props.asked, "reject")]


@acts("put_rule")
def _put_rule(props: Props) -> Any:
    return props.scene.rule("pay", "deny")


@acts("withdraw_rule")
def _withdraw_rule(props: Props) -> Any:
    return props.claimed.tenant, 1, "person:ann", "no more"


def _switch(props: Props) -> Pause:
    return Pause(tenant=props.claimed.tenant, scope="tool:pay", reason="audit", by="person:ann")


# A batch that has looked for switches is not held up by one that comes now.
@acts("pause", loose=True)
def _pause(props: Props) -> Any:
    return _switch(props)


@acts("resume", loose=True)
def _resume(props: Props) -> Any:
    return _switch(props)


# ── change ───────────────────────────────────────────────────────────────────────────────────────


@acts("retry")
def _retry(props: Props) -> Any:
    return [
        Retry(
            tenant=props.claimed.tenant,
            task=props.claimed.task,
            by="person:ann",
            reason="again",
            reopen=("open",),
        )
    ]


@acts("fork")
def _fork(props: Props) -> Any:
    return [
        Fork(
            tenant=props.claimed.tenant,
            task=props.claimed.task,
            new=ids.new_id(ids.TASK, 1_700_000_900_004, 4),
            before="open",
            by="person:ann",
            reason="another way",
        )
    ]


@acts("adopt")
def _adopt(props: Props) -> Any:
    return [
        Adopt(
            tenant=props.claimed.tenant,
            task=props.claimed.task,
            version="v2",
            seen_version=props.task.version,
            seen_epoch=props.task.epoch,
            seen_event=props.task.last_event,
            by="person:ann",
            reason="a new version",
        )
    ]


@acts("wake")
def _wake(props: Props) -> Any:
    return TaskRef(tenant=props.claimed.tenant, task=props.claimed.task), "person:ann", "try again"


@acts("accept")
def _accept(props: Props) -> Any:
    return [
        Acceptance(
            tenant=props.claimed.tenant,
            task=props.claimed.task,
            verdict="accepted",
            by="person:ann",
            reason="good",
        )
    ]


@acts("post_outside")
def _post_outside(props: Props) -> Any:
    return [
        OutsideEvent(
            tenant=props.claimed.tenant,
            provider="provider-1",
            session="session-1",
            run="",
            event="event-1",
            data='{"said":1}',
            digest="digest-event",
        )
    ]


# ── messages, schedules, the clock ───────────────────────────────────────────────────────────────


@acts("confirm_messages")
def _confirm_messages(props: Props) -> Any:
    return [Publication(tenant=props.claimed.tenant, task=props.claimed.task, number=1)]


@acts("put_schedule")
def _put_schedule(props: Props) -> Any:
    made = replace(props.schedule.schedule, input='{"changed":1}')
    return PutSchedule(schedule=made, next_at=props.scene.now, by="ann", revision=props.schedule.revision)


@acts("set_schedule")
def _set_schedule(props: Props) -> Any:
    held = props.schedule.schedule
    return SetSchedule(tenant=held.tenant, id=held.id, command="pause", by="ann", reason="holiday")


@acts(
    "due_schedules",
    loose=True,
    again=_always,
    merge=lambda replies: sorted(repr(row.schedule) for one in replies for row in one.rows),
)
def _due_schedules(props: Props) -> Any:
    return DueRequest(limit=5, lease_us=30 * SECOND)


@acts("fire_schedules")
def _fire_schedules(props: Props) -> Any:
    return [scheduling.firing(props.scene, props.schedule)]


def _minute(props: Props) -> Act:
    return Act(name="a_minute_passes", verb="time", play=None, us=61 * SECOND, loose=True)


ACTS["a_minute_passes"], VERBS["a_minute_passes"] = _minute, "time"
