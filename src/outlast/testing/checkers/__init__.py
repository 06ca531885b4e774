"""What must be true of a store at any moment, as functions over a dump of it.

Each checker looks at one promise and answers the violations it sees, named by tenant, task and operation.
``check_all`` asks every one. They read ``await store.dump()`` and, where the outside is the judge, the log of
the Recorder; they share no code with the stores, so that a fault there cannot hide itself here.

What is not here yet comes with its part: limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from outlast.testing.checkers.decisions import (
    a_decision_authorises_one_effect,
    decisions_are_their_voters,
    questions_end_with_their_tasks,
)
from outlast.testing.checkers.facts import (
    cancels_are_final,
    ends_are_told_as_they_are,
    families_hear_of_each_other,
    inboxes_hold_facts,
    waits_are_recorded,
)
from outlast.testing.checkers.operations import (
    business_keys_follow_their_operations,
    calls_succeed_once,
    effects_are_accounted_for,
    intent_before_call_before_outcome,
    settlements_are_counted,
    unknowns_are_queued,
    words_are_heard,
)
from outlast.testing.checkers.rows import (
    events_are_dense,
    every_row_has_one_tenant,
    leases_have_living_sessions,
    only_the_current_epoch_writes,
    results_never_change,
)
from outlast.testing.checkers.seen import Call, Checker, Dump, Evidence, Violation, calls_of, name_of
from outlast.testing.checkers.tasks import (
    accepted_is_stored,
    announced_together,
    every_live_task_goes_on,
    final_states_stand,
    one_task_per_key,
    quiet_is_quiet,
    schedules_account_for_their_tasks,
)
from outlast.testing.checkers.undos import undos_are_decided_first, undos_go_backwards

__all__ = ["CHECKERS", "Call", "Dump", "Evidence", "Violation", "calls_of", "check_all"]

CHECKERS: dict[str, Checker] = {
    checker.__name__: checker
    for checker in (
        accepted_is_stored,
        announced_together,
        one_task_per_key,
        only_the_current_epoch_writes,
        final_states_stand,
        results_never_change,
        intent_before_call_before_outcome,
        effects_are_accounted_for,
        unknowns_are_queued,
        words_are_heard,
        calls_succeed_once,
        settlements_are_counted,
        schedules_account_for_their_tasks,
        business_keys_follow_their_operations,
        events_are_dense,
        leases_have_living_sessions,
        every_row_has_one_tenant,
        every_live_task_goes_on,
        waits_are_recorded,
        a_decision_authorises_one_effect,
        decisions_are_their_voters,
        questions_end_with_their_tasks,
        cancels_are_final,
        inboxes_hold_facts,
        families_hear_of_each_other,
        ends_are_told_as_they_are,
        undos_go_backwards,
        undos_are_decided_first,
        quiet_is_quiet,
    )
}
"""Every checker by name."""


def check_all(
    dump: Dump,
    *,
    accepted: Iterable[Any] | None = None,
    recorder: Iterable[Any] | None = None,
    tools: Collection[str] | None = None,
    published: Iterable[tuple[str, str, str]] | None = None,
    earlier: Dump | None = None,
    quiet: bool = False,
) -> list[Violation]:
    """Ask every checker; answer every violation, none for a store that keeps its promises.

    accepted: what was acknowledged, as (tenant, task) or anything that has both (a Submission, a TaskRef).
    recorder: the other side's log, as ``calls_of`` takes it; see ``Evidence`` for the rest.
    """
    seen = Evidence(
        dump=dump,
        accepted=None if accepted is None else frozenset(name_of(one) for one in accepted),
        calls=None if recorder is None else tuple(calls_of(recorder)),
        tools=tools,
        published=None if published is None else frozenset(published),
        earlier=earlier,
        quiet=quiet,
    )
    return [
        Violation(promise=name, text=text) for name, checker in CHECKERS.items() for text in checker(seen)
    ]
