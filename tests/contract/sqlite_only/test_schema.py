"""The schema and the statements, read as text: check lists, plans whose cost does not grow with history, and
are made once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest

from outlast.core.operation import EFFECTS, OPERATION_KINDS
from outlast.core.transitions import APPROVAL, ATTEMPT, OPERATION, TASK, WAITING_REASONS
from outlast.store import statements
from outlast.store.contract import SCHEMA_VERSION
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite.migrate import MIGRATIONS, migrate
from outlast.store.sqlite.transaction import SQL, Transaction
from outlast.store.sqlite.views import TABLES

SMALL = {
    "sqlite_schema",
    "migrations",
    "sessions",
    "busy",
    "outbox",
    "posts",
    "(subquery-1)",
    "CONSTANT",
    "json_each",
    "pauses",
    "provider_waits",
}
"""Tables that a statement may walk through: one row a process, a provider, a switch or a lane that holds
something, or in order to a limit."""
BOUNDED = {
    "count_queue": {"queue"},
    "any_keys": {"business_keys"},
    "any_asked": {"approvals"},
    "any_rules": {"rules"},
    "any_unsettled": {"unsettled"},
    # Notes of one operation, to a limit, and the forks between it and the task whose key it has.
    "read_passage": {"noted", "line"},
    # Unknown operations of one tenant, by its key.
    "read_settled_counts": {"(subquery-3)", "open"},
    "count_unknown": {"unsettled", "open"},
    # What lives: the queue, the leases, and by its own index what waits.
    "count_queued": {"queue"},
    "count_running": {"leases"},
    "count_waiting": {"tasks"},
}
"""Statements that walk through a table up to a bound."""


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("tasks", "state", TASK.states),
        ("tasks", "reason", WAITING_REASONS),
        ("attempts", '"end"', tuple(state for state in ATTEMPT.states if state in ATTEMPT.final)),
        ("operations", "state", OPERATION.states),
        ("approvals", "state", APPROVAL.states),
        ("operations", "kind", OPERATION_KINDS),
        ("operations", "effect", EFFECTS),
        ("results", "state", tuple(state for state in TASK.states if state in TASK.final)),
    ],
)
async def test_check_lists_are_those_of_the_machines(
    beside: apsw.Connection, table: str, column: str, values: tuple[str, ...]
) -> None:
    [(text,)] = beside.execute("select sql from sqlite_schema where name = ?", (table,))
    found = re.search(rf"^ +{column} text[^(]*check \(([^)]*)\)", text, re.MULTILINE)
    assert found is not None
    # Not behind ``in``, of which SQLite would make a table whenever a statement is checked.
    each = [re.fullmatch(rf"{column} = '(\w+)'", part.strip()) for part in found[1].split(" or ")]
    assert tuple(one[1] for one in each if one) == values
    assert all(each)


async def test_no_check_makes_a_table_of_a_list(beside: apsw.Connection) -> None:
    for name, text in beside.execute("select name, sql from sqlite_schema where type = 'table'"):
        lists = re.findall(r"\bin \(('[^)]*)\)", text or "")
        assert all(one.count("',") < 2 for one in lists), f"{name}: {lists}"


async def test_every_table_is_strict_and_dumped(beside: apsw.Connection, store: SqliteStore) -> None:
    tables = {name: strict for _, name, _, _, _, strict in beside.execute("pragma table_list")}
    made = {name: strict for name, strict in tables.items() if not name.startswith("sqlite_")}
    assert set(made.values()) == {1}
    assert set(made) - {"sequences"} == set(TABLES) == set(await store.dump())


@pytest.mark.parametrize("name", sorted(SQL))
async def test_no_statement_walks_through_a_table_that_grows(beside: apsw.Connection, name: str) -> None:
    sql = SQL[name]
    bindings = dict.fromkeys(re.findall(r":([a-z_]+)", sql), 1)
    plan = [row[3] for row in beside.execute(f"explain query plan {sql}", bindings)]
    # What a statement is given as JSON is no table.
    walked = {line.split()[1] for line in plan if line.startswith("SCAN") and "VIRTUAL TABLE" not in line}
    assert walked - SMALL - BOUNDED.get(name, set()) == set(), plan


@pytest.fixture(scope="module")
def migrated() -> Iterator[apsw.Connection]:
    """A connection as the store opens it, to an empty database."""
    connection = connections.connect(connections.MEMORY)
    migrate(Transaction(connection, clock=lambda: 0))
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize(
    "name", sorted(name for name, sql in SQL.items() if sql.startswith(("select", "with")))
)
def test_no_statement_is_compiled_anew_for_other_values(migrated: apsw.Connection, name: str) -> None:
    compiled: list[int] = []

    def asked(operation: int, *_: str | None) -> int:
        compiled.append(operation)
        return int(apsw.SQLITE_OK)

    # Asked only while a statement is compiled.
    migrated.authorizer = asked
    try:
        for value in (1, 2):
            if value == 2:
                assert compiled
                compiled.clear()
            bindings = dict.fromkeys(re.findall(r":([a-z_]+)", SQL[name]), value)
            migrated.execute(SQL[name], bindings or (value,) * SQL[name].count("?")).fetchall()
    finally:
        migrated.authorizer = None
    assert compiled == []


def test_every_statement_of_a_head_or_lease_names_what_it_is_fenced_by() -> None:
    """Writes to heads name the epoch or the state that they were read with."""
    for statement in statements.read("outlast.store.sqlite.sql"):
        if re.match(r"update tasks\b", statement.sql):
            assert re.search(r"\bwhere\b.*\b(epoch = (:epoch|new\.value)|state = ')", statement.sql, re.S), (
                statement.name
            )
