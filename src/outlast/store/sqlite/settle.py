"""The verbs ``settle`` and ``note``: facts from outside."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from outlast.core.ids import operation_id
from outlast.core.transitions import OPERATION
from outlast.store.records import Evidence, Settled, Settlement
from outlast.store.sqlite import approving, counts, keys, switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Transaction

CONTRADICTED = "late evidence contradicts what was settled"
"""Why an operation stands in the reconciliation queue again."""
_STATES = {"happened": "succeeded", "did_not_happen": "failed", "send_again": "unknown"}


def settle(tx: Transaction, settlements: Sequence[Settlement], now: int | None) -> list[Settled]:
    """Settle unknown operations; see ``Store.settle``."""
    at = tx.now(now)
    verdicts = [_settle_one(tx, one, at) for one in settlements]
    tx.write_events()
    return verdicts


def _settle_one(tx: Transaction, one: Settlement, at: int) -> Settled:
    name = (one.tenant, one.task, one.key)
    found = tx.row("read_operation", name)
    if found is None:
        return Settled(kind="not_found")
    state, attempt, turn, deadline_at, visible_at = found
    if state != "unknown" or (one.turn is not None and one.turn != turn):
        return Settled(kind="conflict", state=state)
    by_person = one.by.startswith("person:")
    # What a person says of an effect counts once it had to be visible; the settler's rules are its own. Where
    # nothing was ever sent there is neither.
    open_until = visible_at if by_person else deadline_at
    if one.verdict != "happened" and not one.forced and open_until is not None and at < open_until:
        return Settled(kind="too_early", state=state, wait_us=open_until - at)
    if one.verdict != "happened" and not by_person and tx.row("word_stands", name) is not None:
        return Settled(kind="conflict", state=state)
    head = Head.read(tx, one.tenant, one.task, at)
    live = head is not None and head.live
    settled = _STATES[one.verdict]
    tx.run(
        "settle_operation",
        {
            "tenant": one.tenant,
            "task": one.task,
            "key": one.key,
            "turn": turn,
            "state": settled,
            "result": one.result if settled == "succeeded" else None,
            "error": _error(one) if settled == "failed" else None,
            # What is to be sent again keeps why it is unknown: its earlier attempt may have acted.
            "keeps_error": settled == "unknown",
            "ended_at": at if settled in OPERATION.final else None,
            "by": one.by,
        },
    )
    if settled in OPERATION.final:
        tx.run("drop_unsettled", name)
        keys.end(tx, name, settled, at)
    else:
        # A task that is over sends nothing.
        tx.run("mark_resend", (live, None if live else at, *name))
    kept = json_text(
        {
            "verdict": one.verdict,
            "by": one.by,
            "reason": one.reason,
            "forced": one.forced,
            "evidence": orjson.Fragment(one.evidence),
        }
    )
    counts.count(tx, name, settled)
    tx.run("add_evidence", (*name, attempt, "person" if by_person else "answered", kept, at, None))
    if by_person:
        approving.spend(tx, name)
        switches.audit(
            tx,
            one.tenant,
            who=one.by,
            what=f"settle:{one.verdict}",
            subject=operation_id(one.task, one.key),
            reason=one.reason,
            at=at,
            data=one.evidence,
        )
    # The end of a task stays its last event.
    if head is not None and live:
        head.append(
            "operation.settled", json_text({"operation": one.key, "verdict": one.verdict, "by": one.by})
        )
        head.facts += 1
        # A wait for several things bears the name of one of them, so this may be what it waits for whatever
        # its name; only an operator's is nobody else's to end.
        if head.reason != "operator":
            head.tell()
        head.save()
    return Settled(kind="settled", state=settled)


def _error(one: Settlement) -> str:
    return json_text({"code": "did_not_happen", "message": one.reason, "retryable": one.retryable})


def note(tx: Transaction, evidence: Sequence[Evidence], now: int | None) -> None:
    """Append evidence; see ``Store.note``."""
    at = tx.now(now)
    for one in evidence:
        row = (one.tenant, one.task, one.key, one.attempt, one.source, one.data, at, one.says)
        tx.run("add_evidence", row)
        if one.says is not None:
            _compare(tx, one, at)
    tx.write_events()


def _compare(tx: Transaction, one: Evidence, at: int) -> None:
    """Compare what evidence says with what is recorded."""
    name = (one.tenant, one.task, one.key)
    found = tx.row("read_settled", name)
    if found is None:
        return
    state, attempt, turn, settled_by, effect = found
    if one.says == "over":
        if attempt == one.attempt:
            # Nothing is known of it now either, but its sender is gone: whoever asks may conclude more.
            tx.run("ask_without_sender", (at, *name))
    elif state == "unknown":
        if tx.run("ask_after_all", (at, *name)):
            # Whoever was to send it again under this turn does not.
            tx.run("take_open_turn", (*name, turn))
        else:
            tx.run("ask_now", (at, *name))
    elif effect == "read":
        # It changes nothing, whether it happened or not: nobody needs to look.
        return
    elif one.says == "happened":
        # All attempts are one call, under one key: whichever happened, it has not failed, and is not sent
        # again.
        fewest = {"failed": 0, "planned": 1, "approved": 1}.get(state)
        if fewest is not None and fewest <= one.attempt <= attempt:
            _contradict(tx, one, at)
    # The answer of a call itself is not contradicted by its absence later.
    elif one.attempt == attempt and state == "succeeded" and settled_by is not None:
        _contradict(tx, one, at)


def _contradict(tx: Transaction, one: Evidence, at: int) -> None:
    """Put an operation back into the reconciliation queue, for a person."""
    name = (one.tenant, one.task, one.key)
    tx.run("contradict_operation", name)
    other = keys.doubt(tx, name)
    why = CONTRADICTED
    if other is not None:
        # Also as evidence: why it waits is written anew by whoever looks at it.
        value, holder = other
        owner = operation_id(holder.task, holder.key)
        why = f"{CONTRADICTED}; {owner} has its business key"
        said = json_text({"business_key": value, "operation": owner, "state": holder.state})
        tx.run("add_evidence", (*name, one.attempt, "key", said, at, None))
    tx.run("add_unsettled", (*name, at, None, False, why))
    tx.unsettled = True
    head = Head.read(tx, one.tenant, one.task, at)
    if head is not None and head.live:
        head.append("operation.contradicted", json_text({"operation": one.key, "says": one.says}))
        head.save()
