"""The shelf in an SQLite file: every verb inside a transaction that begins as a writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import apsw

from outlast import clock
from outlast.errors import LeaseLost
from outlast.store.shelf import KeyAnswer, KeyHold, KeyRequest, KeyVerdict
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite.adapter import path_of
from outlast.store.sqlite.executor import Executor, Inline, Threaded
from outlast.store.sqlite.otherside import tables
from outlast.store.sqlite.otherside.tables import SQL
from outlast.store.sqlite.transaction import Row, Transaction

T = TypeVar("T")


class SqliteShelf:
    """Keep a service's keys in one SQLite file; see ``outlast.store.shelf``."""

    def __init__(self, url: str) -> None:
        self._path = path_of(url)
        self._executor: Executor | None = None

    async def prepare(self) -> None:
        """See ``Shelf``."""
        await self._write(_prepare)

    async def claim(self, request: KeyRequest) -> KeyVerdict:
        """See ``Shelf``."""
        return await self._write(lambda tx: _claim(tx, request))

    async def look(self, hold: KeyHold) -> KeyVerdict | None:
        """See ``Shelf``."""

        def verb(tx: Transaction) -> KeyVerdict | None:
            row = _row(tx, "look", asdict(hold))
            return None if row is None else _verdict(row, tx.now())

        return await self._write(verb)

    async def renew(self, holds: Sequence[KeyHold], lease_us: int) -> list[bool]:
        """See ``Shelf``."""

        def verb(tx: Transaction) -> list[bool]:
            until = tx.now() + lease_us
            return [_change(tx, "renew", {**asdict(hold), "lease_until": until}) for hold in holds]

        return await self._write(verb)

    async def answer(self, hold: KeyHold, answer: KeyAnswer) -> bool:
        """See ``Shelf``."""
        return await self._write(lambda tx: _change(tx, "answer", {**asdict(hold), **asdict(answer)}))

    async def give_up(self, hold: KeyHold) -> bool:
        """See ``Shelf``."""

        def verb(tx: Transaction) -> bool:
            mine = asdict(hold)
            return _change(tx, "forget", mine) or _change(tx, "renew", {**mine, "lease_until": tx.now()})

        return await self._write(verb)

    async def sweep(self) -> int:
        """See ``Shelf``."""

        def verb(tx: Transaction) -> int:
            now = {"now": tx.now()}
            return sum(_changes(tx, name, now) for name in ("sweep_keys", "sweep_epochs"))

        return await self._write(verb)

    async def confirm(self, connection: Any, hold: KeyHold) -> None:
        """See ``Shelf``; the transaction has to be a writer's (``begin immediate``)."""
        mine = tables.check_transaction(connection)
        if mine.execute(SQL["confirm"], asdict(hold)).fetchone() is None:
            raise LeaseLost(
                f"the key {hold.key!r} was taken over; nothing may be done under it here any more"
            )

    async def close(self) -> None:
        """See ``Shelf``."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.close()

    async def _write(self, verb: Callable[[Transaction], T]) -> T:
        if self._executor is None:
            self._executor = self._open()
        try:
            return await self._executor.write(verb)
        except apsw.Error as error:
            raise tables.told(error) from error

    def _open(self) -> Executor:
        if self._path == connections.MEMORY or clock.seams().inline:
            return Inline(self._path, hint=_nobody)
        return Threaded(self._path, hint=_nobody, watched=lambda: False, changed=lambda: None)


def _nobody(_: frozenset[str]) -> None:
    """Hint nobody: twins of another process ask again."""


def _prepare(tx: Transaction) -> None:
    tx.execute(tables.SCHEMA)


def _claim(tx: Transaction, request: KeyRequest) -> KeyVerdict:
    """Claim by an insert; nothing can come between what is read here and what is written."""
    now = tx.now()
    mine: dict[str, Any] = {
        **asdict(request.hold),
        "now": now,
        "fingerprint": request.fingerprint,
        "lease_until": now + request.lease_us,
        "expires_at": now + request.keep_us,
    }
    if request.epoch is not None:
        whose = {"scope": request.hold.scope, "subject": request.subject}
        _changes(
            tx, "note_epoch", {**whose, "epoch": request.epoch, "expires_at": now + request.keep_epoch_us}
        )
        seen = _row(tx, "read_epoch", whose)
        assert seen is not None
        if seen[0] > request.epoch:
            return KeyVerdict(kind="stale_epoch", epoch=seen[0])
    _changes(tx, "forget_expired", mine)
    if _change(tx, "claim", mine):
        return KeyVerdict(kind="claimed")
    row = _row(tx, "look", mine)
    assert row is not None, "an insert that found no rival changes a row"
    state, holder, fingerprint, takeovers = row[:4]
    if state == "working" and holder == request.hold.holder:
        return KeyVerdict(kind="claimed", takeovers=takeovers)
    if fingerprint != request.fingerprint:
        return KeyVerdict(kind="other_content")
    if _change(tx, "take_over", {**mine, "seen": holder}):
        return KeyVerdict(kind="claimed", takeovers=takeovers + 1)
    return _verdict(row, now)


def _verdict(row: Row, now: int) -> KeyVerdict:
    state, _, _, takeovers, status, headers, body, lease_until = row
    if state == "working":
        return KeyVerdict(kind="in_flight", takeovers=takeovers, wait_us=max(0, lease_until - now))
    return KeyVerdict(
        kind=state, takeovers=takeovers, answer=KeyAnswer(status=status, headers=headers, body=body)
    )


def _row(tx: Transaction, name: str, bindings: dict[str, Any]) -> Row | None:
    found: list[Row] = tx.execute(SQL[name], bindings).fetchall()
    return found[0] if found else None


def _changes(tx: Transaction, name: str, bindings: dict[str, Any]) -> int:
    return len(tx.execute(SQL[name], bindings).fetchall())


def _change(tx: Transaction, name: str, bindings: dict[str, Any]) -> bool:
    return _changes(tx, name, bindings) == 1
