"""The verb ``cancel``: what is answered is decided on the task's head.

A task that does not run ends there and then. One that runs takes a mark, with its event; from then on its
gates refuse, and whatever ends its attempt ends it as cancelled, by the words of that event. One that has
begun and is to undo what it has done, or has decided to since it failed, takes both marks and goes back to
a worker; only its end is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store.posting import Cancel, CancelReply
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Transaction


def cancel(tx: Transaction, requests: Sequence[Cancel], now: int | None) -> list[CancelReply]:
    """Cancel tasks; see ``Store.cancel``."""
    at = tx.now(now)
    replies = [_cancel_one(tx, one, at) for one in requests]
    tx.write_events()
    return replies


def _cancel_one(tx: Transaction, one: Cancel, at: int) -> CancelReply:
    head = Head.read(tx, one.tenant, one.task, at)
    if head is None:
        return CancelReply(kind="not_found")
    if not head.live:
        return CancelReply(kind="already" if head.state == "cancelled" else "ended", state=head.state)
    if cancel_head(tx, head, one.by, one.reason, undo=one.undo):
        head.save()
    return CancelReply(kind="cancelled" if head.state == "cancelled" else "requested", state=head.state)


def cancel_head(tx: Transaction, head: Head, by: str, reason: str, *, undo: bool = False) -> bool:
    """End a live task as cancelled, or mark it where it runs or is to undo what it has done; answers whether
    anything was changed.

    The first who asks is the one whose reason counts.
    """
    if head.cancelling:
        return False
    # An undo that is decided comes to its end, whoever cancels meanwhile.
    undo = head.epoch > 0 and (undo or _undoes(tx, head))
    if head.state == "running" or undo:
        head.cancelling, head.undoing = 1, int(undo)
        said = {"by": by, "reason": reason, "undo": True} if undo else {"by": by, "reason": reason}
        head.append("task.cancel_requested", json_text(said))
        head.facts += 1
        head.tell()
    else:
        head.finish_cancelled(by, reason)
    switches.audit(tx, head.tenant, who=by, what="cancel", subject=head.task, reason=reason, at=head.at)
    return True


def _undoes(tx: Transaction, head: Head) -> bool:
    return tx.row("read_undo_decision", (head.tenant, head.task, head.round)) is not None
