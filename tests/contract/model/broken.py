"""Deliberate faults that change what verbs answer or keep, and what is done to find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.contract.model.machine import WEIGHTS
from tests.defects.catalogue import DEFECTS, Patch

from outlast.store.sqlite import changing, gate


@dataclass(frozen=True, slots=True)
class Broken:
    """A fault. apply: how it is put into SQLite. weights: what is done, and how often; narrow, where a fault
    shows in a corner only. seed: of a program that shows it; where it does not any more, those after it are
    tried. function, old, new: the same fault in a function of PostgreSQL."""

    apply: Callable[[Patch], None]
    weights: dict[str, int] = field(default_factory=lambda: WEIGHTS)
    seed: int = 0
    function: str = ""
    old: str = ""
    new: str = ""


def _nobody_is_held(patch: Patch) -> None:
    patch.sql(
        "hold_task",
        "values (:by_tenant, :scope, :tenant, :task)",
        "select :by_tenant, :scope, :tenant, :task where 0",
    )


def _sessions_are_taken(patch: Patch) -> None:
    patch.sql("read_holder", "tasks.state in ('queued', 'running', 'waiting')", "tasks.state = 'waiting'")


def _next_moves(patch: Patch) -> None:
    patch.sql(
        "replace_schedule", "case when timing = :timing then next_at", "case when timing = '' then next_at"
    )


def _parked_hold_nothing(patch: Patch) -> None:
    patch.sql("take_messages", "and earlier.parked is not null", "and 0")


def _taken_over_under_its_own_key(patch: Patch) -> None:
    patch.sql(
        "adopt_issued",
        "first_intent_at, deadline_at, visible_at, idempotency_key\nfrom",
        "first_intent_at, deadline_at, visible_at, null\nfrom",
    )


def _nobody_waits(patch: Patch) -> None:
    patch.set(gate, "any_waits", lambda *_: False)


def _the_last_wait_stands(patch: Patch) -> None:
    patch.sql("keep_wait", "max(until_at, excluded.until_at)", "excluded.until_at")


def _waits_stay(patch: Patch) -> None:
    patch.sql("drop_waits", "until_at <= :now", "until_at <= :now and 0")


def _keys_are_forgotten(patch: Patch) -> None:
    patch.sql("doubt_key", "business_rule is not null", "business_rule is not null and 0")


def _words_are_not_heard(patch: Patch) -> None:
    patch.sql("word_stands", "evidence.says = 'happened'", "evidence.says = 'over'")


def _losers_are_copied(patch: Patch) -> None:
    patch.sql("fork_operations", "and not lost", "")


def _whatever_was_said(patch: Patch) -> None:
    accept = changing._accept_one

    def blind(tx: Any, one: Any, at: int) -> Any:
        head = changing.Head.read(tx, one.tenant, one.task, at)
        last = head and tx.row("last_acceptance", (one.tenant, one.task, head.round))
        return accept(tx, replace(one, seen=last[0] if last else 0), at)

    patch.set(changing, "_accept_one", blind)


_FORKING = {"submit": 2, "claim": 4, "flush": 14, "fork": 5, "wait": 1, "retry": 2}
_WAITING = {"submit": 2, "claim": 4, "flush": 14, "wait": 1, "sweep": 1}
_DOUBTING = {"submit": 2, "claim": 4, "flush": 14, "settle": 3, "contradict": 4}
_JUDGING = {"submit": 2, "claim": 4, "flush": 10, "accept": 5}

BROKEN = {
    **{
        name: Broken(DEFECTS[name].apply, seed=seed)
        for name, seed in {
            "epoch_not_raised": 0,
            "lease_kept": 0,
            "stale_turn_accepted": 4,
            "person_counted_twice": 18,
            "retry_opens_no_round": 1,
            "business_key_kept": 6,
            "fork_without_issued": 0,
        }.items()
    },
    "children_go_on": Broken(
        DEFECTS["children_go_on"].apply,
        {"submit": 2, "spawn": 5, "claim": 5, "flush": 6, "cancel": 3, "deliver": 4, "renew": 1},
    ),
    "whom_a_switch_holds_is_forgotten": Broken(_nobody_is_held),
    "a_session_is_taken_from_one_that_runs": Broken(_sessions_are_taken, seed=11),
    "what_is_next_moves_though_the_times_stand": Broken(_next_moves, {"schedule": 4, "fire": 1}),
    "a_fork_goes_on_under_its_own_keys": Broken(
        DEFECTS["fork_under_own_keys"].apply,
        _FORKING,
        function="fork",
        old="coalesce(o.idempotency_key, case when o.attempt > 0 then o.task || ':' || o.key end), o.usage",
        new="null, o.usage",
    ),
    "what_is_taken_over_goes_on_under_its_own_key": Broken(
        _taken_over_under_its_own_key,
        _FORKING,
        function="take_over",
        old="i.visible_at, i.idempotency_key",
        new="i.visible_at, null",
    ),
    "nobody_waits_for_a_provider": Broken(
        _nobody_waits,
        _WAITING,
        seed=16,
        function="flush",
        old="and w.until_at > v_now",
        new="and w.until_at > v_now and false",
    ),
    "the_last_wait_stands_and_not_the_longest": Broken(_the_last_wait_stands, _WAITING, seed=26),
    "waits_that_are_over_stay": Broken(
        _waits_stay, _WAITING, function="sweep", old="o.until_at <= v_now", new="o.until_at < 0"
    ),
    "late_evidence_brings_no_key_back": Broken(
        _keys_are_forgotten,
        _DOUBTING,
        function="doubt_key",
        old="o.business_rule is not null",
        new="o.business_rule is not null and false",
    ),
    "a_call_fails_although_it_is_said_to_have_happened": Broken(
        _words_are_not_heard,
        _DOUBTING,
        function="word_stands",
        old="e.says = 'happened'",
        new="e.says = 'over'",
    ),
    "a_fork_keeps_what_lost_its_race": Broken(
        _losers_are_copied,
        {"claim": 3, "flush": 10, "fork": 8},
        seed=19,
        function="fork",
        old="and not o.lost",
    ),
    "work_is_judged_whatever_was_said_since": Broken(
        _whatever_was_said, _JUDGING, function="accept", old="v_number <> v_item.seen or "
    ),
    "a_parked_message_holds_nothing_back": Broken(
        _parked_hold_nothing, {"submit": 2, "cancel": 3, "publish": 3}
    ),
}
"""Every fault by its name."""
