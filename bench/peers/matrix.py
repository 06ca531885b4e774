"""Which engine is used in which way against which service, and what is played there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.drills import DRILLS

__all__ = ["ROWS", "Row"]

_ALL = tuple(DRILLS)
_BLIND = tuple(name for name in DRILLS if name != "lagging-query")
"""Where nothing asks the service, its lag is nothing to anybody."""
_ASKS = ("asks-again",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An engine, the way it is used in (its module says what that is), and the service.

    honours: the service honours keys. named: the author sends the invoice as the key, not the call's own.
    """

    engine: str
    way: str
    honours: bool
    drills: Sequence[str]
    named: bool = False

    @property
    def shown(self) -> str:
        """Answer the way, for people."""
        return f"{self.way}, key from the invoice" if self.named else self.way


ROWS = (
    Row(engine="outlast", way="keyed", honours=True, drills=_ALL),
    Row(engine="outlast", way="queryable", honours=False, drills=_ALL),
    Row(engine="outlast", way="manual", honours=False, drills=_BLIND),
    Row(engine="dbos", way="retries", honours=True, drills=_BLIND),
    Row(engine="dbos", way="no retries", honours=True, drills=_BLIND),
    Row(engine="dbos", way="retries", honours=False, drills=_BLIND),
    Row(engine="dbos", way="no retries", honours=False, drills=_BLIND),
    Row(engine="dbos", way="retries, looks first", honours=False, drills=_ALL),
    Row(engine="dbos", way="retries", honours=True, drills=_ASKS, named=True),
    Row(engine="dbos", way="named child", honours=False, drills=_ASKS),
    Row(engine="langgraph", way="retry policy", honours=True, drills=_BLIND),
    Row(engine="langgraph", way="no policy", honours=True, drills=_BLIND),
    Row(engine="langgraph", way="retry policy", honours=False, drills=_BLIND),
    Row(engine="langgraph", way="no policy", honours=False, drills=_BLIND),
    Row(engine="langgraph", way="retry policy, looks first", honours=False, drills=_ALL),
    Row(engine="langgraph", way="retry policy", honours=True, drills=_ASKS, named=True),
    Row(engine="nexura", way="idempotent", honours=True, drills=_BLIND),
    Row(engine="nexura", way="idempotent", honours=False, drills=_BLIND),
    Row(engine="nexura", way="idempotent, looks first", honours=False, drills=_ALL),
    Row(engine="nexura", way="reconcilable", honours=False, drills=_ALL),
    Row(engine="nexura", way="reconcilable, careful", honours=False, drills=_ALL),
    Row(engine="nexura", way="non_idempotent", honours=False, drills=_BLIND),
    Row(engine="nexura", way="idempotent", honours=True, drills=_ASKS, named=True),
)
"""In the order of the report. What an author declares is what the service does; ``retries`` and
``idempotent`` against a service that ignores keys are there for those who do not know it."""
