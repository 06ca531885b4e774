"""The verbs ``claim_open`` and ``postpone``: unknown operations worked on without a lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlast.core.transitions import TASK
from outlast.store.reconciling import OpenItem, OpenRequest, OpenState, Postponement
from outlast.store.sqlite.claim import operation_row
from outlast.store.sqlite.heads import json_text
from outlast.store.sqlite.transaction import Row, Transaction


def peek(tx: Transaction, request: OpenRequest, now: int | None) -> list[OpenItem] | None:
    """Answer a request that would take nothing without being the writer; None when there may be something."""
    return None if _due(tx, request, tx.now(now)) else []


def claim_open(tx: Transaction, request: OpenRequest, now: int | None) -> list[OpenItem]:
    """Take unknown operations that are due; see ``Store.claim_open``."""
    at = tx.now(now)
    items: list[OpenItem] = []
    for trace, task_state, *row in _due(tx, request, at):
        operation = operation_row(tuple(row))
        name = (operation.tenant, operation.task, operation.key)
        tx.run("take_open_turn", (*name, operation.turn))
        tx.run("hold_open", (request.session, at + request.lease_us, *name))
        items.append(
            OpenItem(
                operation=replace(operation, turn=operation.turn + 1),
                trace=trace,
                task_ended=task_state in TASK.final,
            )
        )
    return items


def _due(tx: Transaction, request: OpenRequest, at: int) -> list[Row]:
    """Read what a session may take; nothing for one that does not live."""
    if request.limit <= 0 or not request.tools:
        return []
    session = tx.row("read_session", (request.session,))
    if session is None or session[2] is not None:
        return []
    return tx.rows("due_open", {"now": at, "tools": json_text(request.tools), "limit": request.limit})


def postpone(tx: Transaction, postponements: Sequence[Postponement], now: int | None) -> list[bool]:
    """Put taken operations back; see ``Store.postpone``.

    What was put back bears the turn of that as a mark, so that a repeat counts no question twice.
    """
    at = tx.now(now)
    return [_put_back(tx, one, at) for one in postponements]


def _put_back(tx: Transaction, one: Postponement, at: int) -> bool:
    name = (one.tenant, one.task, one.key)
    found = tx.row("read_open_turn", name)
    if found is None or found[:2] != ("unknown", one.turn):
        return False
    mark = f":{one.turn}"
    if found[2] != mark:
        ask_at = None if one.ask_in_us is None else at + one.ask_in_us
        if one.wait is not None:
            provider, wait_us = one.wait
            ask_at = None if ask_at is None else max(ask_at, at + wait_us)
            tx.run("keep_wait", (one.tenant, provider, at + wait_us))
        if tx.row("newer_evidence", (*name, one.seen)) is not None:
            # It came while the operation was looked at, and is considered at once.
            ask_at = at
        tx.run("put_back", (one.held, one.unusable, ask_at, mark, one.why, *name))
    return True


def read_open(
    tx: Transaction, tenant: str, task: str, key: str, *, provider: str | None, now: int | None
) -> OpenState | None:
    """Read an operation's place in the reconciliation queue; see ``Store.read_open``."""
    names = {"tenant": tenant, "task": task, "key": key, "provider": provider, "now": tx.now(now)}
    found = tx.row("read_open", names)
    if found is None:
        return None
    since, asked, unusable, ask_at, sender_gone, why, resend, held_until = found
    return OpenState(
        since=since,
        asked=asked,
        unusable=unusable,
        ask_at=ask_at,
        sender_gone=bool(sender_gone),
        why=why,
        resend=bool(resend),
        held_until=held_until,
    )
