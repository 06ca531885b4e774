"""The stage: a database whose functions halt, whose clock is ours, and which is put back between two runs.

Whoever plays is a ``PostgresStore`` of its own. Its connections say which player they are; the functions that
they call halt at each stop, on an advisory lock that the stage holds, and tell so by a notice, which reaches
us at once. Connections that are nobody's (the one that furnishes the scene) are never halted.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from tests.explorer.footprints import Counts, Footprints, counted
from tests.explorer.stops import with_stops

from outlast.store import statements
from outlast.store.postgres import PostgresStore, connections
from outlast.testing.checkers import Dump

PLAYERS = 3
GATE = 77_000
"""Added to a player's number: the first half of the lock that it is halted on."""

_HARMLESS = ("clock_us", "is_key")
"""SQL functions that touch no row."""

Edit = Callable[[str], str]
"""Changes the body of a function."""

_SETUP = """
create schema explorer;
create schema kept;
create sequence explorer.clock;
create sequence explorer.curtain;
create sequence explorer.turn_1;
create sequence explorer.turn_2;
create sequence explorer.turn_3;
create table explorer.relations as
select c.oid, coalesce(t.relname, c.relname) as name, c.relkind = 'i' as is_index
  from pg_class c
  left join pg_index i on i.indexrelid = c.oid
  left join pg_class t on t.oid = i.indrelid
 where c.relnamespace = 'outlast'::regnamespace and c.relkind in ('r', 'i');

-- Halt a player until the stage lets it go on. Sequences, since what a transaction writes is its own.
create function explorer.stop(p_place text) returns text language plpgsql volatile set lock_timeout = 0 as $$
declare
    v_me text := current_setting('explorer.me', true);
    v_turn integer;
    v_gate integer;
begin
    if coalesce(v_me, '') = '' or (select c.last_value = 1 from explorer.curtain c) then
        return null;
    end if;
    v_turn := nextval(('explorer.turn_' || v_me)::regclass);
    v_gate := 77000 + v_me::integer;
    raise notice 'explorer % % % % %', v_me, v_turn, extract(epoch from transaction_timestamp()), (
        select coalesce(string_agg(r.name || ':' || r.scans || ':' || r.rows, ','), '-')
          from (select r.name, pg_stat_get_xact_numscans(r.oid) as scans,
                       pg_stat_get_xact_tuples_fetched(r.oid)
                       + case when r.is_index then 0 else
                             pg_stat_get_xact_tuples_returned(r.oid) + pg_stat_get_xact_tuples_inserted(r.oid)
                             + pg_stat_get_xact_tuples_updated(r.oid) + pg_stat_get_xact_tuples_deleted(r.oid)
                         end as rows
                  from explorer.relations r) r
         where r.scans > 0 or r.rows > 0), p_place;
    perform pg_advisory_lock(v_gate, v_turn);
    perform pg_advisory_unlock(v_gate, v_turn);
    return null;
end
$$;

create or replace function outlast.clock_us() returns bigint language sql volatile as
'select c.last_value from explorer.clock c';
"""

_WAITING = """
select l.pid
  from pg_locks l
 where not l.granted and l.pid = any($1::integer[]) and not (l.locktype = 'advisory' and l.objsubid = 2)
"""


_UNGUARDED = "set session_replication_role = replica"
"""Rows are taken away and put back past the triggers."""
_SEQUENCES = """
select s.schemaname || '.' || quote_ident(s.sequencename) as name, coalesce(s.last_value, 0) as value
  from pg_sequences s
 where s.schemaname = 'outlast'
"""


class Player:
    """One process: its store, the connections that it has, and where it halts."""

    def __init__(self, number: int, url: str) -> None:
        self.number = number
        self.store: Any = PostgresStore(url)
        self.store._tidy_at = float("inf")
        self.connections: list[Any] = []
        self.turn = 0
        self.place: str | None = None
        self.transaction = ""
        self.counts: Counts = {}
        self.told: Callable[[], None] = lambda: None

    def forget(self, lanes: Mapping[Any, int]) -> None:
        """Know of the database what was there when it was furnished, and nothing of an earlier run."""
        self.store._submitting._lanes = dict(lanes)
        self.store._taken.clear()
        self.store._last_tenant = ""
        self.place = None

    def heard(self, _connection: Any, message: Any) -> None:
        """Hear where it halts."""
        if message.message.startswith("explorer "):
            _, _, turn, self.transaction, counts, self.place = message.message.split(" ", 5)
            self.turn = int(turn)
            self.counts = counted(counts)
            self.told()

    @property
    def backends(self) -> list[int]:
        """The processes of the server that work for it."""
        return [one.get_server_pid() for one in self.connections if not one.is_closed()]


class Stage:
    """The database, its players, its clock, and a ``store`` that is never halted."""

    def __init__(self, connection: Any, players: list[Player], store: Any) -> None:
        self.store = store
        self.connection = connection
        self.players = players
        self.tables: list[str] = []
        self.full: set[str] = set()
        self.sources: dict[str, str] = {}
        self.calls: dict[str, str] = {}
        self.kept_heads: dict[str, str] = {}
        self._sequences: dict[str, int] = {}
        self._lanes: dict[Any, int] = {}
        self._functions: dict[str, Any] = {}
        self._plain: dict[str, str] = {}
        self.footprints = Footprints()
        self._named: list[str] = []

    # -- the functions ---------------------------------------------------------------------------------

    async def build(self) -> None:
        """Put stops into the functions."""
        await self.connection.execute(_SETUP)
        self.calls = statements.load("outlast.store.postgres.sql")
        self._functions = {
            row["name"]: row
            for row in await self.connection.fetch(
                "select p.proname as name, p.prosrc as source, pg_get_functiondef(p.oid) as definition,"
                "       l.lanname as language"
                "  from pg_proc p join pg_language l on l.oid = p.prolang"
                " where p.pronamespace = 'outlast'::regnamespace and p.prorettype <> 'trigger'::regtype"
            )
        }
        self._plain = {
            name: row["source"]
            for name, row in self._functions.items()
            if row["language"] == "sql" and name not in _HARMLESS
        }
        self._named = await self._tables()
        self.footprints = Footprints(self._named, self._plain, self.sources)
        for name in self._functions:
            await self._make(name, lambda source: source)

    async def _make(self, name: str, edit: Edit) -> None:
        row = self._functions[name]
        source = edit(row["source"])
        if row["language"] == "plpgsql":
            names = "|".join([*self._named, *self._plain])
            touches = re.compile(rf"\boutlast\.(?:{names})\b|\bpg_(?:try_)?advisory_")
            last = name == "flush" or any(f"outlast.{name}(" in call for call in self.calls.values())
            source = self.sources[name] = with_stops(name, source, touches, last=last)
        await self.connection.execute(row["definition"].replace(row["source"], source))

    @asynccontextmanager
    async def broken(self, edits: Mapping[str, Edit]) -> AsyncIterator[None]:
        """Break functions on purpose for the length of the block; edits: by their names."""
        for name, edit in edits.items():
            source = self._functions[name]["source"]
            assert edit(source) != source, f"nothing was changed in {name}"
        try:
            for name, edit in edits.items():
                await self._make(name, edit)
            self.footprints.forget()
            yield
        finally:
            for name in edits:
                await self._make(name, lambda source: source)
            self.footprints.forget()

    # -- the rows --------------------------------------------------------------------------------------

    async def clear(self, now: int) -> None:
        """Take every row away, and begin with everything anew at this time."""
        script = [f"delete from outlast.{table}" for table in self._named]
        script += [
            f"select setval('{row['name']}', 1, false)" for row in await self.connection.fetch(_SEQUENCES)
        ]
        await self.connection.execute(
            ";".join([_UNGUARDED, *script, f"select setval('explorer.clock', {now})"])
        )
        self.store._submitting._lanes.clear()

    async def keep(self) -> None:
        """Remember the rows that there are: every run begins with them."""
        self._lanes = dict(self.store._submitting._lanes)
        self.tables = self._named
        for table in self.tables:
            await self.connection.execute(
                f"drop table if exists kept.{table}; create table kept.{table} as table outlast.{table}"
            )
        self.full = {table for table in self.tables if (await self._holds(f"kept.{table}"))}
        rows = await self.connection.fetch("select id from kept.tasks")
        self.kept_heads = {row["id"]: "0" for row in rows}
        self._sequences = {row["name"]: row["value"] for row in await self.connection.fetch(_SEQUENCES)}

    async def _tables(self) -> list[str]:
        rows = await self.connection.fetch(
            "select tablename from pg_tables where schemaname = 'outlast' and tablename <> 'migrations'"
        )
        return [row["tablename"] for row in rows]

    async def _holds(self, table: str) -> bool:
        return bool(await self.connection.fetchval(f"select exists (select from {table})"))

    async def put_back(self, now: int, *, halting: Sequence[Player] = ()) -> None:
        """Put rows, sequences and the clock back, and let the players forget.

        now: what the clock shows, in microseconds. halting: who halts at the next stop; without any,
        everybody runs through.
        """
        script = ["begin"]
        script += [f"delete from outlast.{table}" for table in self.tables]
        script += [
            f"insert into outlast.{table} overriding system value table kept.{table}"
            for table in self.tables
            if table in self.full
        ]
        script += [
            f"select setval('{name}', {max(value, 1)}, {str(value > 0).lower()})"
            for name, value in self._sequences.items()
        ]
        script += [f"select setval('explorer.clock', {now})", "commit"]
        script += [
            "select pg_advisory_unlock_all()",
            f"select setval('explorer.curtain', {2 if halting else 1})",
        ]
        script += [f"select pg_advisory_lock({GATE + one.number}, {one.turn + 1})" for one in halting]
        await self.connection.execute(";".join(script))
        for player in self.players:
            player.forget(self._lanes)

    async def pass_time(self, us: int) -> None:
        """Move the clock."""
        await self.connection.execute(
            f"select setval('explorer.clock', last_value + {us}) from explorer.clock"
        )

    async def dump(self) -> Dump:
        """Read every row."""
        parts = ",".join(
            f"'{table}', (select coalesce(json_agg(t), '[]') from outlast.{table} t)" for table in self.tables
        )
        return dict(json.loads(await self.connection.fetchval(f"select json_build_object({parts})")))

    async def heads(self) -> dict[str, str]:
        """Answer who has locked each head last."""
        rows = await self.connection.fetch("select id, xmax::text as lock from outlast.tasks")
        return {row["id"]: row["lock"] for row in rows}

    # -- halting ---------------------------------------------------------------------------------------

    async def let_run(self) -> None:
        """Halt nobody any more."""
        await self.connection.execute("select setval('explorer.curtain', 1)")

    async def go(self, player: Player) -> None:
        """Let a player that halts go on, and halt at its next stop."""
        gate, turn = GATE + player.number, player.turn
        player.place = None
        await self.connection.execute(
            f"select pg_advisory_lock({gate}, {turn + 1}), pg_advisory_unlock({gate}, {turn})"
        )

    async def waiting(self, players: list[Player]) -> list[Player]:
        """Answer which of these wait for a lock that another holds."""
        backends = {pid: player for player in players for pid in player.backends}
        rows = await self.connection.fetch(_WAITING, list(backends))
        return [backends[row["pid"]] for row in rows]

    async def kill(self, player: Player) -> None:
        """End whatever works for a player on the server, as the death of its machine would."""
        for pid in player.backends:
            await self.connection.fetchval("select pg_terminate_backend($1, 10000)", pid)


@asynccontextmanager
async def stage(url: str) -> AsyncIterator[Stage]:
    """Set a stage up on a migrated database without rows."""
    connection = await asyncpg.connect(url)
    players = [Player(number, url) for number in range(1, PLAYERS + 1)]
    owners = {id(player.store._address): player for player in players}
    connect = connections.connect

    async def connecting(address: Any, duty: Any) -> Any:
        made = await connect(address, duty)
        player = owners.get(id(address))
        if player is not None:
            await made.execute(f"set explorer.me = '{player.number}'; set deadlock_timeout = '50ms'")
            made.add_log_listener(player.heard)
            player.connections.append(made)
        return made

    furnishing = PostgresStore(url)
    connections.connect = connecting  # type: ignore[assignment]
    try:
        made = Stage(connection, players, furnishing)
        await made.build()
        yield made
    finally:
        connections.connect = connect
        for player in players:
            await player.store.close()
        await furnishing.close()
        await connection.close(timeout=10)
