"""The verb ``sweep``: sessions that ran out, then deadlines that passed, then timers that are due."""

from __future__ import annotations

from outlast.store.records import SweepRequest, Swept, TaskRef
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Transaction

_NEVER = (1 << 63) - 1


def peek(tx: Transaction, request: SweepRequest, now: int | None) -> Swept | None:
    """Answer a sweep that would change nothing, without being the writer; None when there may be something.

    Every worker sweeps every few seconds, and mostly finds nothing.
    """
    at = tx.now(now)
    busy, next_due_us = _next_due(tx, request, at)
    return None if busy else Swept(next_due_us=next_due_us)


def sweep(tx: Transaction, request: SweepRequest, now: int | None) -> Swept:
    """Sweep once; see ``Store.sweep``."""
    at = tx.now(now)
    sessions = _lose_sessions(tx, request.limit, at)
    lost, parked = _take_away(tx, request, at)
    expired = _expire(tx, request, at)
    woken = _wake(tx, request.limit, at)
    tx.run("drop_waits", (at,))
    tx.write_events()
    limit = request.limit
    return Swept(
        sessions=tuple(sessions),
        lost=tuple(lost),
        parked=tuple(parked),
        woken=tuple(woken),
        expired=tuple(expired),
        more=max(len(sessions), len(lost) + len(parked), len(woken), len(expired)) >= limit,
        next_due_us=_next_due(tx, request, at)[1],
    )


def _next_due(tx: Transaction, request: SweepRequest, at: int) -> tuple[bool, int | None]:
    """Say whether there is anything to do, and in how many microseconds the next timer is due."""
    found = tx.row("next_due", {"now": at, "grace": request.grace_us})
    assert found is not None
    busy, due = found
    return bool(busy), None if due >= _NEVER else max(0, due - at)


def _lose_sessions(tx: Transaction, limit: int, at: int) -> list[str]:
    sessions = [row[0] for row in tx.rows("expired_sessions", (at, limit))]
    tx.run_many("lose_session", [(at, session) for session in sessions])
    return sessions


def _take_away(tx: Transaction, request: SweepRequest, at: int) -> tuple[list[TaskRef], list[TaskRef]]:
    """Raise the epochs of tasks whose session is lost, so that nothing it still writes is accepted."""
    lost: list[TaskRef] = []
    parked: list[TaskRef] = []
    for tenant, task, session in tx.rows("lost_leases", (request.limit,)):
        head = Head.read(tx, tenant, task, at)
        assert head is not None, "a lease has a head"
        epoch = head.epoch
        if head.cut:
            _cancel(head)
            head.save()
            lost.append(TaskRef(tenant=tenant, task=task))
            continue
        head.end_attempt("lost")
        head.epoch += 1
        head.append("attempt.lost", json_text({"session": session}), epoch=epoch)
        ends = tx.rows("last_ends", (tenant, task, head.round, request.max_deaths))
        if len(ends) >= request.max_deaths and all(end == "lost" for (end,) in ends):
            message = f"the last {request.max_deaths} workers that ran this task died"
            _fail(head, "crash_loop", message, epoch)
            parked.append(TaskRef(tenant=tenant, task=task))
        else:
            head.enqueue()
            head.append("task.queued", epoch=epoch)
            lost.append(TaskRef(tenant=tenant, task=task))
        head.save()
    return lost, parked


def _expire(tx: Transaction, request: SweepRequest, at: int) -> list[TaskRef]:
    """Fail tasks whose deadline has passed."""
    expired: list[TaskRef] = []
    due = {"now": at, "grace": request.grace_us, "limit": request.limit}
    for tenant, task in tx.rows("due_deadlines", due):
        head = Head.read(tx, tenant, task, at)
        assert head is not None, "the query joined it"
        epoch = 0
        if head.cut:
            _cancel(head)
            head.save()
            expired.append(TaskRef(tenant=tenant, task=task))
            continue
        if head.state == "running":
            epoch, end = head.epoch, "cancelled" if head.undoing else "failed"
            head.end_attempt(end)
            head.epoch += 1
            head.append(f"attempt.{end}", epoch=epoch)
        _fail(head, "deadline_exceeded", "the task's deadline passed", epoch)
        head.save()
        expired.append(TaskRef(tenant=tenant, task=task))
    return expired


def _cancel(head: Head) -> None:
    """Take a running task away for good: its cancel stands."""
    epoch = head.epoch
    head.end_attempt("cancelled")
    head.epoch += 1
    head.append("attempt.cancelled", epoch=epoch)
    head.end_cancelled(epoch=epoch)


def _fail(head: Head, code: str, message: str, epoch: int) -> None:
    """Fail a task; one whose cancel stands, and that had still to undo, ends as cancelled all the same."""
    if head.cancelling:
        head.end_cancelled(epoch=epoch)
        return
    head.finish(
        "failed", error=json_text({"code": code, "message": message}), epoch=epoch, data={"code": code}
    )


def _wake(tx: Transaction, limit: int, at: int) -> list[TaskRef]:
    """Queue tasks whose wake timer is due."""
    woken: list[TaskRef] = []
    for tenant, task in tx.rows("due_wakes", (at, limit)):
        head = Head.read(tx, tenant, task, at)
        if head is None or head.state != "waiting":
            tx.run("clear_wake", (tenant, task))
            continue
        head.wake()
        head.save()
        woken.append(TaskRef(tenant=tenant, task=task))
    return woken
