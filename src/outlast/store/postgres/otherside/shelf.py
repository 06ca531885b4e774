"""The shelf on PostgreSQL: one statement a verb, on a few connections of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from outlast.errors import LeaseLost, SchemaOutdated, StoreUnavailable
from outlast.store.postgres.connections import MIGRATE, Address, Duty, Line, Lines, Work
from outlast.store.postgres.otherside import tables
from outlast.store.postgres.otherside.tables import SQL
from outlast.store.shelf import KeyAnswer, KeyHold, KeyRequest, KeyVerdict

OTHERSIDE: Final = Duty(name="otherside", seconds=6, lock_ms=3_000)
SWEPT_AT_ONCE: Final = 1_000


class PostgresShelf:
    """Keep a service's keys in PostgreSQL; see ``outlast.store.shelf``.

    connections: how many are opened at most. One serves a claim for a few milliseconds, never a handler.
    """

    def __init__(self, url: str, *, connections: int = 8) -> None:
        self._address = Address(url)
        self._lines = Lines(self._address, OTHERSIDE, connections)
        # Of its own, so that no crowd of claims stands before a renewal.
        self._renewing = Line(self._address, OTHERSIDE)

    async def prepare(self) -> None:
        """See ``Shelf``."""
        line = Line(self._address, MIGRATE)
        try:
            await line.run(tables.prepare)
        finally:
            await line.close()

    async def claim(self, request: KeyRequest) -> KeyVerdict:
        """See ``Shelf``."""
        hold = request.hold
        row = await self._again(
            lambda connection: connection.fetchrow(
                SQL["claim"], hold.scope, hold.key, hold.holder, request.fingerprint, request.lease_us,
                request.keep_us, request.subject, request.epoch, request.keep_epoch_us,
            )
        )  # fmt: skip
        return _verdict(row["kind"], row, row["epoch"] if row["kind"] == "stale_epoch" else 0)

    async def look(self, hold: KeyHold) -> KeyVerdict | None:
        """See ``Shelf``."""
        row = await self._again(lambda connection: connection.fetchrow(SQL["look"], hold.scope, hold.key))
        if row is None:
            return None
        return _verdict("in_flight" if row["state"] == "working" else row["state"], row, 0)

    async def renew(self, holds: Sequence[KeyHold], lease_us: int) -> list[bool]:
        """See ``Shelf``."""
        columns = [
            [hold.scope for hold in holds],
            [hold.key for hold in holds],
            [hold.holder for hold in holds],
        ]

        async def work(connection: asyncpg.Connection[asyncpg.Record]) -> set[str]:
            await connection.execute(SQL["renew"], *columns, lease_us)
            return {row["holder"] for row in await connection.fetch(SQL["still_held"], *columns)}

        held = await self._named(self._renewing.run, work)
        return [hold.holder in held for hold in holds]

    async def answer(self, hold: KeyHold, answer: KeyAnswer) -> bool:
        """See ``Shelf``."""
        return await self._change("answer", hold, answer.status, answer.headers, answer.body)

    async def give_up(self, hold: KeyHold) -> bool:
        """See ``Shelf``."""
        return await self._change("forget", hold) or await self._change("lapse", hold)

    async def sweep(self) -> int:
        """See ``Shelf``."""
        return await self._sweep("sweep_keys") + await self._sweep("sweep_epochs")

    async def confirm(self, connection: Any, hold: KeyHold) -> None:
        """See ``Shelf``."""
        tables.check_transaction(connection)
        if not await connection.fetchval(SQL["confirm"], hold.scope, hold.key, hold.holder):
            raise LeaseLost(
                f"the key {hold.key!r} was taken over; nothing may be done under it here any more"
            )

    async def close(self) -> None:
        """See ``Shelf``."""
        await self._lines.close()
        await self._renewing.close()

    async def _sweep(self, name: str) -> int:
        total = 0
        swept = SWEPT_AT_ONCE
        while swept == SWEPT_AT_ONCE:
            swept = await self._again(lambda connection: connection.fetchval(SQL[name], SWEPT_AT_ONCE))
            total += swept
        return total

    async def _change(self, name: str, hold: KeyHold, *values: Any) -> bool:
        found = await self._again(
            lambda connection: connection.fetchval(SQL[name], hold.scope, hold.key, hold.holder, *values)
        )
        return found is True

    async def _again(self, work: Work[Any]) -> Any:
        """Run a statement that may be repeated; once more when the connection was lost meanwhile.

        A connection that stood idle while the server restarted is found broken only now.
        """
        try:
            return await self._named(self._lines.run, work)
        except StoreUnavailable:
            return await self._named(self._lines.run, work)

    async def _named(self, run: Any, work: Work[Any]) -> Any:
        try:
            return await run(work)
        except SchemaOutdated as error:
            raise tables.missing() from error


def _verdict(kind: Any, row: asyncpg.Record, epoch: int) -> KeyVerdict:
    answer = None
    if row["status"] is not None:
        answer = KeyAnswer(status=row["status"], headers=row["headers"], body=row["body"])
    wait_us = row["wait_us"] if kind == "in_flight" else 0
    return KeyVerdict(kind=kind, takeovers=row["takeovers"], answer=answer, wait_us=wait_us, epoch=epoch)
