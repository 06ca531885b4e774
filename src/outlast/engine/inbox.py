"""What lies before one run: signals and children's ends that were read, and are not taken yet.

Purpose: each signal goes to one wait, the oldest first; of several waits for one name, the one that was
recorded first goes first, on every replay alike.

Identity: rows by number, waits by operation key, ordered by position.

State: a row is read, then given to a wait, then taken (the wait puts that on record). A wait that is cut in
between gives its row back.

Failure by failure: a crash before the take is on disk: the row is read again, and goes to the same wait. A
wait that is on record and has not been made again yet, since its branch is slower on this replay, keeps its
place; when nothing else moves, its place is given up, so that code which never comes to it again does not
keep others waiting.

Not covered: which of two waits is recorded first, where branches race to make them.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.store.records import InboxRow, OperationRow

NEVER = 1 << 62
"""An instant after every other."""


@dataclass(slots=True, eq=False)
class Ear:
    """A wait for one signal of a name. due_at: only what was posted by then counts. arrived: the row that it
    was given."""

    name: str
    key: str
    position: int
    due_at: int
    arrived: asyncio.Future[InboxRow] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def row(self) -> InboxRow | None:
        """The row that it was given, if any."""
        return self.arrived.result() if self.arrived.done() and not self.arrived.cancelled() else None


class Inbox:
    """Rows read and not taken, and who waits for them."""

    def __init__(self, facts: int, rows: Sequence[InboxRow], operations: Sequence[OperationRow]) -> None:
        self.seen = facts
        """Every row up to this number was read."""
        self._signals: dict[str, list[InboxRow]] = {}
        self._ends: dict[str, InboxRow] = {}
        self._ears: dict[str, list[Ear]] = {}
        self._absent: dict[str, dict[str, OperationRow]] = {}
        self._when_ended: dict[str, Callable[[str], None]] = {}
        self.handed: set[asyncio.Future[Any]] = set()
        """Whoever was given a row and has not gone on since: the run does not rest until they have."""
        for operation in operations:
            # Questions to people are of the same kind, and have their text as arguments.
            if (operation.kind, operation.state, operation.arguments) == ("signal", "running", None):
                self._absent.setdefault(operation.name, {})[operation.key] = operation
        for row in rows:
            self._keep(row)
            self.seen = max(self.seen, row.number)

    def add(self, rows: Sequence[InboxRow]) -> None:
        """Take in what was read above ``seen``; rows that are known already are passed over."""
        names = set()
        for row in rows:
            if row.number > self.seen:
                self._keep(row)
                if row.kind == "signal":
                    names.add(row.name)
        self.seen = max([self.seen, *(row.number for row in rows)])
        for name in sorted(names):
            self._hand_out(name)

    def _keep(self, row: InboxRow) -> None:
        if row.kind == "signal":
            insort(self._signals.setdefault(row.name, []), row, key=lambda one: one.number)
            return
        self._ends.setdefault(row.name, row)
        told = self._when_ended.pop(row.name, None)
        if told is not None:
            told(row.name)

    def _hand(self, future: asyncio.Future[InboxRow], row: InboxRow) -> None:
        if not future.done():
            future.set_result(row)
            self.handed.add(future)

    # -- signals --------------------------------------------------------------------------------------------

    def listen(self, name: str, key: str, position: int, due_at: int | None) -> Ear:
        """Wait for a signal of a name; it may be there already."""
        ear = Ear(name=name, key=key, position=position, due_at=NEVER if due_at is None else due_at)
        self._absent.get(name, {}).pop(key, None)
        self._ears.setdefault(name, []).append(ear)
        self._hand_out(name)
        return ear

    def leave(self, ear: Ear, *, taken: bool) -> None:
        """Wait no more. taken: the row is consumed; otherwise it goes to the next in line."""
        ears = self._ears.get(ear.name, [])
        if ear in ears:
            ears.remove(ear)
            if not ears:
                del self._ears[ear.name]
        self.handed.discard(ear.arrived)
        row = ear.row
        if row is not None and not taken:
            self._keep(row)
        # Whoever comes behind may be next now, whatever became of this one.
        self._hand_out(ear.name)

    def settle_absent(self) -> bool:
        """Give up the places of waits that were not made again; answer whether that moved any."""
        names, self._absent = list(self._absent), {}
        return any([self._hand_out(name) for name in names])

    def _hand_out(self, name: str) -> bool:
        rows, ears = self._signals.get(name), self._ears.get(name)
        if not rows or not ears:
            return False
        line: list[tuple[int, int, Ear | None]] = [
            (ear.position, ear.due_at, ear) for ear in ears if not ear.arrived.done()
        ]
        for absent in self._absent.get(name, {}).values():
            line.append((absent.position, NEVER if absent.due_at is None else absent.due_at, None))
        kept: set[int] = set()
        moved = False
        for _, due_at, ear in sorted(line, key=lambda place: place[0]):
            row = next((row for row in rows if row.at <= due_at and row.number not in kept), None)
            if row is None:
                continue
            if ear is None:
                kept.add(row.number)
                continue
            rows.remove(row)
            self._hand(ear.arrived, row)
            moved = True
        if not rows:
            del self._signals[name]
        return moved

    # -- children -------------------------------------------------------------------------------------------

    def end_of(self, key: str) -> InboxRow | None:
        """Answer the end of a child, by its operation's key, if it lies there."""
        return self._ends.get(key)

    def when_ended(self, key: str, told: Callable[[str], None]) -> None:
        """Call a function with a child's key once its end lies there; at once, if it does."""
        if key in self._ends:
            told(key)
        else:
            self._when_ended[key] = told

    def forget_end(self, key: str) -> None:
        """Wait for another end of a child: it runs again."""
        self._ends.pop(key, None)
