"""What the checkers see of decisions, cancels, inboxes and families: each is shown a broken dump."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.stores import MEMORY, new_store
from tests.testing.exhibits import (
    Broken,
    Exhibit,
    Sound,
    beside,
    empty_each,
    into,
    shown,
    staged,
    turn_round,
    unseen,
)

from outlast.store.changing import Retry
from outlast.testing.checkers import Call, check_all
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene


@pytest.fixture
async def exhibit() -> AsyncIterator[Exhibit]:
    async with staged() as scene:
        asker = await scene.running(ttl_us=99 * HOUR)
        paid, voted, denied = (
            scene.ask(name="pay"),
            scene.ask(quorum=2, four_eyes=True, requester="person:rob"),
            scene.ask(),
        )
        rows = {ask.key: await scene.asked(asker, ask) for ask in (paid, voted, denied)}
        await scene.decide(rows[paid.key])
        await scene.decide(rows[voted.key], by="person:ann")
        await scene.decide(rows[denied.key], "reject")
        scene.pass_time(SECOND)
        await scene.write(asker, scene.agreed_intent(paid))
        await scene.write(asker, await scene.outcome(asker, paid.key, "succeeded"))

        listener = await scene.running()
        await scene.post(*(scene.signal(listener, "go", key=f"k{n}") for n in range(3)))
        await scene.write(
            listener,
            scene.wait("signal", "first", takes=(1,)),
            scene.wait("signal", "second", due_in_us=HOUR),
            scene.suspension("signal", facts=3),
        )

        marked = await scene.running(ttl_us=99 * HOUR)
        sent = await scene.called(marked, events=(scene.event("operation.started"),))
        scene.pass_time(SECOND)
        await scene.cancel(marked)
        decided = json.dumps({"task": marked.task, "round": marked.round})
        await scene.write(marked, scene.step(kind="value", name="undo", result=decided))
        undone = scene.intent(kind="compensation")
        scene.pass_time(SECOND)
        await scene.write(marked, undone)

        over = await scene.running()
        asked = await scene.asked(over)
        answered = await scene.asked(over, scene.question())
        await scene.decide(answered)
        await scene.cancel(over)
        await scene.write(over, scene.release())

        waiter = await scene.running()
        await scene.asked(waiter)
        await scene.write(waiter, scene.suspension("approval"))

        parent = await scene.running(ttl_us=99 * HOUR)
        kids = [await scene.child(parent, f"kid-{n}") for n in range(3)]
        told = {n: await scene.child(parent, f"told-{n}") for n in ("well", "badly")}
        await scene.write(await scene.claim_task(told["well"]), scene.success(result='{"of":"told"}'))
        await scene.write(await scene.claim_task(told["badly"]), scene.failure())
        for name, state in (("told-well", "succeeded"), ("told-badly", "failed")):
            result = '{"of":"told"}' if state == "succeeded" else None
            record = scene.step(name, kind="child", state=state, result=result, takes_end=True)
            await scene.write(parent, record)
        await scene.write(await scene.claim_task(kids[0]), scene.success())
        await scene.deliver_all()
        await scene.write(await scene.claim_task(kids[1]), scene.failure())
        gone = await scene.running()
        orphan, free = await scene.child(gone, "orphan"), await scene.child(gone, "free", detached=True)
        await scene.write(gone, scene.success())

        made: dict[str, Any] = {
            "asker": asker,
            "listener": listener,
            "marked": marked,
            "over": over,
            "waiter": waiter,
            "parent": parent,
            "kid": kids[0],
            "late-kid": kids[1],
            "young-kid": kids[2],
            "gone": gone,
            "orphan": orphan,
            "free": free,
        }
        tasks = {fate: one.task for fate, one in made.items()}
        dump = copy.deepcopy(await scene.store.dump())
        yield Exhibit(
            dump=dump,
            tasks=tasks,
            accepted=[(scene.tenant, task) for task in tasks.values()],
            calls=[Call(key=f"{asker.task}:{paid.key}", effect_id="e1")],
            earlier=copy.deepcopy(dump),
            tools=["pay"],
            keys={
                "paid": paid.key,
                "voted": voted.key,
                "denied": denied.key,
                "asked": asked.key,
                "answered": answered.key,
                "sent": sent,
                "undone": undone.key,
            },
        )


BROKEN: Broken = []
breaks = into(BROKEN)
SOUND: Sound = []
spares = beside(SOUND)


def _question(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.dump["approvals"] if row["key"] == it.keys[key]]
    return row


def _operation(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.dump["operations"] if row["key"] == it.keys[key]]
    return row


def _vote(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.dump["votes"] if row["approval"] == _question(it, key)["id"]]
    return row


def _event(it: Exhibit, fate: str, kind: str) -> dict[str, Any]:
    [row] = [row for row in it.rows("events", fate) if row["kind"] == kind]
    return row


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


@breaks("a_decision_authorises_one_effect", "was sent as other, and what was decided is fingerprint")
def _send_something_else(it: Exhibit) -> None:
    _operation(it, "paid")["decision"] = "other"


@breaks("a_decision_authorises_one_effect", "2 decisions were used for 1 attempts")
def _use_two_for_one(it: Exhibit) -> None:
    row = _question(it, "paid")
    it.dump["approvals"].append({**row, "number": 2, "id": row["id"][:-1] + "2"})


@breaks("a_decision_authorises_one_effect", "has 2 effects outside under 1 decisions")
def _do_it_twice(it: Exhibit) -> None:
    it.calls.append(Call(key=it.calls[0].key, effect_id="e2"))


@breaks("a_decision_authorises_one_effect", "was used after the last intent")
def _use_it_afterwards(it: Exhibit) -> None:
    _question(it, "paid")["used_at"] += 1


@breaks("a_decision_authorises_one_effect", "was used before it was decided")
def _use_it_before(it: Exhibit) -> None:
    _question(it, "paid")["decided_at"] += 2 * SECOND


@breaks("a_decision_authorises_one_effect", "its used_at is not before its time was over")
def _use_it_late(it: Exhibit) -> None:
    row = _question(it, "paid")
    row["expires_at"] = row["used_at"]


@breaks("a_decision_authorises_one_effect", "its decided_at is not before its time was over")
def _decide_late(it: Exhibit) -> None:
    row = _question(it, "denied")
    row["expires_at"] = row["decided_at"]


@breaks("a_decision_authorises_one_effect", "is approved and was used at")
def _use_what_is_not_used(it: Exhibit) -> None:
    _question(it, "paid")["state"] = "approved"


@breaks("a_decision_authorises_one_effect", "is used by nobody")
def _use_a_decision_of_nobody(it: Exhibit) -> None:
    _question(it, "paid")["decided_by"] = None


@breaks("a_decision_authorises_one_effect", "is rejected by nobody")
def _decide_at_no_time(it: Exhibit) -> None:
    _question(it, "denied")["decided_at"] = None


@breaks("a_decision_authorises_one_effect", "is rejected by nobody")
def _decide_by_nobody(it: Exhibit) -> None:
    _question(it, "denied")["decided_by"] = None


@breaks("a_decision_authorises_one_effect", "is pending and was decided at 5")
def _decide_what_is_pending(it: Exhibit) -> None:
    _question(it, "voted")["decided_at"] = 5


@breaks("a_decision_authorises_one_effect", "was sent after question 1 was rejected")
def _send_what_was_rejected(it: Exhibit) -> None:
    row = _operation(it, "denied")
    at = _question(it, "denied")["decided_at"] + 1
    row.update(attempt=1, turn=1, intent_at=at, first_intent_at=at, state="running")


@breaks("a_decision_authorises_one_effect", "is spent and pending")
def _spend_what_is_pending(it: Exhibit) -> None:
    _question(it, "voted")["spent"] = True


@breaks("a_decision_authorises_one_effect", "has the id another")
def _call_it_otherwise(it: Exhibit) -> None:
    _question(it, "denied")["id"] = "another"


@breaks("a_decision_authorises_one_effect", "is not in the ledger")
def _ask_about_nothing(it: Exhibit) -> None:
    it.dump["operations"].remove(_operation(it, "denied"))


@breaks("a_decision_authorises_one_effect", "1 decisions were used for 0 attempts")
def _use_it_for_nothing(it: Exhibit) -> None:
    _operation(it, "paid").update(attempt=0, turn=0, intent_at=None, first_intent_at=None)


@breaks("a_decision_authorises_one_effect", "is approved by nobody")
def _approve_by_nobody(it: Exhibit) -> None:
    _question(it, "answered")["decided_by"] = None


@breaks("a_decision_authorises_one_effect", "is used by nobody")
def _use_what_was_never_decided(it: Exhibit) -> None:
    _question(it, "paid")["decided_at"] = None


def _ask_again(it: Exhibit, *more: dict[str, Any]) -> None:
    """Have people asked about the paid call again, after its first question."""
    row = _question(it, "paid")
    it.dump["approvals"] += [
        {**row, "number": number, "id": f"{row['id'][:-1]}{number}", **changes}
        for number, changes in enumerate(more, 2)
    ]


def _send_again(it: Exhibit) -> int:
    """Have the paid call sent once more, some time later; answer when."""
    operation = _operation(it, "paid")
    at: int = operation["intent_at"] + SECOND
    operation.update(attempt=2, turn=9, intent_at=at)
    return at


@breaks("a_decision_authorises_one_effect", "has 3 effects outside under 2 decisions")
def _do_it_three_times_under_two(it: Exhibit) -> None:
    _ask_again(it, {"used_at": _send_again(it)})
    it.calls += [Call(key=it.calls[0].key, effect_id=effect) for effect in ("e2", "e3")]


@spares("a_decision_authorises_one_effect")
def _agree_to_each_of_two(it: Exhibit) -> None:
    """The first was another call's words, and somebody has said no in between."""
    at, first = _send_again(it), _question(it, "paid")
    refusal = {"state": "rejected", "used_at": None, "spent": False, "decided_at": at - 2}
    _ask_again(it, refusal, {"used_at": at})
    first["fingerprint"] = "as it was"


@spares("a_decision_authorises_one_effect")
def _ask_only_the_second_time(it: Exhibit) -> None:
    _question(it, "paid")["used_at"] = _send_again(it)
    it.calls.append(Call(key=it.calls[0].key, effect_id="e2"))


@spares("a_decision_authorises_one_effect")
def _reject_after_it_was_sent(it: Exhibit) -> None:
    at = _question(it, "denied")["decided_at"]
    _operation(it, "denied").update(attempt=1, turn=1, intent_at=at, first_intent_at=at, state="running")


@spares("a_decision_authorises_one_effect")
def _ask_without_an_end(it: Exhibit) -> None:
    for key in ("paid", "denied"):
        _question(it, key)["expires_at"] = None


def _send_undecided(it: Exhibit, key: str, later: int) -> None:
    """Have a call sent that people are asked about. later: than they were asked."""
    at = _question(it, key)["created_at"] + later
    _operation(it, key).update(attempt=1, turn=1, intent_at=at, first_intent_at=at, state="running")


@breaks("a_decision_authorises_one_effect", "was sent while question 1 was open")
def _send_what_is_pending(it: Exhibit) -> None:
    _send_undecided(it, "voted", 1)


@breaks("a_decision_authorises_one_effect", "was sent while question 1 was open")
def _send_what_is_agreed_to_without_using_it(it: Exhibit) -> None:
    _question(it, "voted")["state"] = "approved"
    _send_undecided(it, "voted", 1)


@spares("a_decision_authorises_one_effect")
def _ask_about_what_was_sent(it: Exhibit) -> None:
    _send_undecided(it, "voted", 0)


@breaks("decisions_are_their_voters", "counts 1 votes, and 0 people agreed")
def _count_a_refusal(it: Exhibit) -> None:
    _question(it, "denied")["votes"] = 1


@breaks("decisions_are_their_voters", "is approved by 1 of 2")
def _approve_with_too_few(it: Exhibit) -> None:
    _question(it, "voted")["state"] = "approved"


@spares("decisions_are_their_voters")
def _agree_with_oneself_where_one_may(it: Exhibit) -> None:
    _question(it, "paid")["requester"] = _vote(it, "paid")["who"]


@breaks("decisions_are_their_voters", "is used by 1 of 2")
def _agree_with_too_few(it: Exhibit) -> None:
    _question(it, "paid")["quorum"] = 2


@breaks("decisions_are_their_voters", "is used by 0 of 1")
def _agree_to_something_else(it: Exhibit) -> None:
    _vote(it, "paid")["fingerprint"] = "another"


@breaks("decisions_are_their_voters", "counts 2 votes, and 1 people agreed")
def _count_a_person_twice(it: Exhibit) -> None:
    it.dump["votes"].append({**_vote(it, "voted"), "number": 2})
    _question(it, "voted")["votes"] = 2


@breaks("decisions_are_their_voters", "is pending, and somebody did reject it")
def _reject_without_effect(it: Exhibit) -> None:
    _vote(it, "voted")["verdict"] = "reject"


@breaks("decisions_are_their_voters", "is rejected, and somebody did not reject it")
def _reject_without_anybody(it: Exhibit) -> None:
    it.dump["votes"].remove(_vote(it, "denied"))


@breaks("decisions_are_their_voters", "was decided by whoever asked")
def _agree_with_oneself(it: Exhibit) -> None:
    _vote(it, "voted")["who"] = "person:rob"


@breaks("decisions_are_their_voters", "which nobody asked")
def _vote_on_nothing(it: Exhibit) -> None:
    _vote(it, "voted")["approval"] = "none"


@breaks("decisions_are_their_voters", "are [7]")
def _lose_a_vote(it: Exhibit) -> None:
    _vote(it, "voted")["number"] = 7


@breaks("questions_end_with_their_tasks", "is pending in a task that has ended")
def _ask_for_a_dead_task(it: Exhibit) -> None:
    _question(it, "asked")["state"] = "pending"


@breaks("questions_end_with_their_tasks", "is approved in a task that has ended")
def _keep_a_decision_of_a_dead_task(it: Exhibit) -> None:
    _question(it, "answered")["subject"] = "call"


@breaks("questions_end_with_their_tasks", "is pending in a task that has ended")
def _leave_a_question_of_a_dead_task_open(it: Exhibit) -> None:
    _question(it, "answered")["state"] = "pending"


@breaks("questions_end_with_their_tasks", "2 questions about it are open")
def _ask_twice(it: Exhibit) -> None:
    row = _question(it, "voted")
    it.dump["approvals"].append({**row, "number": 2, "id": row["id"][:-1] + "2"})


@breaks("results_never_change", "question 1 was rejected, is approved")
def _turn_a_rejection(it: Exhibit) -> None:
    _question(it, "denied")["state"] = "approved"


@breaks("results_never_change", "question 1 is gone")
def _forget_a_question(it: Exhibit) -> None:
    it.dump["approvals"].remove(_question(it, "voted"))


@breaks("results_never_change", "question 1 was spent, and is not")
def _restore_a_decision(it: Exhibit) -> None:
    assert it.earlier is not None
    for row in it.earlier["approvals"]:
        row["spent"] = True


@spares("results_never_change")
def _leave_a_decision_spent(it: Exhibit) -> None:
    _question(it, "denied")["spent"] = True
    it.earlier = copy.deepcopy(it.dump)


@breaks("results_never_change", "a row of votes changed")
def _rewrite_a_vote(it: Exhibit) -> None:
    _vote(it, "voted")["reason"] = "another"


# ── cancels ──────────────────────────────────────────────────────────────────────────────────────


@breaks("cancels_are_final", "after the cancel")
def _begin_after_the_cancel(it: Exhibit) -> None:
    mark = _event(it, "marked", "task.cancel_requested")
    begun = _event(it, "marked", "operation.started")
    begun["data"] = json.dumps({"operation": it.keys["sent"]})
    begun["number"], mark["number"] = mark["number"], begun["number"]


@spares("cancels_are_final")
def _wait_for_a_signal_after_the_cancel(it: Exhibit) -> None:
    _begin_after_the_cancel(it)
    _operation(it, "sent")["kind"] = "signal"


@spares("cancels_are_final")
def _wait_for_a_child_after_the_cancel(it: Exhibit) -> None:
    _begin_after_the_cancel(it)
    _operation(it, "sent")["kind"] = "child"


@breaks("cancels_are_final", "its intent comes after the cancel")
def _commit_after_the_cancel(it: Exhibit) -> None:
    _operation(it, "sent")["intent_at"] += 2 * SECOND


@breaks("cancels_are_final", "its stream and its head disagree")
def _lose_a_mark(it: Exhibit) -> None:
    it.rows("tasks", "marked")[0]["cancelling"] = False


@breaks("cancels_are_final", "its stream and its head disagree")
def _mark_without_a_word(it: Exhibit) -> None:
    it.rows("tasks", "asker")[0]["cancelling"] = True


@breaks("cancels_are_final", "has task.succeeded")
def _succeed_after_the_cancel(it: Exhibit) -> None:
    _event(it, "over", "task.cancelled")["kind"] = "task.succeeded"


@breaks("cancels_are_final", "a second time")
def _mark_twice(it: Exhibit) -> None:
    _event(it, "marked", "operation.started")["kind"] = "task.cancel_requested"


@breaks("cancels_are_final", "does not say by whom")
def _cancel_by_nobody(it: Exhibit) -> None:
    it.dump["audit"] = [row for row in it.dump["audit"] if row["subject"] != it.tasks["marked"]]


@breaks("cancels_are_final", "does not say by whom")
def _cancel_by_somebody_who_did_something_else(it: Exhibit) -> None:
    for row in it.dump["audit"]:
        row["what"] = "retry"


@breaks("cancels_are_final", "its intent comes after the cancel")
def _commit_in_a_cancelled_task(it: Exhibit) -> None:
    at = _event(it, "over", "task.cancel_requested")["at"]
    it.rows("operations", "over")[0]["intent_at"] = at + 1


@spares("cancels_are_final")
def _commit_at_the_very_moment(it: Exhibit) -> None:
    at = _event(it, "over", "task.cancel_requested")["at"]
    it.rows("operations", "over")[0]["intent_at"] = at


# ── inboxes ──────────────────────────────────────────────────────────────────────────────────────


@breaks("inboxes_hold_facts", "2 things lie under the number 2")
def _number_two_alike(it: Exhibit) -> None:
    it.rows("inbox", "listener")[2]["number"] = 2


@breaks("inboxes_hold_facts", "something lies under 3, and it knows 2 facts")
def _forget_to_count(it: Exhibit) -> None:
    it.rows("tasks", "listener")[0]["facts"] = 2


@breaks("inboxes_hold_facts", "2 signals go have the key 'k1'")
def _take_a_repeat(it: Exhibit) -> None:
    it.rows("inbox", "listener")[2]["key"] = "k1"


@breaks("inboxes_hold_facts", "was taken by nobody, which is not there")
def _take_for_nobody(it: Exhibit) -> None:
    it.rows("inbox", "listener")[1]["taken_by"] = "nobody"


@breaks("inboxes_hold_facts", "signal 3 is in one of the stream and the inbox")
def _lose_a_signal(it: Exhibit) -> None:
    it.dump["inbox"].remove(it.rows("inbox", "listener")[2])


@breaks("inboxes_hold_facts", "signal 2 is in one of the stream and the inbox")
def _hide_a_signal(it: Exhibit) -> None:
    [row] = [
        row
        for row in it.rows("events", "listener")
        if row["kind"] == "signal.received" and json.loads(row["data"])["number"] == 2
    ]
    row["kind"] = "progress"


@breaks("inboxes_hold_facts", "is told of 9 facts")
def _tell_of_too_much(it: Exhibit) -> None:
    it.rows("leases", "asker")[0]["news"] = 9


@breaks("results_never_change", "what lay under 3 is gone")
def _throw_a_signal_away(it: Exhibit) -> None:
    it.dump["inbox"].remove(it.rows("inbox", "listener")[2])


@breaks("results_never_change", "what lay under 3 changed")
def _rewrite_a_signal(it: Exhibit) -> None:
    it.rows("inbox", "listener")[2]["data"] = "{}"


@breaks("results_never_change", "1 was taken by first, is by None")
def _put_a_signal_back(it: Exhibit) -> None:
    it.rows("inbox", "listener")[0]["taken_by"] = None


# ── waits ────────────────────────────────────────────────────────────────────────────────────────


@breaks("waits_are_recorded", "is waiting(signal) and has no such wait on record")
def _wait_for_no_signal(it: Exhibit) -> None:
    for row in it.rows("operations", "listener"):
        row["kind"] = "child"


@breaks("waits_are_recorded", "is waiting(child) and has no such wait on record")
def _wait_for_no_child(it: Exhibit) -> None:
    it.rows("tasks", "listener")[0]["reason"] = "child"


@breaks("waits_are_recorded", "waits for a decision, and nothing is asked")
def _wait_for_no_decision(it: Exhibit) -> None:
    it.rows("approvals", "waiter")[0]["state"] = "approved"


@breaks("waits_are_recorded", "a wait of its has a time, and nothing wakes it then")
def _sleep_on(it: Exhibit) -> None:
    it.dump["timers"].remove(it.rows("timers", "listener")[0])


@breaks("waits_are_recorded", "a wait of its has a time, and nothing wakes it then")
def _wake_too_late(it: Exhibit) -> None:
    it.rows("timers", "listener")[0]["due_at"] += 1


@breaks("waits_are_recorded", "a wait of its has a time, and nothing wakes it then")
def _end_it_then(it: Exhibit) -> None:
    it.rows("timers", "listener")[0]["kind"] = "deadline"


@breaks("waits_are_recorded", "a wait of its has a time, and nothing wakes it then")
def _wake_for_the_later_of_two_waits(it: Exhibit) -> None:
    row = next(row for row in it.rows("operations", "listener") if row["due_at"] is not None)
    it.dump["operations"].append({**row, "key": "sooner", "due_at": row["due_at"] - 1})


@spares("waits_are_recorded")
def _look_again_when_one_said(it: Exhibit) -> None:
    it.rows("tasks", "listener")[0]["reason"] = "operator"
    it.rows("timers", "listener")[0]["due_at"] += HOUR


@breaks("waits_are_recorded", "has no such wait on record")
def _wait_for_what_has_come(it: Exhibit) -> None:
    for row in it.rows("operations", "listener"):
        row["state"] = "succeeded"


@breaks("waits_are_recorded", "a wait of its has a time, and nothing wakes it then")
def _sleep_on_for_a_child(it: Exhibit) -> None:
    for row in it.rows("operations", "listener"):
        row["kind"] = "child"
    it.dump["timers"].remove(it.rows("timers", "listener")[0])


@spares("waits_are_recorded")
def _wait_for_two_things(it: Exhibit) -> None:
    row = next(row for row in it.rows("operations", "listener") if row["state"] == "running")
    it.dump["operations"].append({**row, "key": "kid", "kind": "child", "due_at": None})


# ── families ─────────────────────────────────────────────────────────────────────────────────────


@breaks("families_hear_of_each_other", "has ended, and its parent hears of it 0 times")
def _lose_a_childs_end(it: Exhibit) -> None:
    it.dump["inbox"].remove(it.rows("inbox", "parent")[0])


@breaks("families_hear_of_each_other", "has ended, and its parent hears of it 0 times")
def _lose_a_childs_end_on_the_way(it: Exhibit) -> None:
    it.dump["posts"] = [row for row in it.dump["posts"] if row["kind"] != "child"]


@breaks("families_hear_of_each_other", "has ended, and its parent hears of it 2 times")
def _hear_of_it_twice(it: Exhibit) -> None:
    it.dump["inbox"].append({**it.rows("inbox", "parent")[0], "number": 9})


@breaks("families_hear_of_each_other", "is queued, and its parent hears of its end")
def _hear_of_it_early(it: Exhibit) -> None:
    it.dump["inbox"].append({**it.rows("inbox", "parent")[0], "number": 9, "name": "kid-2"})


def _record(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.rows("operations", "parent") if row["key"] == key]
    return row


@breaks("ends_are_told_as_they_are", " ended in no way")
def _have_an_end_on_record_that_is_none(it: Exhibit) -> None:
    _record(it, "kid-2")["state"] = "failed"


@breaks("ends_are_told_as_they_are", " ended succeeded")
def _have_another_childs_result_on_record(it: Exhibit) -> None:
    _record(it, "told-well")["result"] = '{"of":"another"}'


@breaks("ends_are_told_as_they_are", "as failed that child")
def _have_a_success_on_record_as_a_failure(it: Exhibit) -> None:
    _record(it, "told-well")["state"] = "failed"


@breaks("ends_are_told_as_they_are", " ended failed")
def _have_a_failure_on_record_as_a_success(it: Exhibit) -> None:
    _record(it, "told-badly")["state"] = "succeeded"


@breaks("families_hear_of_each_other", "hears of stranger, which is no child of its")
def _hear_of_a_stranger(it: Exhibit) -> None:
    it.dump["inbox"].append({**it.rows("inbox", "parent")[0], "number": 9, "name": "stranger"})


@breaks("families_hear_of_each_other", "goes on although its parent has ended")
def _leave_an_orphan(it: Exhibit) -> None:
    it.dump["posts"] = [row for row in it.dump["posts"] if row["kind"] != "cancel"]


@breaks("families_hear_of_each_other", "goes on although its parent has ended")
def _tell_an_orphan_something_else(it: Exhibit) -> None:
    for row in it.dump["posts"]:
        if row["kind"] == "cancel":
            row["kind"] = "other"


@spares("families_hear_of_each_other")
def _tell_an_orphan(it: Exhibit) -> None:
    it.dump["posts"] = [row for row in it.dump["posts"] if row["kind"] != "cancel"]
    it.rows("tasks", "orphan")[0]["cancelling"] = True


@breaks("families_hear_of_each_other", "has 5 children and counts 2")
def _count_too_few(it: Exhibit) -> None:
    it.rows("tasks", "parent")[0]["children"] = 2


@breaks("families_hear_of_each_other", "is not there")
def _lose_a_parent(it: Exhibit) -> None:
    it.rows("inputs", "kid")[0]["parent"] = "task_none"


@breaks("families_hear_of_each_other", "is not on the record of its parent")
def _lose_the_record_of_a_child(it: Exhibit) -> None:
    it.dump["operations"].remove(it.rows("operations", "gone")[0])


async def test_a_whole_dump_has_no_violations(exhibit: Exhibit) -> None:
    assert exhibit.check() == []
    turn_round(exhibit)
    assert exhibit.check() == []


async def test_no_checker_falls_over_a_table_that_is_lost(exhibit: Exhibit) -> None:
    empty_each(exhibit)


async def test_what_was_refused_may_be_sent_when_a_person_has_settled_it_since(exhibit: Exhibit) -> None:
    _send_what_was_rejected(exhibit)
    _question(exhibit, "denied")["spent"] = True
    assert "a_decision_authorises_one_effect" not in {found.promise for found in exhibit.check()}


async def test_a_child_that_is_tried_again_is_heard_of_once_a_round() -> None:
    store = new_store(MEMORY)
    await store.migrate()
    await store.open()
    try:
        scene = Scene(store=store, now=(await store.health()).now)
        parent = await scene.running()
        kid = await scene.child(parent, "kid")
        for ended in (1, 2):
            await scene.write(await scene.claim_task(kid), scene.failure())
            assert check_all(await store.dump()) == []
            await scene.deliver_all()
            if ended == 2:
                exhibit = Exhibit(dump=await store.dump(), tasks={}, accepted=[], calls=[])
                turn_round(exhibit)
                assert exhibit.check() == []
                await scene.write(parent, scene.success())
            again = Retry(tenant=kid.tenant, task=kid.task, by="person:ann", reason="again")
            assert [one.kind for one in await store.retry([again], now=scene.now)] == ["retried"]
            assert check_all(await store.dump()) == []
        dump = await store.dump()
        dump["inbox"].append({**dump["inbox"][-1], "number": 9})
        found = [one.text for one in check_all(dump) if one.promise == "families_hear_of_each_other"]
        assert any("has ended 2 times, and its parent hears of it 3 times" in text for text in found), found
    finally:
        await store.close()


test_a_broken_dump_is_seen = shown(BROKEN)
test_what_breaks_nothing_is_spared = unseen(SOUND)
