"""One transaction as the verbs see it: statements by name, one clock, lanes by their key, events to be
appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import apsw
import orjson

from outlast.core.transitions import TASK
from outlast.store import statements

SQL = statements.load(resources.files("outlast.store.sqlite") / "sql")
"""Every statement of this store by name."""

Row = tuple[Any, ...]
Bindings = Mapping[str, Any] | Sequence[Any]
LaneKey = tuple[str, str, str, str, int]
"""(pool, agent, version, tenant, priority)."""
_ENDS = frozenset(f"task.{state}" for state in TASK.final)


class Transaction:
    """What a verb writes through. Lives for one transaction of one connection; not shared between threads.

    hints: topics to hint once this transaction is committed. pauses: (tenant, scope) of every switch that
    stands; keys, rules, waits and unsettled: whether there is any business key, any standing rule, any
    provider's wait, anything in the reconciliation queue; None until somebody has looked.
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_events",
        "_known_lanes",
        "_new_lanes",
        "_now",
        "execute",
        "hints",
        "keys",
        "pauses",
        "rules",
        "unsettled",
        "waits",
    )

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        clock: Callable[[], int] | None = None,
        lanes: Mapping[LaneKey, int] | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._known_lanes: Mapping[LaneKey, int] = lanes if lanes is not None else {}
        self._new_lanes: dict[LaneKey, int] = {}
        self._events: list[Row] = []
        self._now: int | None = None
        self.execute = connection.execute
        self.hints: set[str] = set()
        self.pauses: frozenset[Row] | None = None
        self.keys: bool | None = None
        self.rules: bool | None = None
        self.waits: bool | None = None
        self.unsettled: bool | None = None

    # -- statements ------------------------------------------------------------------------------------------

    def run(self, name: str, bindings: Bindings = ()) -> int:
        """Run a statement; answer how many rows it changed."""
        self.execute(SQL[name], bindings)
        return self._connection.changes()

    def run_many(self, name: str, rows: Sequence[Bindings]) -> int:
        """Run a statement once a row; answer how many rows it changed."""
        if not rows:
            return 0
        before = self._connection.total_changes()
        self._connection.executemany(SQL[name], rows)
        return self._connection.total_changes() - before

    def row(self, name: str, bindings: Bindings = ()) -> Row | None:
        """Run a statement; answer its one row, or None."""
        found: list[Row] = self.execute(SQL[name], bindings).fetchall()
        return found[0] if found else None

    def rows(self, name: str, bindings: Bindings = ()) -> list[Row]:
        """Run a statement; answer its rows."""
        found: list[Row] = self.execute(SQL[name], bindings).fetchall()
        return found

    def rows_of(self, name: str, asked: Sequence[Row]) -> list[Row]:
        """Run a query once for all that is asked, which it takes as one JSON text; answer its rows.

        They come as one JSON text too: for each row that a statement steps to the interpreter is given away,
        which costs more than the row where another thread wants it. So they must be short together.
        """
        if not asked:
            return []
        row = self.row(name, (orjson.dumps(asked).decode(),))
        assert row is not None, "an aggregate has one row"
        found: list[Row] = orjson.loads(row[0])
        return found

    def each(self, name: str, bindings: Bindings = ()) -> Iterator[Row]:
        """Run a query; answer its rows one by one, for those who may stop early."""
        return iter(self.execute(SQL[name], bindings))

    def named_rows(self, sql: str) -> list[dict[str, Any]]:
        """Run a query given as text; answer its rows by the names of their columns."""
        cursor = self.execute(sql)
        # A statement that has shown its last row, or has none, says no names any more.
        first = cursor.fetchone()
        if first is None:
            return []
        names = [column[0] for column in cursor.get_description()]
        return [dict(zip(names, row, strict=True)) for row in (first, *cursor)]

    # -- the clock -------------------------------------------------------------------------------------------

    def now(self, given: int | None = None) -> int:
        """Answer the time that this transaction judges by, in microseconds: the one given, else the
        database's.

        The database's clock is read once, after the lock was taken, so that it stands still within a
        transaction.
        """
        if given is not None:
            return given
        if self._now is None:
            if self._clock is not None:
                self._now = self._clock()
            else:
                row = self.row("read_clock")
                assert row is not None
                self._now = int(row[0])
        return self._now

    # -- lanes and the queue ---------------------------------------------------------------------------------

    def lane(self, key: LaneKey) -> int:
        """Answer the id of a lane, which is made if need be."""
        lane = self._known_lanes.get(key) or self._new_lanes.get(key)
        if lane is None:
            row = self.row("find_lane", key) or self.row("make_lane", key)
            assert row is not None
            lane = self._new_lanes[key] = int(row[0])
        return lane

    @property
    def new_lanes(self) -> Mapping[LaneKey, int]:
        """Lanes looked up or made here; to be remembered only once this transaction is committed."""
        return self._new_lanes

    def forget(self) -> None:
        """Drop what a verb left here that was rolled back: lanes, events, and what it has looked at."""
        self._new_lanes.clear()
        self._events.clear()
        self.pauses = self.keys = self.rules = self.waits = self.unsettled = None

    def enqueue(self, entries: Sequence[tuple[int, str, str]]) -> None:
        """Put tasks, as (lane, tenant, task), into their lanes behind everything queued before."""
        if not entries:
            return
        row = self.row("take_places", (len(entries),))
        assert row is not None
        first = int(row[0]) - len(entries) + 1
        self.run_many(
            "enqueue", [(lane, first + i, tenant, task) for i, (lane, tenant, task) in enumerate(entries)]
        )
        self.hints.add("queue")

    # -- events ----------------------------------------------------------------------------------------------

    def append_event(self, event: Row) -> None:
        """Collect an event, as (tenant, task, number, kind, epoch, data, at), to be written by
        ``write_events``."""
        self._events.append(event)

    def write_events(self) -> None:
        """Write the collected events in one go."""
        if self._events:
            events, self._events = self._events, []
            self.run_many("append_events", events)
            self.hints.add("events")
            if not _ENDS.isdisjoint([event[3] for event in events]):
                self.hints.add("ends")
