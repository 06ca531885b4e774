"""What the checkers of rows tell apart, condition by condition, and above all between two dumps."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.testing.exhibits import Broken, Exhibit, Sound, beside, fates, into, seen_by, shown, unseen


@pytest.fixture
async def exhibit() -> AsyncIterator[Exhibit]:
    async with fates() as whole:
        # Nothing has happened since but what a test lets happen.
        whole.earlier = copy.deepcopy(whole.dump)
        yield whole


BROKEN: Broken = []
breaks = into(BROKEN)
SOUND: Sound = []
spares = beside(SOUND)


def _note(it: Exhibit, key: str, says: str, number: int = 9) -> dict[str, Any]:
    """Put evidence of a call beside the ledger, since the earlier dump."""
    of = {part: it.call(key)[part] for part in ("tenant", "task", "key")}
    row = {"number": number, "attempt": 1, "source": "late", "data": "{}", "at": 1, "says": says, **of}
    it.dump["evidence"].append(row)
    return row


# -- epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "fate"),
    [("leases", "running"), ("attempts", "waiting"), ("operations", "running"), ("events", "running")],
)
async def test_no_row_is_ahead_of_its_tasks_epoch(exhibit: Exhibit, table: str, fate: str) -> None:
    exhibit.rows(table, fate)[0]["epoch"] = 9
    found = seen_by(exhibit, "only_the_current_epoch_writes")
    assert any(f"a row of {table} has epoch 9, the task 1" in one for one in found), found


# -- history ----------------------------------------------------------------------------------------------

# Said again: what the checker forgets of these is to be missed here.
HISTORY = {
    "events": ("tenant", "task", "number"),
    "evidence": ("tenant", "task", "key", "number"),
    "attempts": ("tenant", "task", "epoch"),
    "results": ("tenant", "task", "round"),
    "audit": ("tenant", "number"),
    "votes": ("tenant", "approval", "number"),
}


def _history(it: Exhibit, table: str) -> dict[str, Any]:
    """Answer a row of a table that is only added to."""
    if table != "votes":
        return it.dump[table][0]
    row = {"tenant": "tenant-green", "approval": "task:pay~1", "number": 1, "who": "person:ann"}
    it.dump[table] = [dict(row)]
    assert it.earlier is not None
    it.earlier[table] = [dict(row)]
    return it.dump[table][0]


@pytest.mark.parametrize("table", HISTORY)
async def test_history_does_not_change(exhibit: Exhibit, table: str) -> None:
    row = _history(exhibit, table)
    column = next(name for name in row if name not in HISTORY[table])
    row[column] = "another"
    found = seen_by(exhibit, "results_never_change")
    of = f"task {row['task']}" if "task" in HISTORY[table] else f"tenant {row['tenant']}"
    assert any(of in one and f"a row of {table} changed" in one for one in found), found


@pytest.mark.parametrize("table", HISTORY)
async def test_history_does_not_go(exhibit: Exhibit, table: str) -> None:
    row = _history(exhibit, table)
    exhibit.dump[table].remove(row)
    found = seen_by(exhibit, "results_never_change")
    assert any(f"a row of {table} went" in one for one in found), found


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in HISTORY for name in HISTORY[table]])
async def test_rows_of_history_are_told_apart_by_the_whole_of_their_names(
    exhibit: Exhibit, table: str, name: str
) -> None:
    twin = dict(_history(exhibit, table))
    twin[name] = twin[name] + 90 if isinstance(twin[name], int) else "another"
    assert exhibit.earlier is not None
    for dump in (exhibit.dump, exhibit.earlier):
        dump[table].append(dict(twin))
    assert seen_by(exhibit, "results_never_change") == []


# -- heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["epoch", "round", "last_event", "facts"])
async def test_no_number_of_a_head_falls(exhibit: Exhibit, column: str) -> None:
    [head] = exhibit.rows("tasks", "running")
    head[column] -= 1
    found = seen_by(exhibit, "results_never_change")
    assert any(f"its {column} fell from {head[column] + 1} to {head[column]}" in one for one in found), found


@spares("results_never_change")
def _open_the_next_round(it: Exhibit) -> None:
    it.rows("tasks", "failed")[0].update(state="queued", round=2)


# -- operations -------------------------------------------------------------------------------------------


@breaks("results_never_change", "its attempt or turn fell")
def _send_less_often(it: Exhibit) -> None:
    it.call("once")["attempt"] = 0


@breaks("results_never_change", "was failed, and its record changed")
def _fail_otherwise(it: Exhibit) -> None:
    it.call("declined")["error"] = '{"code":"another"}'


@breaks("results_never_change", "was succeeded, and its record changed")
def _fail_what_had_succeeded(it: Exhibit) -> None:
    it.call("once")["state"] = "failed"


@breaks("results_never_change", "was succeeded, and its record changed")
def _open_a_success_again(it: Exhibit) -> None:
    it.call("once")["state"] = "planned"


@breaks("results_never_change", "was succeeded, and its record changed")
def _open_a_success_again_in_a_later_attempt(it: Exhibit) -> None:
    row = it.call("once")
    row.update(state="failed", epoch=row["epoch"] + 1)


@spares("results_never_change")
def _open_a_failure_again(it: Exhibit) -> None:
    it.call("declined").update(state="planned", error=None)


@spares("results_never_change")
def _open_a_failure_again_and_succeed(it: Exhibit) -> None:
    row = it.call("declined")
    row.update(state="succeeded", error=None, epoch=row["epoch"] + 1)


@spares("results_never_change")
def _throw_a_success_in_doubt(it: Exhibit) -> None:
    _note(it, "once", "did_not_happen")
    it.call("once").update(state="unknown", result=None)


@spares("results_never_change")
def _settle_what_came_in_doubt(it: Exhibit) -> None:
    _note(it, "once", "did_not_happen")
    it.call("once").update(state="failed", result=None, settled_by="person:ann")


@spares("results_never_change")
def _settle_what_came_in_doubt_by_the_number_of_anothers_evidence(it: Exhibit) -> None:
    _note(it, "declined", "over")
    it.earlier = copy.deepcopy(it.dump)
    _note(it, "once", "happened")
    it.call("once").update(state="failed", result=None, settled_by="person:ann")


@spares("results_never_change")
def _settle_what_came_in_doubt_once_more(it: Exhibit) -> None:
    _note(it, "settled", "did_not_happen")
    it.call("settled").update(state="failed", result=None, settled_by="person:rob")


@breaks("results_never_change", "its record changed")
def _settle_without_a_doubt(it: Exhibit) -> None:
    it.call("once").update(state="failed", result=None, settled_by="person:ann")


@breaks("results_never_change", "its record changed")
def _settle_again_by_evidence_that_was_known(it: Exhibit) -> None:
    _note(it, "settled", "did_not_happen")
    it.earlier = copy.deepcopy(it.dump)
    it.call("settled").update(state="failed", result=None, settled_by="person:rob")


@breaks("results_never_change", "its record changed")
def _settle_by_evidence_that_says_nothing(it: Exhibit) -> None:
    _note(it, "once", "over")
    it.call("once").update(state="failed", result=None, settled_by="person:ann")


@breaks("results_never_change", "its record changed")
def _change_what_came_in_doubt_and_settle_nothing(it: Exhibit) -> None:
    _note(it, "once", "did_not_happen")
    it.call("once").update(state="failed", result=None)


# -- tenants ----------------------------------------------------------------------------------------------


@breaks("every_row_has_one_tenant", "stands in a lane of None")
def _queue_in_no_lane(it: Exhibit) -> None:
    it.rows("queue", "queued")[0]["lane"] = -1


@breaks("every_row_has_one_tenant", "stands in a lane of None")
def _stand_in_no_lane(it: Exhibit) -> None:
    it.rows("tasks", "succeeded")[0]["lane"] = -1


test_a_broken_dump_is_seen = shown(BROKEN)
test_what_breaks_nothing_is_spared = unseen(SOUND)
