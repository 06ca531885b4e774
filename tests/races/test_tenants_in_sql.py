"""The SQL itself: whatever touches a tenant's table names the tenant, or is known to be about all of them.

Textual on purpose, and over every statement and function of both stores: a new one that forgets the tenant
fails here until somebody has looked and said why it may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

import pytest

STORES = ("postgres", "sqlite")
ROOT = resources.files("outlast.store")
REFERENCE = re.compile(
    r"\b(from|join|update|using|into)\s+(?:outlast\.)?(\w+)"
    r"(?:\s+(?:as\s+)?(?!(?:set|where|on|join|cross|left|using|order|group|limit|for|select|values|returning|"
    r"indexed|not|inner|union|default|do|loop)\b)(\w+))?"
)
OF_ALL = {
    # A lane is one tenant's, and has a number of its own; entries and heads are found by it.
    "postgres": {
        "submit", "claim", "forget_entries", "fork", "adopt", "list_versions", "list_tasks", "list_children",
        "read_tasks", "read_ends", "read_lanes",
        # Sessions work for every tenant; what they lease is theirs by the session.
        "retire", "sweep",
        # What is due, or was held or posted, is everybody's; it is then taken by its full name.
        "due_schedules", "deliver", "take_released", "take_messages",
        # Whether there is any such row at all, so that nobody else pays for looking.
        "flush", "read_health",
    },
    "sqlite": {
        "read_lane", "count_queued", "count_running", "count_waiting", "read_task", "read_end", "busy_lanes",
        "drop_entries", "mark_served",
        "end_session", "session_leases", "lost_leases",
        "schedules_due", "next_schedule", "due_wakes", "next_due", "drop_waits", "read_posts", "next_held",
        "read_held", "all_pauses",
        "any_asked", "any_waits", "any_unsettled", "any_keys", "any_rules", "count_queue",
    },
}  # fmt: skip
"""Statements that are about all tenants, or find what they touch by a number that only one tenant has."""


def texts(store: str, folder: str) -> Iterator[str]:
    """Read the files of a folder of a store, and of folders in it, in order."""

    def read(place: Traversable) -> Iterator[str]:
        for entry in sorted(place.iterdir(), key=lambda each: each.name):
            if entry.is_dir():
                yield from read(entry)
            elif entry.name.endswith(".sql"):
                yield entry.read_text(encoding="utf-8")

    return read(ROOT / store / folder)


def plain(sql: str) -> str:
    """Take comments and literals away."""
    return re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", "", sql))


def tables(store: str) -> set[str]:
    """Answer the tables that have a tenant."""
    made = re.findall(
        r"create table (?:outlast\.)?(\w+) \((.*?)\n\)", "".join(texts(store, "migrations")), re.S
    )
    return {name for name, columns in made if re.search(r"^\s*tenant\b", columns, re.M)}


def written(store: str) -> Iterator[tuple[str, str]]:
    """Answer every statement by the name of its file's entry, or of the function that it stands in."""
    function = re.compile(r"create (?:or replace )?function outlast\.(\w+)\(.*?\$\$(.*?)\$\$;", re.S)
    for text in texts(store, "migrations"):
        for name, body in function.findall(text):
            yield from ((name, one) for one in plain(body).split(";"))
    for text in texts(store, "sql"):
        for entry in re.split(r"^-- name: ", text, flags=re.M)[1:]:
            name, _, sql = entry.partition("\n")
            yield name.strip(), plain(sql)


def forgets(sql: str, owned: set[str]) -> list[str]:
    """Answer the tables of a statement whose tenant it does not name."""
    found = [each for each in REFERENCE.finditer(sql) if each[2] in owned]
    wrong = []
    for each in found:
        verb, table, alias = each.groups()
        if verb == "into":
            columns = re.match(r"[^(]*\(([^)]*)\)", sql[each.start() :])
            named = columns is not None and re.search(r"\btenant\b", columns[1])
        else:
            name = alias or table
            named = re.search(rf"\b{name}\.tenant\s*(=|in\b)|[=]\s*{name}\.tenant\b|\({name}\.tenant,", sql)
            if not named and alias is None:
                named = re.search(r"(?<![\w.])tenant\s*(=|in\b)|\(tenant,", sql)
        if not named:
            wrong.append(table)
    return wrong


@pytest.mark.parametrize("store", STORES)
def test_every_statement_names_the_tenant_of_what_it_touches(store: str) -> None:
    owned = tables(store)
    assert {"tasks", "operations", "events", "approvals", "schedules", "audit", "outbox"} <= owned
    looked = 0
    for name, sql in written(store):
        looked += 1
        wrong = forgets(sql, owned)
        assert not wrong or name in OF_ALL[store], (name, wrong, " ".join(sql.split()))
    assert looked > 200


@pytest.mark.parametrize("store", STORES)
def test_what_is_about_all_tenants_is_still_there_and_is(store: str) -> None:
    owned = tables(store)
    assert OF_ALL[store] == {name for name, sql in written(store) if forgets(sql, owned)}


def test_both_stores_give_the_same_tables_a_tenant() -> None:
    assert tables("postgres") == tables("sqlite")


@pytest.mark.parametrize("store", STORES)
def test_keys_begin_with_the_tenant(store: str) -> None:
    """Two tenants may use one name for different things, whatever the table; a number is the database's."""
    text = "".join(texts(store, "migrations"))
    made = re.findall(r"create table (?:outlast\.)?(\w+) \((.*?)\n\)", text, re.S)
    for name, columns in made:
        if name in tables(store):
            keys = re.findall(r"(?:primary key|unique) \((\w+)", columns)
            by_number = re.search(r"\b(?:id|seq|number)\b[^,]*primary key", columns)
            assert by_number or (keys and set(keys) <= {"tenant", "by_tenant", "lane", "pool"}), (name, keys)


def test_a_statement_without_the_tenant_is_found() -> None:
    owned = {"tasks", "operations"}
    assert forgets("update tasks set state = '' where id = :task", owned) == ["tasks"]
    assert forgets("select t.id from outlast.tasks t where t.id = $1", owned) == ["tasks"]
    joined = "select 1 from tasks t join operations o on o.task = t.id where t.tenant = $1"
    assert forgets(joined, owned) == ["operations"]
    assert forgets("insert into tasks (id, state) values ($1, $2)", owned) == ["tasks"]
    assert forgets("delete from operations o using tasks t where o.tenant = t.tenant", owned) == []
