"""The SQL itself: whoever writes for a task has its head locked, and a worker's write compares the epoch.

Textual on purpose. It is strict about names: a function or statement that begins to write a fenced table, or
another that stops locking, fails here until somebody has looked and said which fence it stands behind.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

import pytest

from outlast.store import statements

FENCED = {
    "tasks",
    "queue",
    "leases",
    "attempts",
    "operations",
    "unsettled",
    "evidence",
    "events",
    "timers",
    "results",
    "outbox",
    "business_keys",
    "inbox",
    "posts",
    "approvals",
    "votes",
    "issued",
    "acceptances",
    "outside",
}
"""Tables whose rows belong to a task that somebody may hold a lease of."""

WRITE = re.compile(r"\b(?:insert into|update|delete from)\s+(?:outlast\.)?(\w+)")


class Function(NamedTuple):
    """A function of the PostgreSQL schema, without its comments."""

    name: str
    body: str


def functions() -> dict[str, Function]:
    """Read every function of every migration; a later migration replaces an earlier one's."""
    found: dict[str, Function] = {}
    root = resources.files("outlast.store.postgres.migrations")
    for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
        if not folder.is_dir():
            continue
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if file.name.endswith(".sql"):
                text = re.sub(r"--[^\n]*", "", file.read_text(encoding="utf-8"))
                made = r"create (?:or replace )?function outlast\.(\w+)\((.*?)\$\$(.*?)\$\$;"
                for name, _, body in re.findall(made, text, re.DOTALL):
                    found[name] = Function(name, re.sub(r"\s+", " ", body))
    return found


FUNCTIONS = functions()
CALLED = re.compile(r"(?:\bperform|\bfrom|:=) outlast\.(\w+)\(")
UNDER_A_LOCK = {
    "add_evidence",
    "attach_sessions",
    "cancel_head",
    "doubt_key",
    "end_attempt",
    "end_cancelled",
    "end_task",
    "fail_task",
    "forget_entries",
    "give_up_keys",
    "raise_facts",
    "release_keys",
    "reserve_keys",
    "settle_keys",
    "take_over",
    "withdraw_approvals",
    "write_questions",
}
"""Functions that write under a lock which their caller has taken."""

WRITERS = {
    name
    for name, function in FUNCTIONS.items()
    if FENCED & set(WRITE.findall(function.body)) or UNDER_A_LOCK & set(CALLED.findall(function.body))
}

LOCKS = {
    "claim": "for no key update of t skip locked",
    "flush": "for no key update of t skip locked",
    "sweep": "for no key update of t skip locked",
    "settle": "perform outlast.lock_heads(",
    "note": "perform outlast.lock_heads(",
    "admit": "perform outlast.lock_heads(",
    "claim_open": "for no key update of t skip locked",
    "postpone": "perform outlast.lock_heads(",
    "reconcile": "for no key update",
    "post": "perform outlast.lock_heads(",
    "cancel": "perform outlast.lock_heads(",
    "deliver": "perform outlast.lock_heads(",
    "decide": "perform outlast.lock_heads(",
    "retry": "perform outlast.lock_heads(",
    "fork": "perform outlast.lock_heads(",
    "adopt": "perform outlast.lock_heads(",
    "wake": "perform outlast.lock_heads(",
    "accept": "perform outlast.lock_heads(",
    "post_outside": "perform outlast.lock_heads(",
}
"""How each function that writes for tasks locks their heads."""

NEW_ROWS = {"submit"}
"""Functions that write rows that are new, whose heads are nobody's yet; and count them at their parents."""

OF_A_WORKER = {"news"}
"""Functions that write what only one worker asks for, under the row's own lock."""


def test_every_function_that_writes_for_a_task_is_known() -> None:
    assert set(LOCKS) | UNDER_A_LOCK | NEW_ROWS | OF_A_WORKER == WRITERS


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_heads_are_locked_before_anything_is_written(name: str) -> None:
    body = FUNCTIONS[name].body
    lock = body.find(LOCKS[name])
    assert lock >= 0
    writes = [match.start() for match in WRITE.finditer(body) if match[1] in FENCED]
    writes += [match.start() for match in CALLED.finditer(body) if match[1] in UNDER_A_LOCK]
    assert writes
    assert lock < min(writes)


@pytest.mark.parametrize("name", sorted(UNDER_A_LOCK))
def test_functions_without_a_lock_are_called_by_functions_that_have_one(name: str) -> None:
    callers = {
        other
        for other, function in FUNCTIONS.items()
        if f"outlast.{name}(" in function.body and other != name
    }
    assert callers
    assert callers <= set(LOCKS) | UNDER_A_LOCK


@pytest.mark.parametrize("name", sorted(NEW_ROWS))
def test_functions_that_write_new_rows_change_none_but_a_locked_parent(name: str) -> None:
    body = FUNCTIONS[name].body
    changed = re.findall(r"\b(?:update|delete from)\s+outlast\.(\w+)", body)
    assert FENCED & set(changed) == {"tasks"}
    assert changed.count("tasks") == 1
    change = body.index("update outlast.tasks t set children = t.children + p.more")
    lock = body.index("perform outlast.lock_heads(v_tenants, v_parents)")
    compared = body.index("t.state = 'running' and t.epoch = s.epoch and not t.cancelling")
    first = min(match.start() for match in WRITE.finditer(body) if match[1] in FENCED | {"inputs"})
    assert lock < compared < first < change


def test_what_a_worker_has_heard_is_forgotten_for_nobody_else() -> None:
    [writing] = [part for part in FUNCTIONS["news"].body.split(";") if "update outlast.leases" in part]
    assert (
        "l.session = p_session and l.news between 1 and h.facts for no key update of l skip locked" in writing
    )


def test_a_claim_compares_state_and_lane_in_the_statement_that_locks() -> None:
    """A task that was bound to another version has left its old entry behind."""
    [locking] = [part for part in FUNCTIONS["claim"].body.split(";") if LOCKS["claim"] in part]
    assert "where t.state = 'queued' and t.lane = c.lane" in locking


def test_flush_compares_epoch_and_state_in_the_statement_that_locks() -> None:
    [locking] = [part for part in FUNCTIONS["flush"].body.split(";") if LOCKS["flush"] in part]
    assert "t.epoch = h.epoch and t.state = 'running' as ok" in locking
    assert "join outlast.tasks t on t.tenant = h.tenant and t.id = h.task" in locking


def test_flush_writes_for_heads_that_compared_equal_only() -> None:
    """Each statement asks ``h_ok``, or works on what was made of the endings that asked it (``x_``)."""
    body = FUNCTIONS["flush"].body
    after = body[body.index(LOCKS["flush"]) :]
    made_of_endings = after.index("into x_head")
    asked = after[:made_of_endings].rsplit(";", 1)[1] + after[made_of_endings:].split(";", 1)[0]
    assert "h_ok[x.place >> 20]" in asked
    writing = [part for part in after.split(";") if FENCED & set(WRITE.findall(part))]
    assert len(writing) >= 8
    for part in writing:
        assert "h_ok[" in part or "unnest(x_head" in part or "unnest(x_tenant" in part, part


@pytest.mark.parametrize("name", ["claim", "sweep", "reconcile"])
def test_whoever_gives_or_takes_a_lease_raises_the_epoch(name: str) -> None:
    body = FUNCTIONS[name].body
    assert re.search(r"epoch = (?:t|g)\.epoch(?: \+ 1)?", body)
    assert ".epoch + 1" in body


@pytest.mark.parametrize("name", ["renew", "retire", "sweep", "claim", "claim_open"])
def test_whoever_judges_a_session_has_its_row(name: str) -> None:
    assert re.search(
        r"from outlast\.sessions s where .*?for (?:no key update|update|key share)", FUNCTIONS[name].body
    )


def test_the_clock_that_judges_is_read_after_the_lock() -> None:
    """In one statement the snapshot would be older than the lock."""
    for name in (
        *("flush", "settle", "note", "admit", "postpone", "renew"),
        *("post", "cancel", "deliver", "decide"),
        *("retry", "fork", "adopt", "wake", "accept", "post_outside"),
    ):
        body = FUNCTIONS[name].body
        lock = body.index(LOCKS.get(name, "for no key update"))
        clock = body.index("coalesce(p_now, outlast.clock_us())")
        assert lock < clock, name
        assert ";" in body[lock:clock], name


@pytest.mark.parametrize("name", ["flush"])
def test_compare_and_set_compares_attempt_turn_and_state(name: str) -> None:
    body = FUNCTIONS[name].body
    sets = re.findall(r"and o\.attempt = x\.attempt and o\.turn = x\.turn and o\.state in \([^)]*\)", body)
    assert sets == [
        "and o.attempt = x.attempt and o.turn = x.turn and o.state in ('running', 'unknown')"
    ] * len(sets)
    assert len(sets) == 2
    assert "o.state in ('planned', 'approved') and o.attempt = excluded.attempt - 1" in body


# ── SQLite: one writer, so the transaction is the lock; the comparison is there all the same ─────


SQLITE = {one.name: re.sub(r"\s+", " ", one.sql) for one in statements.read("outlast.store.sqlite.sql")}

HEAD_FENCES = {
    "write_heads": "and epoch = :epoch",
    "count_events": "and epoch = :epoch and state = 'running'",
    "claim_heads": "and state = 'queued'",
    "count_children": "and epoch = :epoch and state = 'running'",
}
"""What each statement that changes a head compares."""

CHANGES_OPERATIONS = {
    # Of a resend it is ``unknown`` twice.
    "commit_intent": "attempt = :attempt and turn = :turn and state in (:planned, :approved)",
    "record_outcome": (
        "attempt = :attempt and turn = :turn"
        " and (state = 'running' or (state = 'unknown' and :state <> 'planned'))"
    ),
    "approve_operation": "state = 'planned'",
    "take_turn": "attempt = :attempt and turn = :turn and state in ('running', 'unknown')",
    "replace_operation": "state in ('planned', 'approved')",
    "lose_operation": "state = 'running'",
    "reopen_operation": "state = 'failed'",
    "settle_operation": "state = 'unknown'",
    "take_open_turn": "turn = :turn and state = 'unknown'",
    "contradict_operation": "state in ('succeeded', 'failed', 'planned', 'approved')",
}
"""What each statement that changes an operation compares."""


def test_every_statement_that_changes_a_head_is_known() -> None:
    assert {name for name, sql in SQLITE.items() if re.search(r"\bupdate tasks\b", sql)} == set(HEAD_FENCES)


@pytest.mark.parametrize("name", sorted(HEAD_FENCES))
def test_a_head_is_changed_only_as_it_was_read(name: str) -> None:
    assert "where tenant = :tenant and id = :task" in SQLITE[name]
    assert HEAD_FENCES[name] in SQLITE[name]


def test_every_statement_that_changes_an_operation_is_known() -> None:
    changes = {name for name, sql in SQLITE.items() if re.search(r"\bupdate operations\b", sql)}
    assert changes == set(CHANGES_OPERATIONS)


@pytest.mark.parametrize("name", sorted(CHANGES_OPERATIONS))
def test_an_operation_is_changed_only_from_the_state_it_may_leave(name: str) -> None:
    assert "where tenant = :tenant and task = :task and key = :key" in SQLITE[name]
    assert CHANGES_OPERATIONS[name] in SQLITE[name]


def test_every_statement_names_the_tenant_of_what_it_writes() -> None:
    for name, sql in SQLITE.items():
        for verb, table in re.findall(r"\b(update|delete from) (\w+)", sql):
            if table in FENCED - {"queue"} and not sql.startswith("insert"):
                assert "tenant = :tenant" in sql, (name, verb, table)


def test_every_write_transaction_begins_as_a_writer() -> None:
    """A reader that turns into a writer half-way can only fail."""
    source = (resources.files("outlast.store.sqlite") / "connection.py").read_text(encoding="utf-8")
    begin = source[source.index("def begin(") :]
    assert '"begin immediate"' in begin
