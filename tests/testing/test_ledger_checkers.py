"""What the checkers of the ledger tell apart, condition by condition."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.testing.exhibits import Broken, Exhibit, Sound, beside, fates, into, seen_by, shown, unseen

from outlast.testing.checkers import Call


@pytest.fixture
async def exhibit() -> AsyncIterator[Exhibit]:
    async with fates() as whole:
        yield whole


BROKEN: Broken = []
breaks = into(BROKEN)
SOUND: Sound = []
spares = beside(SOUND)


# -- intent, call, outcome --------------------------------------------------------------------------------


def _unsent(it: Exhibit, key: str, **more: Any) -> None:
    it.call(key).update(attempt=0, turn=0, intent_at=None, first_intent_at=None, **more)


@pytest.mark.parametrize("kind", ["tool", "model", "compensation"])
@pytest.mark.parametrize("state", ["running", "unknown"])
async def test_no_kind_of_call_is_under_way_without_an_intent(
    exhibit: Exhibit, kind: str, state: str
) -> None:
    _unsent(exhibit, "lost", kind=kind, state=state)
    found = seen_by(exhibit, "intent_before_call_before_outcome")
    assert any(f"is {state} without an intent" in one for one in found), found


@spares("intent_before_call_before_outcome")
def _put_an_undo_before_people_that_cannot_be_made(it: Exhibit) -> None:
    _unsent(it, "lost", kind="compensation", state="unknown")
    it.call("lost")["turn"] = 1
    _no_call(it, "lost")


def _no_call(it: Exhibit, key: str) -> None:
    it.calls = [call for call in it.calls if not (call.key or "").endswith(f":{it.keys[key]}")]


@pytest.mark.parametrize("column", ["effect", "decision", "deadline_at"])
async def test_nothing_is_sent_without_its_terms(exhibit: Exhibit, column: str) -> None:
    exhibit.call("declined")[column] = None
    found = seen_by(exhibit, "intent_before_call_before_outcome")
    assert any("was sent without an effect class, a decision or a deadline" in one for one in found), found


@breaks("intent_before_call_before_outcome", "its first intent is not the first")
def _send_before_it_was_on_record(it: Exhibit) -> None:
    row = it.call("declined")
    row["created_at"] = row["first_intent_at"] + 1


@spares("intent_before_call_before_outcome")
def _take_over_what_another_task_has_sent(it: Exhibit) -> None:
    row = it.call("declined")
    row.update(created_at=row["first_intent_at"] + 1, idempotency_key="task_origin:call")
    _no_call(it, "declined")


@spares("intent_before_call_before_outcome")
def _throw_in_doubt_what_had_ended(it: Exhibit) -> None:
    row = it.call("lost")
    row["ended_at"] = row["intent_at"]


@breaks("intent_before_call_before_outcome", "was called, and no intent")
def _call_what_is_planned_only(it: Exhibit) -> None:
    _unsent(it, "declined", state="planned", ended_at=None)


@spares("intent_before_call_before_outcome")
def _read_without_a_key(it: Exhibit) -> None:
    it.calls.append(Call(key=None))


# -- effects ----------------------------------------------------------------------------------------------


@spares("effects_are_accounted_for")
def _ask_twice_without_a_key(it: Exhibit) -> None:
    it.calls += [Call(key=None, fingerprint=word, method="POST") for word in ("f1", "f2")]


@spares("effects_are_accounted_for")
def _look_up_what_was_sent(it: Exhibit) -> None:
    for method in ("GET", "HEAD"):
        it.calls.append(Call(key=it.calls[0].key, fingerprint=f"of a {method}", method=method))


@spares("effects_are_accounted_for")
def _send_what_was_not_taken_down(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[0].key, method="POST"))


@spares("effects_are_accounted_for")
def _ask_a_model(it: Exhibit) -> None:
    it.call("done")["kind"] = "model"
    _no_call(it, "done")


@spares("effects_are_accounted_for")
def _succeed_by_what_another_call_has_done(it: Exhibit) -> None:
    _unsent(it, "done", effect=None)
    _no_call(it, "done")


@spares("effects_are_accounted_for")
def _do_what_nobody_judges(it: Exhibit) -> None:
    it.tools = ["another"]


@breaks("effects_are_accounted_for", "is succeeded, and has 2 effects outside")
def _do_what_is_judged_twice(it: Exhibit) -> None:
    it.tools = [it.call("done")["name"]]
    it.calls.append(Call(key=it.calls[0].key, effect_id="e9"))


@breaks("effects_are_accounted_for", "is succeeded, and has 0 effects outside")
def _undo_nothing(it: Exhibit) -> None:
    it.call("done")["kind"] = "compensation"
    _no_call(it, "done")


def _fork(it: Exhibit, key: str, **more: Any) -> None:
    """Have a fork go on with a call under the key of the task that it was made from."""
    row = it.call(key)
    sent = {"task": it.tasks["failed"], "idempotency_key": f"{row['task']}:{row['key']}"}
    it.dump["operations"].append({**row, **sent, **more})


@breaks("effects_are_accounted_for", "is failed, succeeded, and has 0 effects outside")
def _do_nothing_for_a_task_and_its_fork(it: Exhibit) -> None:
    _fork(it, "done", state="failed")
    _no_call(it, "done")


@breaks("effects_are_accounted_for", "is succeeded, unknown, and has 2 effects outside")
def _do_it_for_a_task_and_its_fork(it: Exhibit) -> None:
    _fork(it, "done", state="unknown")
    it.calls.append(Call(key=it.calls[0].key, effect_id="e9"))


@spares("effects_are_accounted_for")
def _lose_what_a_fork_was_refused(it: Exhibit) -> None:
    _fork(it, "lost", state="failed")


# -- the queue --------------------------------------------------------------------------------------------


@breaks("unknowns_are_queued", "-1 of 1 questions brought no evidence")
def _ask_in_vain_less_than_never(it: Exhibit) -> None:
    it.rows("unsettled", "waiting")[0]["unusable"] = -1


# -- words ------------------------------------------------------------------------------------------------


def _hear(it: Exhibit, **more: Any) -> dict[str, Any]:
    """Let evidence say that the call happened which was declined."""
    row = it.call("declined")
    said = {"number": 5, "attempt": 1, "source": "late", "data": "{}", "at": 1, "says": "happened"}
    it.dump["evidence"].append({**said, **{part: row[part] for part in ("tenant", "task", "key")}, **more})
    return row


@breaks("words_are_heard", "is approved, and attempt 1 says that it happened")
def _approve_against_the_word(it: Exhibit) -> None:
    _hear(it)["state"] = "approved"


@breaks("words_are_heard", "is failed, and attempt 1 says that it happened")
def _hear_of_it_after_a_person(it: Exhibit) -> None:
    _hear(it, number=4, source="person", says="did_not_happen")
    _hear(it)


@breaks("words_are_heard", "is failed, and attempt 1 says that it happened")
def _hear_of_it_before_something_else(it: Exhibit) -> None:
    _hear(it)
    _hear(it, number=6, says="over")


@breaks("words_are_heard", "is failed, and attempt 1 says that it happened")
def _fail_against_a_persons_last_word(it: Exhibit) -> None:
    _hear(it, source="person")


@spares("words_are_heard")
def _hear_of_it_before_a_person(it: Exhibit) -> None:
    _hear(it)
    _hear(it, number=6, source="person", says="did_not_happen")
    _hear(it, number=4, source="person", says="happened")


@spares("words_are_heard")
def _hear_of_what_changes_nothing(it: Exhibit) -> None:
    _hear(it)["effect"] = "read"


@spares("words_are_heard")
def _hear_of_what_was_never_sent(it: Exhibit) -> None:
    _hear(it)["effect"] = None


@spares("words_are_heard")
def _hear_of_one_request_of_a_call(it: Exhibit) -> None:
    _hear(it, source="gateway")


@spares("words_are_heard")
def _hear_that_it_did_not_happen(it: Exhibit) -> None:
    _hear(it, says="did_not_happen")


@pytest.mark.parametrize("attempt", [0, 2])
async def test_no_other_attempt_counts(exhibit: Exhibit, attempt: int) -> None:
    _hear(exhibit, attempt=attempt)
    assert seen_by(exhibit, "words_are_heard") == []


# -- ends -------------------------------------------------------------------------------------------------


def _tell(it: Exhibit, *ends: tuple[str, dict[str, Any]]) -> None:
    """Put ends of one call into a stream."""
    last = it.rows("events", "running")[-1]
    for number, (word, more) in enumerate(ends, 901):
        data = json.dumps({"operation": "call", **more})
        it.dump["events"].append({**last, "number": number, "kind": f"operation.{word}", "data": data})


TOOL = {"kind": "tool"}


@spares("calls_succeed_once")
def _tell_of_a_step_twice(it: Exhibit) -> None:
    _tell(it, ("succeeded", {"kind": "step"}), ("succeeded", {"kind": "step"}))


@pytest.mark.parametrize("more", [{}, {"kind": "tool"}, {"kind": "compensation"}])
async def test_no_kind_of_call_ends_twice(exhibit: Exhibit, more: dict[str, Any]) -> None:
    _tell(exhibit, ("succeeded", more), ("failed", more))
    found = seen_by(exhibit, "calls_succeed_once")
    assert any("call: has ended by event 901, and again by 902" in one for one in found), found


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 903")
def _end_again_after_another_word(it: Exhibit) -> None:
    _tell(it, ("succeeded", TOOL), ("retrying", TOOL), ("failed", TOOL))


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 902")
def _end_twice_in_whatever_order_it_lies(it: Exhibit) -> None:
    _tell(it, ("succeeded", TOOL), ("failed", TOOL))
    it.dump["events"].reverse()


# -- settlements ------------------------------------------------------------------------------------------


@breaks("settlements_are_counted", "settled as did_not_happen, and 0 are counted")
def _forget_a_settlement_of_what_did_not_happen(it: Exhibit) -> None:
    it.call("settled")["state"] = "failed"


@breaks("settlements_are_counted", "settled as happened, and 0 are counted")
def _forget_the_settlement_of_an_undo(it: Exhibit) -> None:
    it.call("settled")["kind"] = "compensation"
    it.dump["settled_counts"].clear()


@spares("settlements_are_counted")
def _settle_what_is_no_call(it: Exhibit) -> None:
    it.call("settled")["kind"] = "step"
    it.dump["settled_counts"].clear()


# -- business keys ----------------------------------------------------------------------------------------


@spares("business_keys_follow_their_operations")
def _hold_what_may_be_made(it: Exhibit) -> None:
    it.call("sending")["state"] = "approved"


@breaks("business_keys_follow_their_operations", "is running and does not have its business key")
def _be_done_while_it_runs(it: Exhibit) -> None:
    [row] = [row for row in it.dump["business_keys"] if row["key"] == it.keys["sending"]]
    row.update(state="done", until_at=1)


@spares("business_keys_follow_their_operations")
def _doubt_what_another_call_has_made(it: Exhibit) -> None:
    it.dump["business_keys"] = [row for row in it.dump["business_keys"] if row["key"] != it.keys["open"]]


test_a_broken_dump_is_seen = shown(BROKEN)
test_what_breaks_nothing_is_spared = unseen(SOUND)
