"""The verbs ``take_messages`` and ``confirm_messages``."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store.rows import Message, Publication
from outlast.store.sqlite.transaction import Transaction


def take_messages(tx: Transaction, limit: int) -> list[Message]:
    """Read pending outbox rows; see ``Store.take_messages``."""
    return [
        Message(tenant=tenant, task=task, number=number, topic=topic, data=data, created_at=created_at)
        for tenant, task, number, topic, data, created_at in tx.rows("take_messages", (limit,))
    ]


def confirm_messages(tx: Transaction, publications: Sequence[Publication]) -> None:
    """Delete what was published and park the rest; see ``Store.confirm_messages``."""
    for one in publications:
        if one.parked is None:
            tx.run("drop_message", (one.tenant, one.task, one.number))
        else:
            tx.run("park_message", (one.parked, one.tenant, one.task, one.number))
