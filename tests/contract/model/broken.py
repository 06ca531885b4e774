"""Deliberate faults of SQLite that change what verbs answer or keep, and what is done to find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.contract.model.machine import WEIGHTS
from tests.defects.catalogue import DEFECTS, Patch


@dataclass(frozen=True, slots=True)
class Broken:
    """A fault. weights: what is done, and how often; narrow, where a fault shows in a corner only."""

    apply: Callable[[Patch], None]
    weights: dict[str, int] = field(default_factory=lambda: WEIGHTS)


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


BROKEN = {
    **{
        name: Broken(DEFECTS[name].apply)
        for name in (
            "epoch_not_raised",
            "lease_kept",
            "stale_turn_accepted",
            "person_counted_twice",
            "retry_opens_no_round",
            "business_key_kept",
            "fork_without_issued",
        )
    },
    "children_go_on": Broken(
        DEFECTS["children_go_on"].apply,
        {"submit": 2, "spawn": 5, "claim": 5, "flush": 6, "cancel": 3, "deliver": 4, "renew": 1},
    ),
    "whom_a_switch_holds_is_forgotten": Broken(_nobody_is_held),
    "a_session_is_taken_from_one_that_runs": Broken(_sessions_are_taken),
    "what_is_next_moves_though_the_times_stand": Broken(_next_moves, {"schedule": 4, "fire": 1}),
    "a_parked_message_holds_nothing_back": Broken(
        _parked_hold_nothing, {"submit": 2, "cancel": 3, "publish": 3}
    ),
}
"""Every fault by its name."""
