"""What the Recorder remembers on disk: tickets, keys and the log of calls. The log is what tests believe.

A call is one row, written when it arrives and completed before it is answered. An effect, the key that it was
made under and the mark in the log are one transaction, so that the log and the tickets cannot disagree,
whenever the process is killed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["Ledger"]

_SCHEMA = """
create table if not exists calls (
    number integer primary key autoincrement,
    arrived_us integer not null,
    method text not null,
    path text not null,
    query text not null,
    key text,
    epoch integer,
    deadline_ms integer,
    traceparent text,
    body text,
    body_digest text not null,
    misbehaved text,
    effect text check (effect in ('created', 'withdrawn', 'noted')),
    acted_us integer,
    ticket text,
    replayed integer not null default 0,
    status integer,
    ending text,
    ended_us integer,
    held text,
    client_gone integer not null default 0
) strict;
create table if not exists tickets (
    number integer primary key,
    made_us integer not null,
    invoice text not null,
    state text not null check (state in ('open', 'withdrawn')),
    key text,
    fields text not null
) strict;
create table if not exists keys (
    key text primary key,
    digest text not null,
    used_us integer not null,
    status integer not null,
    body text not null
) strict;
create table if not exists epochs (
    key text primary key,
    epoch integer not null
) strict;
"""
_FIRST_TICKET = 55821


class Ledger:
    """The Recorder's file. Every method is one transaction, durable when it returns (synchronous = full)."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make everything in the block one transaction."""
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    # ── the log ──────────────────────────────────────────────────────────────────────────────────

    def arrived(self, **columns: Any) -> int:
        """Write the row of a call that has just arrived; answers its number."""
        names = ", ".join(columns)
        places = ", ".join(f":{name}" for name in columns)
        cursor = self._db.execute(f"insert into calls ({names}) values ({places})", columns)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def note(self, number: int, **columns: Any) -> None:
        """Add to the row of a call."""
        changes = ", ".join(f"{name} = :{name}" for name in columns)
        self._db.execute(f"update calls set {changes} where number = :number", {**columns, "number": number})

    def calls(self, after: int = 0) -> list[dict[str, Any]]:
        """Answer the rows with a higher number than ``after``, oldest first."""
        rows = self._db.execute("select * from calls where number > ? order by number", (after,))
        return [_call(row) for row in rows]

    # ── tickets ──────────────────────────────────────────────────────────────────────────────────

    def make_ticket(
        self, *, now_us: int, invoice: str, key: str | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Make a ticket and answer it."""
        row = self._db.execute(
            "insert into tickets (number, made_us, invoice, state, key, fields)"
            " values ((select coalesce(max(number) + 1, ?) from tickets), ?, ?, 'open', ?, ?) returning *",
            (_FIRST_TICKET, now_us, invoice, key, json.dumps(fields)),
        ).fetchone()
        return _ticket(row)

    def tickets(
        self, *, key: str | None = None, invoice: str | None = None, made_before_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Answer the tickets that fit, oldest first."""
        rows = self._db.execute(
            "select * from tickets where (:key is null or key = :key)"
            " and (:invoice is null or invoice = :invoice)"
            " and (:before is null or made_us <= :before) order by number",
            {"key": key, "invoice": invoice, "before": made_before_us},
        )
        return [_ticket(row) for row in rows]

    def ticket(self, ticket: str, *, made_before_us: int | None = None) -> dict[str, Any] | None:
        """Answer one ticket by its id, or None."""
        row = self._db.execute(
            "select * from tickets where number = ? and (? is null or made_us <= ?)",
            (_number(ticket), made_before_us, made_before_us),
        ).fetchone()
        return None if row is None else _ticket(row)

    def withdraw(self, ticket: str) -> dict[str, Any] | None:
        """Withdraw an open ticket and answer it; None when it is not open."""
        row = self._db.execute(
            "update tickets set state = 'withdrawn' where number = ? and state = 'open' returning *",
            (_number(ticket),),
        ).fetchone()
        return None if row is None else _ticket(row)

    def set_note(self, ticket: str, text: str) -> dict[str, Any] | None:
        """Put a note on a ticket and answer it; None when there is no such ticket."""
        row = self._db.execute(
            "update tickets set fields = json_set(fields, '$.note', ?) where number = ? returning *",
            (text, _number(ticket)),
        ).fetchone()
        return None if row is None else _ticket(row)

    # ── keys and epochs ──────────────────────────────────────────────────────────────────────────

    def remembered(self, key: str, *, used_after_us: int) -> tuple[str, int, str] | None:
        """Answer (digest, status, body) of the first answer under a key, or None."""
        row = self._db.execute(
            "select digest, status, body from keys where key = ? and used_us >= ?", (key, used_after_us)
        ).fetchone()
        return None if row is None else (row["digest"], row["status"], row["body"])

    def remember(self, key: str, *, digest: str, now_us: int, status: int, body: str) -> None:
        """Keep the first answer under a key."""
        self._db.execute(
            "insert or replace into keys (key, digest, used_us, status, body) values (?, ?, ?, ?, ?)",
            (key, digest, now_us, status, body),
        )

    def admits(self, key: str, epoch: int) -> bool:
        """Answer whether no higher epoch has been seen under this key, and keep the highest."""
        row = self._db.execute(
            "insert into epochs (key, epoch) values (?, ?)"
            " on conflict (key) do update set epoch = max(epoch, excluded.epoch) returning epoch",
            (key, epoch),
        ).fetchone()
        return bool(row["epoch"] == epoch)

    def clear(self) -> None:
        """Forget everything."""
        with self.together():
            for table in ("calls", "tickets", "keys", "epochs"):
                self._db.execute(f"delete from {table}")
            self._db.execute("delete from sqlite_sequence")


def _number(ticket: str) -> int:
    digits = ticket.removeprefix("R-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else -1


def _ticket(row: sqlite3.Row) -> dict[str, Any]:
    return {
        **json.loads(row["fields"]),
        "id": f"R-{row['number']}",
        "invoice": row["invoice"],
        "state": row["state"],
        "idempotency_key": row["key"],
        "made_at": row["made_us"] / 1_000_000,
    }


def _call(row: sqlite3.Row) -> dict[str, Any]:
    call = dict(row)
    for name in ("arrived", "acted", "ended"):
        us = call.pop(f"{name}_us")
        call[f"{name}_at"] = None if us is None else us / 1_000_000
    call["query"] = json.loads(call["query"])
    call["body"] = None if call["body"] is None else json.loads(call["body"])
    call["replayed"] = bool(call["replayed"])
    call["client_gone"] = bool(call["client_gone"])
    return call
