"""Where verbs are carried out: the one writer of a store, and a desk for views, each on a connection of its
own.

Both are plain and synchronous, and used by one thread at a time; ``executor`` decides which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import apsw

from outlast import clock
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite.log import Log
from outlast.store.sqlite.transaction import LaneKey, Transaction

GROUP_SECONDS = 0.05
"""So long after its first verb a group begins no further one: what is large or many shall not keep the others
waiting."""

Verb = Callable[[Transaction], Any]
"""What is done inside a transaction; it awaits nothing."""


class Call(NamedTuple):
    """A verb to carry out.

    peek: what may answer it without a writing transaction, or None to say that one is needed.
    """

    verb: Verb
    peek: Verb | None = None


class Outcome(NamedTuple):
    """What came of one verb: its answer, or the error that it raised."""

    answer: Any = None
    error: Exception | None = None


class Carried(NamedTuple):
    """What came of a group, verb by verb, and what is to be hinted since it is committed. None: there was no
    time for it, and it was not begun."""

    outcomes: Sequence[Outcome | None]
    hints: frozenset[str] = frozenset()


class Desk:
    """A connection that is opened when it is first needed, and anew after it broke."""

    def __init__(
        self,
        path: str,
        *,
        now: Callable[[], int] | None = None,
        connect: Callable[[str], apsw.Connection] = connections.connect,
    ) -> None:
        self.path = path
        self._connect = connect
        self._now = now
        self._connection: apsw.Connection | None = None

    def connection(self) -> apsw.Connection:
        """Answer the open connection. Raises StoreUnavailable."""
        if self._connection is None:
            self._connection = self._connect(self.path)
            self._opened(self._connection)
        return self._connection

    def _opened(self, connection: apsw.Connection) -> None:
        """Do what has to be done with a fresh connection."""

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def look(self, views: Sequence[Verb], *, whole: bool = False) -> Carried:
        """Carry out views in one short snapshot; one that raises fails alone.

        The first two are begun however long they take, the others until GROUP_SECONDS after the first; whole:
        all of them.
        """
        give_up: float | None = None
        while True:
            try:
                return self._look(views, whole)
            except apsw.BusyError as error:
                # Readers wait for nobody, but for a process that recovers the log of one that died, and for
                # the last one to close the file.
                if give_up is None:
                    give_up = clock.monotonic() + connections.BUSY_SECONDS
                elif clock.monotonic() >= give_up:
                    return self._fail(len(views), error)
                self._fail(0, error)
            except Exception as error:
                return self._fail(len(views), error)

    def _look(self, views: Sequence[Verb], whole: bool) -> Carried:
        connection = self.connection()
        connection.execute("begin")
        tx = Transaction(connection, clock=self._now)
        outcomes: list[Outcome | None] = []
        until = 0.0
        for index, view in enumerate(views):
            if index == 1 and not whole:
                until = clock.monotonic() + GROUP_SECONDS
            elif index > 1 and not whole and clock.monotonic() >= until:
                outcomes += [None] * (len(views) - index)
                break
            try:
                outcomes.append(Outcome(view(tx)))
            except Exception as error:
                if isinstance(error, apsw.BusyError) or connections.is_broken(error):
                    raise
                outcomes.append(Outcome(error=connections.translate(error, self.path)))
        connection.execute("commit")
        return Carried(outcomes)

    def _fail(self, count: int, error: Exception) -> Carried:
        """Fail a whole group, and leave no transaction open and no broken connection behind."""
        connection = self._connection
        if connection is not None:
            try:
                if connection.in_transaction:
                    connection.execute("rollback")
            except apsw.Error as worse:
                error = worse
            # The database of a memory store is its connection.
            if self.path != connections.MEMORY and connections.is_broken(error):
                self._connection = None
                connection.close(True)
        return Carried([Outcome(error=connections.translate(error, self.path)) for _ in range(count)])


class Writer(Desk):
    """Carries out groups of verbs, each group in one transaction that begins as a writer."""

    def __init__(
        self,
        path: str,
        *,
        now: Callable[[], int] | None = None,
        connect: Callable[[str], apsw.Connection] = connections.connect,
    ) -> None:
        super().__init__(path, now=now, connect=connect)
        self._lanes: dict[LaneKey, int] = {}
        self._seen: tuple[apsw.Connection, int] | None = None
        self._log: Log | None = None

    def _opened(self, connection: apsw.Connection) -> None:
        if self.path != connections.MEMORY:
            self._log = Log(connection)

    def tend(self) -> float | None:
        """Keep the write-ahead log small; answer after how many seconds to ask again, None for after a
        group."""
        return None if self._log is None or self._connection is None else self._log.tend()

    def carry_out(self, calls: Sequence[Call]) -> Carried:
        """Carry out a group: what a peek can answer, then the rest in one transaction.

        A verb that raises undoes itself alone. When the transaction as a whole fails (the disk is full, the
        lock is not to be had), every verb in it has failed. The first two are begun however long they take,
        the others until GROUP_SECONDS after the first.
        """
        if len(calls) == 1 and (peek := calls[0].peek) is not None:
            carried = self.look([peek])
            (seen,) = carried.outcomes
            found = seen is not None and (seen.answer is not None or seen.error is not None)
            return carried if found else self._write([calls[0].verb])
        peeks = [(index, call.peek) for index, call in enumerate(calls) if call.peek is not None]
        if not peeks:
            return self._write([call.verb for call in calls])
        outcomes: list[Outcome | None] = [None] * len(calls)
        for (index, _), seen in zip(
            peeks, self.look([peek for _, peek in peeks], whole=True).outcomes, strict=True
        ):
            if seen is not None and (seen.answer is not None or seen.error is not None):
                outcomes[index] = seen
        left = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if not left:
            return Carried(outcomes)
        carried = self._write([calls[index].verb for index in left])
        for index, outcome in zip(left, carried.outcomes, strict=True):
            outcomes[index] = outcome
        return Carried(outcomes, carried.hints)

    def _write(self, verbs: Sequence[Verb]) -> Carried:
        try:
            connection = self.connection()
            connections.begin(connection)
        except Exception as error:
            return self._fail(len(verbs), error)
        tx = Transaction(connection, clock=self._now, lanes=self._lanes)
        outcomes: list[Outcome | None] = []
        alone = len(verbs) == 1
        left = 0
        until = 0.0
        try:
            for index, verb in enumerate(verbs):
                if alone:
                    outcomes.append(Outcome(verb(tx)))
                    break
                if index == 1:
                    until = clock.monotonic() + GROUP_SECONDS
                elif index > 1 and clock.monotonic() >= until:
                    left = len(verbs) - index
                    break
                connection.execute("savepoint verb")
                try:
                    answer = verb(tx)
                    connection.execute("release verb")
                    outcomes.append(Outcome(answer))
                except Exception as error:
                    # Some errors end the whole transaction, and with it every verb.
                    if not connection.in_transaction:
                        raise
                    connection.execute("rollback to verb")
                    connection.execute("release verb")
                    tx.forget()
                    outcomes.append(Outcome(error=connections.translate(error, self.path)))
            connection.execute("commit")
        except Exception as error:
            failed = self._fail(len(verbs) - left, error)
            return Carried([*failed.outcomes, *[None] * left])
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        self._lanes.update(tx.new_lanes)
        return Carried([*outcomes, *[None] * left], frozenset(tx.hints))

    def changed_elsewhere(self) -> bool:
        """Say whether another connection may have committed since this was asked last.

        It may have where a connection was opened since: what was committed before that, its versions do not
        tell.
        """
        connection = self.connection()
        seen = connection, next(iter(connection.execute("pragma data_version")))[0]
        changed, self._seen = seen != self._seen, seen
        return changed
