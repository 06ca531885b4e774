"""What an attempt knows of the task's ledger: which operations there are, and how they ended.

It begins with what was loaded. What ends in this attempt is remembered, so that the same key may be asked for
again without a look at the disk.
"""

from __future__ import annotations

from typing import Any

from outlast.core.operation import OperationKind, OperationState
from outlast.store.records import Loaded, OperationRow

__all__ = ["Known"]


class Known:
    """The operations of one task, as far as one attempt knows."""

    def __init__(self, tenant: str, task: str, loaded: Loaded) -> None:
        self._tenant, self._task = tenant, task
        self._rows: dict[str, OperationRow] = {row.key: row for row in loaded.operations}
        self._remembered: dict[str, tuple[Any, ...]] = {}
        """Operations that ended in this attempt; few are asked for again, so their rows are made late."""
        self._position = max((row.position for row in loaded.operations), default=0)
        self.bound: dict[str, str] = {}
        """The request that each key stands for in this attempt."""
        self.issued = {row.key: row for row in loaded.issued}
        """Calls that the task which it was forked from has made behind the fork."""

    def next_position(self) -> int:
        """Take the next place in the ledger."""
        self._position += 1
        return self._position

    @property
    def rows(self) -> dict[str, OperationRow]:
        """What is on record of each operation, by key."""
        for key in list(self._remembered):
            self.row(key)
        return self._rows

    def row(self, key: str) -> OperationRow | None:
        """Answer what is on record under a key, None for nothing."""
        remembered = self._remembered.pop(key, None)
        if remembered is None:
            return self._rows.get(key)
        position, kind, name, state, request, result, error = remembered
        row = self._rows[key] = OperationRow(
            tenant=self._tenant,
            task=self._task,
            key=key,
            position=position,
            kind=kind,
            name=name,
            state=state,
            request=request,
            result=result,
            error=error,
        )
        return row

    def remember(
        self,
        key: str,
        position: int,
        kind: OperationKind,
        name: str,
        state: OperationState,
        request: str,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Keep an operation that has ended."""
        self._remembered[key] = (position, kind, name, state, request, result, error)
