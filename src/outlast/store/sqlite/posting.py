"""The verbs ``post``, ``news``, ``deliver`` and ``read_inbox``: facts that reach a task from outside.

A fact raises the head's ``facts``, and its inbox row has that number, so that whoever has seen a number of
facts has seen every row up to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store.posting import MAX_INBOX, Delivered, Heard, News, Posted, Signal
from outlast.store.records import InboxRow, TaskRef
from outlast.store.sqlite import cancelling, switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Row, Transaction

PARENT = "parent"
"""Who cancels a child whose parent has ended."""
PARENT_ENDED = "its parent ended"


def post(tx: Transaction, signals: Sequence[Signal], now: int | None) -> list[Posted]:
    """Put signals into their tasks' inboxes; see ``Store.post``."""
    verdicts = put(tx, signals, tx.now(now))
    tx.write_events()
    return verdicts


def put(tx: Transaction, signals: Sequence[Signal], at: int) -> list[Posted]:
    """Put signals into inboxes; whoever has to know hears of a task's signals when all of them lie there."""
    heads: dict[tuple[str, str], Head | None] = {}
    verdicts: list[Posted] = []
    for one in signals:
        name = (one.tenant, one.task)
        if name not in heads:
            heads[name] = Head.read(tx, *name, at)
        verdicts.append(_put_one(tx, heads[name], one))
    told = {
        (one.tenant, one.task) for one, said in zip(signals, verdicts, strict=True) if said.kind == "accepted"
    }
    for name, head in heads.items():
        if head is not None and name in told:
            head.tell()
            head.save()
    return verdicts


def _put_one(tx: Transaction, head: Head | None, one: Signal) -> Posted:
    if head is None:
        return Posted(kind="not_found")
    if one.key is not None:
        used = tx.row("read_signal", (head.tenant, head.task, one.name, one.key))
        if used is not None:
            number, digest = used
            return Posted(kind="replayed" if digest == one.digest else "conflict", number=number)
    if not head.live:
        return Posted(kind="ended", state=head.state)
    if one.operation is not None:
        over = tx.row("read_over", (head.tenant, head.task, one.operation, head.at))
        if over is not None:
            return Posted(kind="over", state=over[0])
    # Every row has a fact of its own, so that fewer facts than that cannot have filled the inbox.
    if head.facts >= MAX_INBOX:
        lying = tx.row("count_inbox", (head.tenant, head.task, MAX_INBOX))
        if lying is not None and lying[0] >= MAX_INBOX:
            return Posted(kind="full")
    head.facts += 1
    row = (head.facts, "signal", one.name, one.key, one.digest, one.data, head.at)
    tx.run("keep_inbox", (head.tenant, head.task, *row))
    head.append("signal.received", json_text({"name": one.name, "number": head.facts}))
    return Posted(kind="accepted", number=head.facts)


def hear(tx: Transaction, session: str) -> list[News]:
    """Read which running tasks of a session have news; see ``Store.news``."""
    return [
        News(tenant=tenant, task=task, facts=facts, cancelling=bool(mark), undoing=bool(undo))
        for tenant, task, facts, mark, undo in tx.rows("read_news", (session,))
    ]


def news(tx: Transaction, session: str, heard: Sequence[Heard]) -> list[News]:
    """Note what a worker has heard, and answer what there is more; see ``Store.news``."""
    # Compared with what it has heard: what was posted in between stays.
    tx.run_many("clear_news", [(session, one.tenant, one.task, one.facts) for one in heard])
    return hear(tx, session)


def nothing_to_deliver(tx: Transaction) -> Delivered | None:
    """Answer a delivery of nothing without being the writer; None when there is something."""
    return None if tx.rows("read_posts", (1,)) or switches.released(tx, 1) else Delivered()


def deliver(tx: Transaction, limit: int, now: int | None) -> Delivered:
    """Deliver what ends of tasks and of switches have left for other tasks; see ``Store.deliver``."""
    at = tx.now(now)
    posts = tx.rows("read_posts", (limit,))
    held = switches.released(tx, limit - len(posts))
    left: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in posts:
        left.setdefault((row[1], row[2]), {}).setdefault(row[3], []).append(row)
    for row in held:
        left.setdefault((row[2], row[3]), {}).setdefault("held", []).append(row)
    told: list[TaskRef] = []
    cancelled: list[TaskRef] = []
    for (tenant, task), mine in sorted(left.items()):
        ref = TaskRef(tenant=tenant, task=task)
        head = Head.read(tx, tenant, task, at)
        # One that has failed or was cancelled may be tried again, and then has to know.
        if head is None or head.state == "succeeded":
            continue
        ends, released = mine.get("child", []), "held" in mine and head.live
        if _tell(tx, head, ends, released=released) and head.live:
            told.append(ref)
        if "cancel" in mine and head.live and cancelling.cancel_head(tx, head, PARENT, PARENT_ENDED):
            cancelled.append(ref)
        head.save()
    tx.run_many("drop_post", [(tenant, seq) for seq, tenant, *_ in posts])
    switches.let_go(tx, held)
    tx.write_events()
    more = nothing_to_deliver(tx) is None
    return Delivered(told=tuple(told), cancelled=tuple(cancelled), more=more)


def _tell(tx: Transaction, head: Head, ends: Sequence[Row], *, released: bool) -> bool:
    """Put children's ends into their parent's inbox, but for those that it has on record, since its worker
    has heard of them by itself; that no switch holds it back is a fact without a row. Answers whether there
    was anything to tell."""
    rows = []
    for _, _, _, _, name, data in ends:
        if tx.row("has_ended", (head.tenant, head.task, name)) is not None:
            continue
        head.facts += 1
        rows.append((head.tenant, head.task, head.facts, "child", name, None, "", data, head.at))
    if not rows and not released:
        return False
    tx.run_many("keep_inbox", rows)
    head.facts += released
    head.tell()
    return True


def read_inbox(tx: Transaction, tenant: str, task: str, after: int = 0) -> list[InboxRow]:
    """Read what lies before a task; see ``Store.read_inbox``."""
    return [
        InboxRow(tenant=tenant, task=task, number=number, kind=kind, name=name, data=data, at=at)
        for number, kind, name, data, at in tx.rows("read_inbox", (tenant, task, after))
    ]
