"""How the unknowns of a tool were settled, counted as that happens."""

from __future__ import annotations

from outlast.store.reconciling import COUNT_BOUND, SettledCounts, UnknownCount
from outlast.store.sqlite.keys import Operation
from outlast.store.sqlite.transaction import Transaction


def count(tx: Transaction, operation: Operation, state: str) -> None:
    """Count one settlement by the state that it came to; those of tools only."""
    settled = (state == "succeeded", state == "failed", state == "planned")
    if any(settled):
        tx.run("count_settled", (*settled, *operation))


def read(tx: Transaction, tenant: str) -> list[SettledCounts]:
    """Read a tenant's counts; see ``Store.read_settled_counts``."""
    return [
        SettledCounts(
            tool=tool,
            unknown=unknown,
            happened=happened,
            did_not_happen=did_not_happen,
            sent_again=sent_again,
        )
        for tool, unknown, happened, did_not_happen, sent_again in tx.rows(
            "read_settled_counts", {"tenant": tenant, "limit": COUNT_BOUND}
        )
    ]


def count_unknown(tx: Transaction) -> list[UnknownCount]:
    """Count unknown calls by tool; see ``Store.count_unknown``."""
    return [
        UnknownCount(tool=tool, unknown=unknown)
        for tool, unknown in tx.rows("count_unknown", {"limit": COUNT_BOUND})
    ]
