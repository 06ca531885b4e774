"""A checker that cannot fail is a defect: each is shown a broken dump, and a whole one."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.testing.exhibits import (
    Broken,
    Exhibit,
    Sound,
    beside,
    empty_each,
    fates,
    into,
    seen_by,
    shown,
    turn_round,
    unseen,
)
from tests.testing.test_change_checkers import BROKEN as BROKEN_BY_CHANGE
from tests.testing.test_people_checkers import BROKEN as BROKEN_BY_PEOPLE

from outlast.store.reconciling import EVERY_TENANT
from outlast.store.records import TaskRef
from outlast.testing.checkers import CHECKERS, Call, calls_of, check_all


@pytest.fixture
async def exhibit() -> AsyncIterator[Exhibit]:
    async with fates() as whole:
        yield whole


BROKEN: Broken = []
breaks = into(BROKEN)
SOUND: Sound = []
spares = beside(SOUND)


@breaks("accepted_is_stored", "no such task")
def _lose_a_task(it: Exhibit) -> None:
    for table in it.dump:
        name = "id" if table == "tasks" else "task"
        it.dump[table] = [r for r in it.dump[table] if r.get(name) != it.tasks["queued"]]
    it.earlier = None


@breaks("accepted_is_stored", "has 0 inputs")
def _lose_an_input(it: Exhibit) -> None:
    it.dump["inputs"].remove(it.rows("inputs", "queued")[0])


@breaks("accepted_is_stored", "first event is missing")
def _rename_the_first_event(it: Exhibit) -> None:
    it.rows("events", "queued")[0]["kind"] = "progress"


@breaks("accepted_is_stored", "first event is missing")
def _number_the_first_event_otherwise(it: Exhibit) -> None:
    it.rows("events", "queued")[0]["number"] = 2


@breaks("announced_together", "message task.submitted is neither kept nor published")
def _lose_the_first_message(it: Exhibit) -> None:
    message = it.rows("outbox", "succeeded")[0]
    assert message["topic"] == "task.submitted"
    it.published = []
    it.dump["outbox"].remove(message)


@spares("announced_together")
def _announce_a_live_task(it: Exhibit) -> None:
    it.rows("inputs", "queued")[0]["announce"] = True
    it.published = [("tenant-green", it.tasks["queued"], "task.submitted")]


@breaks("announced_together", "not there")
def _lose_an_announced_task(it: Exhibit) -> None:
    it.dump["inputs"].remove(it.rows("inputs", "succeeded")[0])


@breaks("announced_together", "asked for silence")
def _announce_a_silent_task(it: Exhibit) -> None:
    it.rows("outbox", "succeeded")[0]["task"] = it.tasks["queued"]


@breaks("announced_together", "message task.succeeded is neither kept nor published")
def _lose_a_message(it: Exhibit) -> None:
    message = it.rows("outbox", "succeeded")[-1]
    assert message["topic"] == "task.succeeded"
    it.published = []
    it.dump["outbox"].remove(message)


@breaks("one_task_per_key", "2 tasks have the key")
def _share_a_key(it: Exhibit) -> None:
    it.rows("inputs", "queued")[0]["key"] = it.rows("inputs", "running")[0]["key"]


@breaks("one_task_per_key", "control character")
def _let_a_bad_key_in(it: Exhibit) -> None:
    it.rows("inputs", "queued")[0]["key"] = "a\tb"


@breaks("only_the_current_epoch_writes", "a row of attempts has epoch 1, the task 0")
def _let_an_epoch_fall(it: Exhibit) -> None:
    it.rows("tasks", "waiting")[0]["epoch"] = 0


@breaks("only_the_current_epoch_writes", "a later attempt has ended")
def _keep_an_old_lease(it: Exhibit) -> None:
    lease = {**it.rows("leases", "running")[0], "task": it.tasks["waiting"]}
    it.dump["leases"].append(lease)


@breaks("only_the_current_epoch_writes", "of epoch 1 follows epoch 2")
def _write_behind_a_successor(it: Exhibit) -> None:
    it.rows("tasks", "running")[0]["epoch"] = 2
    it.rows("events", "running")[1]["epoch"] = 2


@breaks("final_states_stand", "its results of the round say []")
def _lose_a_result(it: Exhibit) -> None:
    it.dump["results"].remove(it.rows("results", "succeeded")[0])


@breaks("final_states_stand", "say ['succeeded']")
def _change_a_final_state(it: Exhibit) -> None:
    it.rows("tasks", "succeeded")[0]["state"] = "failed"


@breaks("final_states_stand", "has a result of this round")
def _wake_the_dead(it: Exhibit) -> None:
    it.rows("tasks", "succeeded")[0]["state"] = "queued"


@breaks("final_states_stand", "a round to come")
def _end_a_round_to_come(it: Exhibit) -> None:
    it.rows("results", "succeeded")[0]["round"] += 1


@breaks("final_states_stand", "its final events are ['task.failed', 'task.failed']")
def _end_twice(it: Exhibit) -> None:
    it.rows("events", "failed")[2]["kind"] = "task.failed"


@breaks("final_states_stand", "its last event is progress")
def _speak_after_the_end(it: Exhibit) -> None:
    last = max(it.rows("events", "failed"), key=lambda row: row["number"])
    it.dump["events"].append({**last, "number": last["number"] + 1, "kind": "progress"})


@spares("final_states_stand")
def _judge_what_is_done(it: Exhibit) -> None:
    last = max(it.rows("events", "succeeded"), key=lambda row: row["number"])
    for more, word in enumerate(("accepted", "rejected", "accepted"), 1):
        it.dump["events"].append({**last, "number": last["number"] + more, "kind": f"task.{word}"})


@spares("final_states_stand")
def _end_each_round_in_its_own_way(it: Exhibit) -> None:
    it.rows("events", "failed")[2]["kind"] = "task.cancelled"
    it.rows("tasks", "failed")[0]["round"] = 2
    [result] = it.rows("results", "failed")
    it.dump["results"].append({**result, "state": "cancelled"})
    result["round"] = 2
    it.dump["results"].sort(key=lambda row: -int(row["round"]))


@breaks("results_never_change", "a row of events changed")
def _rewrite_an_event(it: Exhibit) -> None:
    it.rows("events", "running")[0]["data"] = "{}"


@breaks("results_never_change", "a row of evidence went")
def _lose_evidence(it: Exhibit) -> None:
    it.dump["evidence"].remove(it.rows("evidence", "running")[0])


@breaks("results_never_change", "tenant *: a row of audit changed")
def _rewrite_the_audit_trail(it: Exhibit) -> None:
    [row] = [row for row in it.dump["audit"] if row["tenant"] == EVERY_TENANT]
    row["reason"] = "none"


@breaks("results_never_change", "a row of audit went")
def _lose_what_a_person_did(it: Exhibit) -> None:
    del it.dump["audit"][0]


@breaks("results_never_change", "is gone")
def _forget_a_task(it: Exhibit) -> None:
    it.dump["tasks"].remove(it.rows("tasks", "queued")[0])


@breaks("results_never_change", "its facts fell from 1 to 0")
def _forget_a_fact(it: Exhibit) -> None:
    it.rows("tasks", "running")[0]["facts"] = 0


@breaks("results_never_change", "was succeeded, is failed in the same round")
def _turn_a_success(it: Exhibit) -> None:
    it.earlier = copy.deepcopy(it.dump)
    it.rows("tasks", "succeeded")[0]["state"] = "failed"


@breaks("results_never_change", "its record changed")
def _rewrite_a_result(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "succeeded") if row["key"] == it.keys["done"]]
    row["result"] = '{"other": 1}'


@breaks("results_never_change", "attempt or turn fell")
def _turn_back(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "waiting") if row["key"] == it.keys["lost"]]
    row["turn"] = 1


@breaks("results_never_change", "operation")
def _forget_an_operation(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    it.dump["operations"].remove(row)


@breaks("intent_before_call_before_outcome", "1 attempts and intents at None")
def _lose_an_intent(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["intent_at"] = None


@breaks("intent_before_call_before_outcome", "has 1 attempts and intents at ")
def _lose_the_first_intent(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["first_intent_at"] = None


@breaks("intent_before_call_before_outcome", "without an intent")
def _run_without_an_intent(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "waiting") if row["key"] == it.keys["lost"]]
    row.update(attempt=0, intent_at=None, first_intent_at=None)


@breaks("intent_before_call_before_outcome", "without an effect class")
def _send_without_a_deadline(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["deadline_at"] = None


@breaks("intent_before_call_before_outcome", "its first intent is not the first")
def _send_before_the_first(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["first_intent_at"] += 1


@breaks("intent_before_call_before_outcome", "ended before its intent")
def _end_before_the_intent(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["ended_at"] = row["intent_at"] - 1


@breaks("intent_before_call_before_outcome", "3 attempts in 2 turns")
def _send_without_a_turn(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["attempt"] = 3


@breaks("intent_before_call_before_outcome", "has ended at None")
def _succeed_without_an_end(it: Exhibit) -> None:
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    row["ended_at"] = None


@breaks("intent_before_call_before_outcome", "was called, and no intent")
def _call_without_an_intent(it: Exhibit) -> None:
    it.calls.append(Call(key=f"{it.tasks['queued']}:none"))


@breaks("effects_are_accounted_for", "is succeeded, and has 2 effects")
def _do_it_twice(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[0].key, effect_id="e9"))


@breaks("effects_are_accounted_for", "is succeeded, and has 0 effects")
def _claim_what_never_happened(it: Exhibit) -> None:
    del it.calls[0]


@breaks("effects_are_accounted_for", "is failed, and has 1 effects")
def _do_what_was_declined(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[2].key, effect_id="e9"))


@breaks("effects_are_accounted_for", "is unknown, and has 2 effects")
def _do_an_unknown_twice(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[3].key, effect_id="e9"))


@breaks("effects_are_accounted_for", "2 different requests")
def _change_the_request(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[0].key, fingerprint="f2", method="POST"))


@breaks("effects_are_accounted_for", "made without a key")
def _act_without_a_key(it: Exhibit) -> None:
    it.calls.append(Call(key=None, effect_id="e9"))


@breaks("effects_are_accounted_for", "is not in the ledger")
def _act_beside_the_ledger(it: Exhibit) -> None:
    it.calls.append(Call(key="task_x:call", effect_id="e9"))


@breaks("unknowns_are_queued", "is unknown and not in the reconciliation queue")
def _lose_an_unknown(it: Exhibit) -> None:
    it.dump["unsettled"].remove(it.rows("unsettled", "waiting")[0])


@breaks("unknowns_are_queued", "in the reconciliation queue and not unknown")
def _queue_what_is_known(it: Exhibit) -> None:
    it.dump["unsettled"].append(
        {**it.rows("unsettled", "waiting")[0], "task": it.tasks["running"], "key": it.keys["settled"]}
    )


@breaks("unknowns_are_queued", "is to be sent again by a task that has ended")
def _send_again_after_the_end(it: Exhibit) -> None:
    it.rows("unsettled", "failed")[0].update(resend=True, ask_at=None)


@breaks("unknowns_are_queued", "is to be sent again and asked about at 5")
def _ask_about_what_is_sent_again(it: Exhibit) -> None:
    it.rows("unsettled", "waiting")[0].update(resend=True, ask_at=5)


@breaks("unknowns_are_queued", "2 of 1 questions brought no evidence")
def _ask_in_vain_more_often_than_asked(it: Exhibit) -> None:
    it.rows("unsettled", "waiting")[0]["unusable"] = 2


@breaks("unknowns_are_queued", "is running in a task that has ended")
def _leave_a_call_running_at_the_end(it: Exhibit) -> None:
    next(row for row in it.rows("operations", "failed") if row["kind"] == "tool")["state"] = "running"


@pytest.mark.parametrize("kind", ["model", "compensation"])
async def test_no_kind_of_call_is_left_running_at_the_end(exhibit: Exhibit, kind: str) -> None:
    row = next(row for row in exhibit.rows("operations", "failed") if row["kind"] == "tool")
    row.update(state="running", kind=kind)
    found = seen_by(exhibit, "unknowns_are_queued")
    assert any("is running in a task that has ended" in one for one in found), found


def _say_it_happened(it: Exhibit) -> dict[str, Any]:
    """Let late evidence say that the call happened which was declined."""
    said = {"number": 1, "attempt": 1, "source": "late", "data": "{}", "at": 1, "says": "happened"}
    [row] = [row for row in it.rows("operations", "running") if row["key"] == it.keys["declined"]]
    it.dump["evidence"].append({**said, **{part: row[part] for part in ("tenant", "task", "key")}})
    return row


@breaks("words_are_heard", "is failed, and attempt 1 says that it happened")
def _fail_against_the_word(it: Exhibit) -> None:
    _say_it_happened(it)


@breaks("words_are_heard", "is planned, and attempt 1 says that it happened")
def _plan_against_the_word(it: Exhibit) -> None:
    _say_it_happened(it)["state"] = "planned"


def _tell(it: Exhibit, *ends: tuple[str, str]) -> None:
    """Put ends of one call into a stream: what is told, and what a settlement says."""
    last = it.rows("events", "running")[-1]
    for number, (word, verdict) in enumerate(ends, 901):
        data = json.dumps({"operation": "call", "kind": "tool", "verdict": verdict})
        it.dump["events"].append({**last, "number": number, "kind": f"operation.{word}", "data": data})


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 902")
def _tell_two_ends_of_a_call(it: Exhibit) -> None:
    _tell(it, ("succeeded", ""), ("failed", ""))


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 902")
def _tell_a_success_twice(it: Exhibit) -> None:
    _tell(it, ("succeeded", ""), ("succeeded", ""))


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 902")
def _settle_a_success(it: Exhibit) -> None:
    _tell(it, ("succeeded", ""), ("settled", "did_not_happen"))


@breaks("calls_succeed_once", "call: has ended by event 901, and again by 902")
def _fail_what_was_settled_as_happened(it: Exhibit) -> None:
    _tell(it, ("settled", "happened"), ("failed", ""))


@pytest.mark.parametrize("word", ["started", "unknown", "contradicted"])
async def test_a_call_may_end_again_after_it_was_begun_again(exhibit: Exhibit, word: str) -> None:
    _tell(exhibit, ("succeeded", ""), (word, ""), ("failed", ""))
    assert seen_by(exhibit, "calls_succeed_once") == []


@breaks("settlements_are_counted", "1 of tool-")
def _forget_a_settlement(it: Exhibit) -> None:
    it.dump["settled_counts"].clear()


@breaks("settlements_are_counted", "settled as happened, and 0 are counted")
def _count_a_settlement_as_another(it: Exhibit) -> None:
    it.dump["settled_counts"][0].update(happened=0, did_not_happen=1)


def _business_key(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.dump["business_keys"] if row["key"] == it.keys[key]]
    return row


@breaks("business_keys_follow_their_operations", "is succeeded, and the key 'invoice-3' of refund is held")
def _hold_after_the_success(it: Exhibit) -> None:
    _business_key(it, "once").update(state="held", until_at=None)


@breaks("business_keys_follow_their_operations", "is running, and the key 'invoice-2' of refund is done")
def _be_done_before_the_outcome(it: Exhibit) -> None:
    _business_key(it, "sending").update(state="done", until_at=1)


@breaks("business_keys_follow_their_operations", "is failed, and the key 'invoice-2' of refund is held")
def _hold_after_the_failure(it: Exhibit) -> None:
    _business_key(it, "sending")["key"] = it.keys["declined"]


@breaks("business_keys_follow_their_operations", "is held until 1")
def _hold_for_a_while(it: Exhibit) -> None:
    _business_key(it, "open")["until_at"] = 1


@breaks("business_keys_follow_their_operations", "is running and does not have its business key")
def _send_without_the_key(it: Exhibit) -> None:
    it.dump["business_keys"].remove(_business_key(it, "sending"))


@breaks("business_keys_follow_their_operations", "says that its own is 'invoice-2'")
def _hold_anothers_key(it: Exhibit) -> None:
    _business_key(it, "sending")["value"] = "invoice-9"


@breaks("business_keys_follow_their_operations", "has 2 business keys")
def _hold_two_keys(it: Exhibit) -> None:
    it.dump["business_keys"].append({**_business_key(it, "sending"), "tool": "remind"})


@breaks("business_keys_follow_their_operations", "the key 'invoice-2' of refund is held 2 times")
def _share_a_business_key(it: Exhibit) -> None:
    it.dump["business_keys"].append({**_business_key(it, "sending"), "key": it.keys["once"]})


@breaks("business_keys_follow_their_operations", "is unknown and does not have its business key")
def _lose_a_key_in_doubt(it: Exhibit) -> None:
    [row] = [row for row in it.dump["unsettled"] if row["key"] == it.keys["open"]]
    row["why"] = "late evidence contradicts what was settled"
    it.dump["business_keys"].remove(_business_key(it, "open"))


@breaks("business_keys_follow_their_operations", "is running, and the key 'invoice-2' of refund is doubt")
def _doubt_what_runs(it: Exhibit) -> None:
    _business_key(it, "sending")["state"] = "doubt"


@breaks("business_keys_follow_their_operations", "is not in the ledger")
def _hold_beside_the_ledger(it: Exhibit) -> None:
    _business_key(it, "open")["key"] = "missing"


@breaks("events_are_dense", "its events are 1, 3-")
def _lose_an_event(it: Exhibit) -> None:
    it.dump["events"].remove(it.rows("events", "running")[1])


@breaks("events_are_dense", "its head says")
def _count_too_far(it: Exhibit) -> None:
    it.rows("tasks", "running")[0]["last_event"] += 1


@breaks("leases_have_living_sessions", "which has ended")
def _end_a_session(it: Exhibit) -> None:
    [lease] = it.rows("leases", "running")
    [session] = [row for row in it.dump["sessions"] if row["id"] == lease["session"]]
    session["lost_at"] = 1


@breaks("leases_have_living_sessions", "which has ended")
def _lose_a_session(it: Exhibit) -> None:
    it.dump["sessions"].clear()


@breaks("every_row_has_one_tenant", "belongs to no task of this tenant")
def _move_a_row(it: Exhibit) -> None:
    it.rows("timers", "timer")[0]["tenant"] = "tenant-other"


@breaks("every_row_has_one_tenant", "stands in a lane of tenant-other")
def _move_a_lane(it: Exhibit) -> None:
    it.dump["lanes"][0]["tenant"] = "tenant-other"


@breaks("every_row_has_one_tenant", "a row of business_keys belongs to no task of this tenant")
def _move_a_business_key(it: Exhibit) -> None:
    _business_key(it, "open")["tenant"] = "tenant-other"


@breaks("every_row_has_one_tenant", "a row of provider_waits belongs to every tenant")
def _let_everybody_wait(it: Exhibit) -> None:
    it.dump["provider_waits"].append({"tenant": EVERY_TENANT, "provider": "mail.example", "until_at": 1})


@breaks("every_row_has_one_tenant", "a row of audit has no tenant")
def _do_it_for_nobody(it: Exhibit) -> None:
    it.dump["audit"][0]["tenant"] = ""


@breaks("every_row_has_one_tenant", "not in the ledger")
def _note_beside_the_ledger(it: Exhibit) -> None:
    it.rows("evidence", "running")[0]["key"] = "missing"


@breaks("every_live_task_goes_on", "is running and has 0 leases")
def _lose_a_lease(it: Exhibit) -> None:
    it.dump["leases"].remove(it.rows("leases", "running")[0])


@breaks("every_live_task_goes_on", "is waiting and has 1 leases")
def _hold_a_lease_while_waiting(it: Exhibit) -> None:
    it.dump["leases"].append({**it.rows("leases", "running")[0], "task": it.tasks["waiting"]})


@breaks("every_live_task_goes_on", "a lease of another epoch or round")
def _hold_an_old_lease(it: Exhibit) -> None:
    it.rows("leases", "running")[0]["epoch"] = 0


@breaks("every_live_task_goes_on", "is waiting(timer) and has 0 timers")
def _lose_a_timer(it: Exhibit) -> None:
    it.dump["timers"].remove(it.rows("timers", "timer")[0])


@breaks("every_live_task_goes_on", "is waiting(limit) and has 0 timers")
def _let_a_limit_hold_for_ever(it: Exhibit) -> None:
    it.rows("tasks", "timer")[0]["reason"] = "limit"
    it.dump["timers"].remove(it.rows("timers", "timer")[0])


@breaks("every_live_task_goes_on", "is succeeded and has 1 timers that wake it")
def _wake_what_has_ended(it: Exhibit) -> None:
    it.dump["timers"].append({**it.rows("timers", "timer")[0], "task": it.tasks["succeeded"]})


@breaks("every_live_task_goes_on", "is waiting(reconciliation) and has 2 timers that wake it")
def _wake_twice(it: Exhibit) -> None:
    timer = {**it.rows("timers", "timer")[0], "task": it.tasks["waiting"]}
    it.dump["timers"] += [timer, timer]


@breaks("every_live_task_goes_on", "is queued and not in its lane")
def _lose_a_queue_entry(it: Exhibit) -> None:
    it.dump["queue"].remove(it.rows("queue", "queued")[0])


@breaks("every_live_task_goes_on", "is queued and not in its lane")
def _queue_in_another_lane(it: Exhibit) -> None:
    it.rows("queue", "queued")[0]["lane"] = -1


@breaks("every_live_task_goes_on", "nothing of it is unsettled")
def _wait_for_nothing(it: Exhibit) -> None:
    it.dump["unsettled"].clear()


@breaks("every_live_task_goes_on", "with the reason None")
def _wait_without_a_reason(it: Exhibit) -> None:
    it.rows("tasks", "waiting")[0]["reason"] = None


@breaks("every_live_task_goes_on", "has deadline timers []")
def _lose_a_deadline(it: Exhibit) -> None:
    it.dump["timers"].remove(it.rows("timers", "queued")[0])


def _quiet(it: Exhibit) -> None:
    """Take away what is under way."""
    for fate in ("queued", "running", "timer"):
        for table in it.dump:
            name = "id" if table == "tasks" else "task"
            it.dump[table] = [r for r in it.dump[table] if r.get(name) != it.tasks[fate]]
        it.accepted = [one for one in it.accepted if one[1] != it.tasks[fate]]
    it.dump["outbox"].clear()
    it.calls = [one for one in it.calls if it.tasks["running"] not in (one.key or "")]
    it.earlier = copy.deepcopy(it.dump)
    it.quiet = True


def _hold_back(it: Exhibit, scope: str, fate: str) -> None:
    task = {"tenant": "tenant-green", "task": it.tasks[fate]}
    it.dump["held_tasks"].append({"by_tenant": "tenant-green", "scope": scope, **task})


def _scheduled(it: Exhibit, **says: Any) -> None:
    row = {"tenant": "tenant-green", "id": "nightly", "fired": 0, "last_task": None, **says}
    it.dump["schedules"].append(row)


@breaks("schedules_account_for_their_tasks", "says that it fired 1, there are 0")
def _forget_a_fired_task(it: Exhibit) -> None:
    _scheduled(it, fired=1)


@breaks("schedules_account_for_their_tasks", "says that it fired 2, there are 1")
def _forget_one_of_two_fired_tasks(it: Exhibit) -> None:
    _fire(it, "nightly", fired=2)


@spares("schedules_account_for_their_tasks")
def _fire_for_a_name_with_a_colon(it: Exhibit) -> None:
    _fire(it, "night:ly", fired=1, last_task=it.tasks["succeeded"])


def _fire(it: Exhibit, schedule: str, **says: Any) -> None:
    it.rows("inputs", "succeeded")[0]["key"] = f"schedule:{schedule}:2026-03-29T01:00:00Z"
    _scheduled(it, id=schedule, **says)


@breaks("schedules_account_for_their_tasks", "whose key is ''")
def _fire_a_task_without_a_key(it: Exhibit) -> None:
    _scheduled(it, last_task=it.tasks["succeeded"])


@breaks("schedules_account_for_their_tasks", "whose key is 'schedule:nightly2:")
def _fire_a_task_of_another_schedule(it: Exhibit) -> None:
    (row,) = it.rows("inputs", "succeeded")
    row["key"] = "schedule:nightly2:2026-03-29T01:00:00Z"
    _scheduled(it, last_task=it.tasks["succeeded"])


@breaks("quiet_is_quiet", "is running in a quiet system")
def _run_in_a_quiet_system(it: Exhibit) -> None:
    it.quiet = True


@breaks("quiet_is_quiet", "leases holds 1 rows")
def _hold_a_lease_in_a_quiet_system(it: Exhibit) -> None:
    lease = it.rows("leases", "running")[0]
    _quiet(it)
    it.dump["leases"].append(lease)


@breaks("quiet_is_quiet", "posts holds 1 rows")
def _leave_a_post_in_a_quiet_system(it: Exhibit) -> None:
    _quiet(it)
    it.dump["posts"].append(
        {
            "seq": 1,
            "tenant": "tenant-green",
            "task": it.tasks["failed"],
            "kind": "child",
            "name": "k",
            "data": "{}",
        }
    )


@breaks("quiet_is_quiet", "is held back by nothing (tenant-green, tool:y)")
def _hold_back_by_a_switch_that_is_gone(it: Exhibit) -> None:
    _quiet(it)
    _hold_back(it, "tool:y", "waiting")


@breaks("quiet_is_quiet", "is held back by nothing (tenant-green, tool:x)")
def _hold_back_what_is_over(it: Exhibit) -> None:
    _quiet(it)
    _hold_back(it, "tool:x", "failed")


@breaks("quiet_is_quiet", "is held back by nothing (tenant-green, tool:x)")
def _hold_back_by_a_switch_of_another_tenant(it: Exhibit) -> None:
    _quiet(it)
    _hold_back(it, "tool:x", "waiting")
    it.dump["pauses"] = [row for row in it.dump["pauses"] if row["tenant"] == EVERY_TENANT]


@spares("quiet_is_quiet")
def _hold_back_what_waits(it: Exhibit) -> None:
    _quiet(it)
    _hold_back(it, "tool:x", "waiting")
    it.earlier = None


@breaks("quiet_is_quiet", "is queued in a quiet system")
def _queue_in_a_quiet_system(it: Exhibit) -> None:
    it.quiet = True


@breaks("quiet_is_quiet", "queue holds 1 rows")
def _leave_an_entry_in_a_quiet_system(it: Exhibit) -> None:
    entry = it.rows("queue", "queued")[0]
    _quiet(it)
    it.dump["queue"].append(entry)


@breaks("quiet_is_quiet", "outbox holds 1 rows to publish")
def _keep_a_message_beside_another_tasks_parked_one(it: Exhibit) -> None:
    message = it.rows("outbox", "succeeded")[0]
    _quiet(it)
    parked = {**message, "task": it.tasks["failed"], "parked": "too large"}
    it.dump["outbox"] += [parked, {**message, "number": message["number"] + 1}]


@breaks("quiet_is_quiet", "outbox holds 1 rows to publish")
def _keep_a_message_in_a_quiet_system(it: Exhibit) -> None:
    message = it.rows("outbox", "succeeded")[0]
    _quiet(it)
    it.dump["outbox"].append(message)


@breaks("quiet_is_quiet", "outbox holds 1 rows to publish")
def _keep_a_message_before_a_parked_one_in_a_quiet_system(it: Exhibit) -> None:
    message = it.rows("outbox", "succeeded")[0]
    _quiet(it)
    parked = {**message, "number": message["number"] + 1, "parked": "too large"}
    it.dump["outbox"] += [message, parked]


@breaks("quiet_is_quiet", "writers grew from")
def _grow_in_a_quiet_system(it: Exhibit) -> None:
    _quiet(it)
    it.dump["writers"].append({"id": "wr_more", "number": 1, "verdicts": "[]", "updated_at": 1})


async def test_a_whole_dump_has_no_violations(exhibit: Exhibit) -> None:
    assert exhibit.check() == []
    exhibit.published = []
    assert exhibit.check() == []
    _quiet(exhibit)
    exhibit.published = [
        ("tenant-green", exhibit.tasks["succeeded"], topic) for topic in ("task.submitted", "task.succeeded")
    ]
    assert exhibit.check() == []


async def test_the_order_of_rows_says_nothing(exhibit: Exhibit) -> None:
    turn_round(exhibit)
    exhibit.published = []
    assert exhibit.check() == []


@pytest.mark.parametrize("quiet", [False, True])
async def test_no_checker_falls_over_a_table_that_is_lost(exhibit: Exhibit, quiet: bool) -> None:
    exhibit.published, exhibit.quiet = [], quiet
    _hold_back(exhibit, "tool:x", "waiting")
    _say_it_happened(exhibit)
    exhibit.rows("unsettled", "waiting")[0].update(resend=True, ask_at=None)
    empty_each(exhibit)


async def test_what_is_parked_and_what_it_holds_back_may_stay_in_a_quiet_system(exhibit: Exhibit) -> None:
    parked = {**exhibit.rows("outbox", "succeeded")[0], "parked": "too large"}
    _quiet(exhibit)
    exhibit.dump["outbox"] += [parked, {**parked, "number": parked["number"] + 1, "parked": None}]
    exhibit.earlier = None
    assert exhibit.check() == []


test_a_broken_dump_is_seen = shown(BROKEN)
test_what_breaks_nothing_is_spared = unseen(SOUND)


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_checker_is_shown_something_broken(checker: str) -> None:
    assert [text for name, text, _ in (*BROKEN, *BROKEN_BY_PEOPLE, *BROKEN_BY_CHANGE) if name == checker]


def test_violations_name_where(exhibit: Exhibit) -> None:
    exhibit.dump["unsettled"].clear()
    texts = [one.text for one in exhibit.check() if one.promise == "unknowns_are_queued"]
    name = f"tenant tenant-green, task {exhibit.tasks['waiting']}, operation {exhibit.keys['lost']}: "
    assert [text for text in texts if text.startswith(name)] != []


def test_only_the_tools_that_the_log_judges_are_judged(exhibit: Exhibit) -> None:
    exhibit.calls.clear()
    assert exhibit.check() != []
    exhibit.tools = ["another"]
    assert exhibit.check() == []


def test_what_was_accepted_may_be_told_by_whatever_has_a_tenant_and_a_task(exhibit: Exhibit) -> None:
    told = [TaskRef(tenant=tenant, task=task) for tenant, task in exhibit.accepted]
    assert check_all(exhibit.dump, accepted=told) == []
    lost = TaskRef(tenant="tenant-green", task="task_lost")
    [found] = check_all(exhibit.dump, accepted=[*told, lost])
    assert found.text == "tenant tenant-green, task task_lost: accepted, and there is no such task"


def test_reads_the_recorders_log() -> None:
    rows = [
        {"number": 3, "key": "a:b", "method": "POST", "path": "/tickets", "body_digest": "d", "effect": None},
        {
            "number": 4,
            "key": "a:b",
            "method": "POST",
            "body_digest": "d",
            "effect": "created",
            "ticket": "R1",
        },
        {"number": 5, "key": "a:c", "effect": "noted", "ticket": None},
        {"key": "a:d", "effect_id": "e7", "fingerprint": "f", "method": "PUT", "path": "/x"},
    ]
    assert list(calls_of(rows)) == [
        Call(key="a:b", fingerprint="d", method="POST", path="/tickets"),
        Call(key="a:b", effect_id="created R1", fingerprint="d", method="POST"),
        Call(key="a:c", effect_id="noted 5"),
        Call(key="a:d", effect_id="e7", fingerprint="f", method="PUT", path="/x"),
    ]
