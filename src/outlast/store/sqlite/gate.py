"""The gate of an intent: what is looked at before one attempt at an operation may be made.

The look that refuses most rarely costs least: switches are read once a transaction, shared waits, business
keys and decisions only by calls that name one.
"""

from __future__ import annotations

from outlast.core.operation import AFTER_UNKNOWN
from outlast.store.entries import CommitIntent
from outlast.store.sqlite import approving, counts, keys, rules, switches
from outlast.store.sqlite.heads import Head
from outlast.store.sqlite.transaction import Transaction


def admit(tx: Transaction, head: Head, entry: CommitIntent) -> str | None:
    """Commit an intent; answer None, or the name of what refuses it."""
    at = head.at
    deadline_at = at + entry.timeout_us
    if head.deadline_at is not None:
        if at >= head.deadline_at:
            return "deadline"
        deadline_at = min(deadline_at, head.deadline_at)
    visible_at = deadline_at + entry.visible_us
    if head.cancelling and entry.kind != "compensation":
        return "cancelled"
    if _acts_against_a_word(tx, head, entry):
        return "not_planned"
    business = entry.business
    refusal = _against(tx, head, entry)
    if refusal is not None:
        if not _is_planned(tx, head, entry):
            # Whoever is behind the ledger has to hear of that first.
            return "not_planned"
        if refusal == "paused":
            switches.hold(tx, head.tenant, head.task, entry.name)
        return refusal
    first = entry.attempt == 0 and entry.turn == 0 and not entry.resend
    value, rule = (None, None) if business is None else (business.value, business.stored())
    admitted = first and tx.run(
        "commit_first_intent",
        (
            head.tenant,
            head.task,
            entry.key,
            entry.position,
            entry.kind,
            entry.name,
            entry.request,
            entry.decision,
            entry.effect,
            head.epoch,
            entry.arguments,
            at,
            deadline_at,
            visible_at,
            value,
            rule,
        ),
    )
    if not admitted:
        again = tx.run(
            "commit_intent",
            (
                entry.kind,
                entry.name,
                entry.request,
                entry.decision,
                entry.effect,
                head.epoch,
                entry.arguments,
                at,
                deadline_at,
                visible_at,
                value,
                rule,
                head.tenant,
                head.task,
                entry.key,
                entry.attempt,
                entry.turn,
                *_admits(entry),
            ),
        )
        if not again:
            return "not_planned"
        if entry.resend:
            tx.run("drop_unsettled", (head.tenant, head.task, entry.key))
            counts.count(tx, (head.tenant, head.task, entry.key), "planned")
        keys.give_up_others(tx, (head.tenant, head.task, entry.key), business)
    if business is not None:
        keys.take(tx, (head.tenant, head.task, entry.key), business, at)
    if entry.consent is not None and entry.consent.approval is not None:
        approving.use(tx, head, entry, entry.consent.approval)
    return None


def _admits(entry: CommitIntent) -> tuple[str, str]:
    """Answer the states of an operation from which an intent may begin."""
    return ("unknown", "unknown") if entry.resend else ("planned", "approved")


def _acts_against_a_word(tx: Transaction, head: Head, entry: CommitIntent) -> bool:
    """Say whether evidence has it that a call happened which is to be sent again, and twice is not once."""
    if entry.attempt == 0 or AFTER_UNKNOWN[entry.effect].call_again:
        return False
    return tx.row("word_stands", (head.tenant, head.task, entry.key)) is not None


def any_waits(tx: Transaction, at: int) -> bool:
    """Say whether any provider has asked to wait: one look a transaction, so that nobody else pays for it."""
    if tx.waits is None:
        tx.waits = tx.row("any_waits", (at,)) is not None
    return tx.waits


def _against(tx: Transaction, head: Head, entry: CommitIntent) -> str | None:
    """Say what is against an intent beside the ledger itself."""
    if entry.heard is not None and head.facts > entry.heard:
        return "news"
    if switches.standing(tx, head.tenant, entry.name) is not None:
        return "paused"
    if entry.provider is not None and any_waits(tx, head.at):
        wait = tx.row("read_wait", (head.tenant, entry.provider))
        if wait is not None and wait[0] > head.at:
            return f"held {wait[0] - head.at}"
    consent = entry.consent
    if consent is not None:
        if not rules.agrees(tx, head.tenant, entry.name, consent):
            return "rules_changed"
        if consent.approval is None:
            allowed = not approving.refuses(tx, head, entry, consent)
        else:
            allowed = approving.covers(tx, head, entry, consent)
        if not allowed:
            return "no_approval"
    elif rules.any_rules(tx) and not rules.agrees(tx, head.tenant, entry.name, None):
        return "rules_changed"
    if entry.business is None:
        return None
    operation = (head.tenant, head.task, entry.key)
    return keys.refusal(tx, operation, entry.business, repeat=entry.repeat, at=head.at)


def _is_planned(tx: Transaction, head: Head, entry: CommitIntent) -> bool:
    """Say whether the ledger itself would admit an intent."""
    found = tx.row("read_operation", (head.tenant, head.task, entry.key))
    if found is None:
        return entry.attempt == 0 and entry.turn == 0 and not entry.resend
    state, attempt, turn, *_ = found
    return state in _admits(entry) and (attempt, turn) == (entry.attempt, entry.turn)
