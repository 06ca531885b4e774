"""The verb ``admit`` and the view ``read_passage``: whether a request of a running operation may leave."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from outlast.store.passing import PASSED_BOUND, Passage, PassageNote
from outlast.store.reconciling import EVERY_TENANT
from outlast.store.records import Evidence
from outlast.store.sqlite.transaction import Transaction


def admit(tx: Transaction, notes: Sequence[Evidence], now: int | None) -> list[Passage | None]:
    """Note requests that are about to leave, and read what decides on each; see ``Store.admit``."""
    at = tx.now(now)
    for one in notes:
        if read_passage(tx, one.tenant, one.task, one.key, at) is not None:
            tx.run(
                "add_evidence",
                (one.tenant, one.task, one.key, one.attempt, one.source, one.data, at, None),
            )
    return [read_passage(tx, one.tenant, one.task, one.key, at) for one in notes]


def read_passage(tx: Transaction, tenant: str, task: str, key: str, now: int | None) -> Passage | None:
    """Read what decides whether a request of an operation may leave; see ``Store.read_passage``."""
    found = tx.row(
        "read_passage",
        {"tenant": tenant, "task": task, "key": key, "every": EVERY_TENANT, "limit": PASSED_BOUND},
    )
    if found is None:
        return None
    return Passage(
        now=tx.now(now),
        task_state=found[0],
        task_epoch=found[1],
        cancelling=bool(found[2]),
        lease_epoch=found[3],
        lease_until=found[4],
        kind=found[5],
        tool=found[6],
        state=found[7],
        attempt=found[8],
        epoch=found[9],
        deadline_at=found[10],
        decision=found[11],
        paused=bool(found[12]),
        approval=found[13],
        approval_state=found[14],
        approval_fingerprint=found[15],
        approval_spent=bool(found[16]),
        trace=found[17],
        idempotency_key=found[18],
        notes=tuple(PassageNote(attempt=attempt, data=data) for attempt, data in orjson.loads(found[19])),
    )
