"""Deliberate faults in what not every world has: relays, schedules, adoption, rules, switches and
budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.defects.declaring import Patch, defect, nothing
from tests.defects.worlds import KEPT, MOVED, RELAYED, RULED, SAVED, SWITCHED

from outlast import schedules as people
from outlast.core import schedule
from outlast.core.approval import Allow, Ask, Deny
from outlast.engine import approvals, effects, rehearsal
from outlast.engine.housekeeping import schedules as firing
from outlast.engine.spending import Spending
from outlast.store.sqlite import approving, changing, rules, scheduling, switches
from outlast.testing.simulation import Faults

SECOND_US = 1_000_000


def _in_world(
    faults: Faults, says: str, seen: str, *, tasks: int = 1, agents: tuple[str, ...] = ("refund",)
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Declare a fault of an ingredient's world. seen: a part of what its own judge has to say."""
    return defect(says, seen=seen, quick=True, workers=2, tasks=tasks, agents=agents, faults=faults)


# ── relays ───────────────────────────────────────────────────────────────────────────────────────


def _relayed(says: str, seen: str, **faults: Any) -> Callable[[Callable[[Patch], None]], Any]:
    world = dataclasses.replace(RELAYED, **faults)
    return _in_world(world, says, seen, tasks=2, agents=("refund", "flaky"))


@_relayed("only the first message of a task is ever written", "were due", broker=0.0)
def message_never_written(patch: Patch) -> None:
    patch.sql("announce", "values (", "select ")
    patch.sql("announce", ":created_at)", ":created_at where :number = 1")


@_relayed("a message goes with another one of its task that was confirmed", "were due")
def message_goes_with_another(patch: Patch) -> None:
    patch.sql("drop_message", "and number = :number", "and :number = :number")


@_relayed("messages are taken in another order than that of their task", "came as", broker=0.0)
def messages_out_of_order(patch: Patch) -> None:
    patch.sql("take_messages", "order by rowid", "order by number desc")


@_relayed("a message passes a parked one of its task", "were due")
def parked_message_passed(patch: Patch) -> None:
    patch.sql("take_messages", "and earlier.parked is not null", "and earlier.number < 0")


@_relayed("a message tells another event than its own", "which is not there")
def message_tells_another_thing(patch: Patch) -> None:
    patch.sql("take_messages", "number, topic", "number + 1, topic")


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


@_in_world(KEPT, "a schedule that has fired stays where it was", "was fired for")
def schedule_stays_where_it_is(patch: Patch) -> None:
    patch.sql("move_schedule", "set next_at = :next_at", "set next_at = coalesce(:expected, :next_at)")


@_in_world(KEPT, "a schedule fires while it is paused", "was fired for")
def schedule_fires_while_paused(patch: Patch) -> None:
    patch.sql("schedules_due", "paused is null and", "")
    read = scheduling.read

    def blind(*asked: Any) -> Any:
        row = read(*asked)
        return None if row is None else dataclasses.replace(row, paused=None)

    fire = scheduling._fire

    def unlooked(*asked: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(scheduling, "read", blind)
            return fire(*asked)

    patch.set(scheduling, "_fire", unlooked)


@_in_world(KEPT, "a schedule fires a second early", "fired early")
def schedule_fires_early(patch: Patch) -> None:
    fire, due = scheduling._fire, scheduling.due
    patch.set(scheduling, "_fire", lambda tx, one, at: fire(tx, one, at + SECOND_US))
    patch.set(scheduling, "peek", nothing)
    patch.set(scheduling, "due", lambda tx, request, now: due(tx, request, tx.now(now) + SECOND_US))


@_in_world(KEPT, "of several instants that are due the last alone fires", "passed over")
def schedule_leaves_out_what_is_on_time(patch: Patch) -> None:
    decide = schedule.decide

    def hasty(*asked: Any) -> schedule.Due:
        due = decide(*asked)
        return dataclasses.replace(due, fires=due.fires[-1:])

    patch.set(firing.schedule, "decide", hasty)


@_in_world(KEPT, "missed firings are made up for where they are to be skipped", "against its word")
def schedule_makes_up_for_what_is_to_be_skipped(patch: Patch) -> None:
    decide = schedule.decide
    patch.set(firing.schedule, "decide", lambda timing, _, *asked: decide(timing, "all", *asked))


@_in_world(KEPT, "a schedule goes on too late when its pause ends", "went on without")
def schedule_goes_on_too_late(patch: Patch) -> None:
    going_on = schedule.going_on

    def late(timing: Any, first: int | None, now: int) -> int | None:
        return going_on(timing, first, now + 60 * SECOND_US)

    patch.set(people.schedule, "going_on", late)


@_in_world(KEPT, "a schedule that a dead worker has taken is nobody's for an hour", "has not fired for")
def schedule_taken_is_forgotten(patch: Patch) -> None:
    patch.set(firing, "LEASE_US", 3600 * SECOND_US)


@_in_world(KEPT, "a schedule fires although its last task lives", "while its last task lives")
def schedule_fires_beside_its_last_task(patch: Patch) -> None:
    patch.sql("is_live", "'queued', 'running', 'waiting'", "'nothing'")


@_in_world(KEPT, "a schedule waits for a task that has ended", "for nothing")
def schedule_waits_for_nothing(patch: Patch) -> None:
    patch.sql("is_live", "in ('queued', 'running', 'waiting')", "<> 'nothing'")


@_in_world(KEPT, "how often a schedule has fired is not counted", "the book")
def schedule_firings_not_counted(patch: Patch) -> None:
    patch.sql("move_schedule", "fired = fired + :fired", "fired = fired + min(:fired, 0)")


# ── adoption ─────────────────────────────────────────────────────────────────────────────────────


@_in_world(MOVED, "a task is adopted whatever has come since it was looked at", "as nobody had seen it")
def adopted_whatever_was_seen(patch: Patch) -> None:
    adopt = changing._adopt_one

    def blind(tx: Any, one: Any, at: int) -> Any:
        head = changing.Head.read(tx, one.tenant, one.task, at)
        lane = tx.row("read_lane", (one.tenant, one.task))
        if head is not None and lane is not None:
            one = dataclasses.replace(
                one, seen_version=lane[2], seen_epoch=head.epoch, seen_event=head.last_event
            )
        return adopt(tx, one, at)

    patch.set(changing, "_adopt_one", blind)


class _Unlike(str):
    """A state that is not told from another."""

    def __eq__(self, other: object) -> bool:
        return other != "running" and str.__eq__(self, other)

    __hash__ = str.__hash__


@_in_world(MOVED, "a task is adopted while it runs", "while it was running")
def adopted_while_it_runs(patch: Patch) -> None:
    adopted_whatever_was_seen(patch)

    class Head(changing.Head):
        @classmethod
        def read(cls, *asked: Any) -> Any:
            head = super().read(*asked)
            if head is not None:
                head.state = _Unlike(head.state)
            return head

    patch.set(changing, "Head", Head)


@_in_world(MOVED, "a task is adopted by code that would do something once more", "once more")
def adopted_though_it_acts_once_more(patch: Patch) -> None:
    patch.set(rehearsal, "_may_have_acted", lambda _: False)


@_in_world(MOVED, "a task is adopted by code that its journal does not fit", ", which asks ")
def adopted_though_it_differs(patch: Patch) -> None:
    patch.set(rehearsal.Rehearsed, "fits", True)
    # A call that differs is not asked for either: that alone would keep the task from being moved.
    adopted_though_it_acts_once_more(patch)


@_in_world(MOVED, "a task is moved to another version than was asked for", "is not on record")
def adopted_by_another_version(patch: Patch) -> None:
    adopt = changing._adopt_one
    patch.set(
        changing, "_adopt_one", lambda tx, one, at: adopt(tx, dataclasses.replace(one, version="2"), at)
    )


@_in_world(MOVED, "code that has changed is given the answer to another question", "its code asked for")
def answer_to_another_question(patch: Patch) -> None:
    known = effects.known

    def careless(run: Any, key: str, kind: Any, name: str, request: str, *more: Any, **options: Any) -> Any:
        row = run.known.row(key)
        return known(run, key, kind, name, request if row is None else row.request, *more, **options)

    patch.set(effects, "known", careless)


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


@_in_world(RULED, "rules that changed since the worker read them are not looked at", "a rule denies it")
def rules_that_changed_meanwhile(patch: Patch) -> None:
    patch.set(rules, "agrees", lambda *_: True)


@_in_world(RULED, "a tool without a policy has no rules either", "a rule denies it")
def rules_of_tools_without_policy(patch: Patch) -> None:
    patch.set(rules, "any_rules", lambda _: False)


@_in_world(RULED, "a rule that cannot be read is passed over", "a rule stands that cannot be read")
def rule_that_cannot_be_read(patch: Patch) -> None:
    read = approvals._rules

    def careless(given: Any) -> Any:
        readable = tuple(rule for rule in given.rules if "about" not in rule.bounds)
        return read(dataclasses.replace(given, rules=readable))

    patch.set(approvals, "_rules", careless)


@_in_world(RULED, "policy that cannot be asked allows", "policy had not answered")
def policy_that_cannot_be_asked(patch: Patch) -> None:
    ask = approvals._ask_policy

    async def trusting(*given: Any) -> Any:
        try:
            return await ask(*given)
        except approvals.NoPolicy:
            return Allow()

    patch.set(approvals, "_ask_policy", trusting)


@_in_world(RULED, "people are asked about what policy denies", "policy denies it")
def what_policy_denies(patch: Patch) -> None:
    ask = approvals._ask_policy

    async def mild(*given: Any) -> Any:
        answer = await ask(*given)
        return Ask("is it so bad?", expires=5) if isinstance(answer, Deny) else answer

    patch.set(approvals, "_ask_policy", mild)


@_in_world(RULED, "a rule that allows goes before one that denies", "a rule denies it")
def rule_that_denies(patch: Patch) -> None:
    judge = approvals.judge

    def lenient(policy: Any, given: Any, *more: Any) -> Any:
        allowing = [rule for rule in given if rule.verdict == "allow"]
        found = judge(policy, allowing, *more)
        return found if found.by.startswith("rule") else judge(policy, given, *more)

    patch.set(approvals, "judge", lenient)


@_in_world(RULED, "what a person has refused is forgotten", "a person has refused it")
def what_a_person_refused(patch: Patch) -> None:
    decided = approvals._decided

    def forgetful(*given: Any) -> Any:
        said = decided(*given)
        return None if said == "rejected" else said

    patch.set(approvals, "_decided", forgetful)
    # The gate looks as well, for who has not heard of it.
    patch.set(approving, "refuses", lambda *_: False)


@_in_world(RULED, "a rule that was taken back stands", "were taken back")
def rule_taken_back_stands(patch: Patch) -> None:
    patch.sql("withdraw_rule", "withdrawn_at = :now", "withdrawn_at = nullif(:now, :now)")


# ── switches ─────────────────────────────────────────────────────────────────────────────────────


@_in_world(SWITCHED, "no intent looks at switches", "while a switch stands", tasks=2)
def switches_not_looked_at(patch: Patch) -> None:
    patch.set(switches, "standing", nothing)


@_in_world(SWITCHED, "a switch for everything holds nothing back", "while a switch stands", tasks=2)
def switch_for_everything_ignored(patch: Patch) -> None:
    standing = switches.standing

    def narrow(tx: Any, tenant: str, tool: str) -> Any:
        found = standing(tx, tenant, tool)
        return None if found is not None and found[1] == "all" else found

    patch.set(switches, "standing", narrow)


@_in_world(SWITCHED, "what a switch held back is forgotten", "did not come to rest", tasks=2)
def held_back_is_forgotten(patch: Patch) -> None:
    patch.set(switches, "released", lambda *_: [])


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


def _saved(says: str, seen: str = "over its budget") -> Callable[[Callable[[Patch], None]], Any]:
    return _in_world(SAVED, says, seen)


@_saved("no intent looks at the budget")
def budget_not_looked_at(patch: Patch) -> None:
    patch.set(Spending, "begin", nothing)


@_saved("what was spent is forgotten when a task is taken over")
def spent_is_forgotten(patch: Patch) -> None:
    begin = Spending.__init__
    patch.set(Spending, "__init__", lambda self, budget, depth, operations: begin(self, budget, depth, ()))


@_saved("what a call has spent is not recorded")
def spent_is_not_recorded(patch: Patch) -> None:
    patch.sql("record_outcome", "coalesce(:usage, usage)", "case when 0 then :usage else usage end")


@_saved("a child may go deeper than its parent's budget allows", "generations below it")
def depth_is_not_handed_down(patch: Patch) -> None:
    patch.set(Spending, "of_child", nothing)


@_saved("the last operation that a budget allows is held back", "was held back by operations")
def held_back_too_early(patch: Patch) -> None:
    begin = Spending.__init__

    def one_more(self: Spending, *given: Any) -> None:
        begin(self, *given)
        self._counted.add("one that was never made")

    patch.set(Spending, "__init__", one_more)
