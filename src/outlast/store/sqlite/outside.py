"""Outside sessions: attached under a lease, and the verb ``post_outside``."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store.changing import OutsideEvent, OutsidePosted, OutsideRow
from outlast.store.entries import AttachSession
from outlast.store.posting import Posted, Signal
from outlast.store.records import TaskRef
from outlast.store.sqlite import posting
from outlast.store.sqlite.heads import Head
from outlast.store.sqlite.transaction import Transaction


def attach(tx: Transaction, head: Head, entry: AttachSession) -> str | None:
    """Hold an outside session; answer None, or that it is taken and by whom."""
    name = (head.tenant, entry.provider, entry.session, entry.run)
    head.write_others()
    holder = tx.row("read_holder", name)
    if holder is not None and holder[0] != head.task and holder[1]:
        return f"taken {holder[0]}"
    tx.run("attach", (*name, head.task, head.epoch, head.at))
    head.say(entry.events)
    return None


def post_outside(tx: Transaction, events: Sequence[OutsideEvent], now: int | None) -> list[OutsidePosted]:
    """Bring events of outside sessions to the tasks that hold them; see ``Store.post_outside``."""
    at = tx.now(now)
    found = [tx.row("find_outside", (one.tenant, one.provider, one.session, one.run)) for one in events]
    held = [(one, *holder) for one, holder in zip(events, found, strict=True) if holder is not None]
    signals = [
        Signal(
            tenant=one.tenant,
            task=task,
            name=f"outside:{one.provider}",
            data=one.data,
            digest=one.digest,
            key=f"{one.session}/{one.run}/{one.event}",
        )
        for one, task, _ in held
    ]
    posted = posting.put(tx, signals, at)
    for (one, _, run), said in zip(held, posted, strict=True):
        if said.kind == "accepted":
            tx.run("keep_outside_event", (one.event, at, one.tenant, one.provider, one.session, run))
    tx.write_events()
    said_of = iter(posted)
    return [
        OutsidePosted(kind="not_found") if holder is None else _posted(next(said_of), one.tenant, holder[0])
        for one, holder in zip(events, found, strict=True)
    ]


def _posted(said: Posted, tenant: str, task: str) -> OutsidePosted:
    assert said.kind != "over", "it answers no single wait"
    return OutsidePosted(kind=said.kind, task=TaskRef(tenant=tenant, task=task))


def read_outside(tx: Transaction, tenant: str, task: str) -> list[OutsideRow]:
    """Read the outside sessions that a task holds; see ``Store.read_outside``."""
    return [
        OutsideRow(
            tenant=tenant,
            provider=provider,
            session=session,
            run=run,
            task=task,
            attached_at=attached_at,
            last_event=last_event,
            last_event_at=last_event_at,
        )
        for provider, session, run, attached_at, last_event, last_event_at in tx.rows(
            "read_outside", (tenant, task)
        )
    ]
