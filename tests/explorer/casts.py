"""Which verbs meet: chosen casts for every run of the tests, and all pairs for the long form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.explorer.acts import ACTS
from tests.explorer.scenes import SETTINGS

Cast = tuple[str, ...]

SHORT: dict[str, tuple[Cast, ...]] = {
    "running": (
        ("submit", "submit_same_key"),
        ("submit_child", "flush_success"),
        ("retire", "claim"),
        ("reconcile", "flush_success"),
        ("flush_record", "flush_record"),
        ("flush_takes", "post"),
        ("flush_hears", "deliver"),
        ("flush_intent", "flush_parent_intent"),
        ("flush_intent", "pause"),
        ("flush_intent", "put_rule"),
        ("flush_intent_as_agreed", "decide_reject"),
        ("flush_events", "cancel"),
        ("flush_intent_as_agreed", "withdraw_rule"),
        ("flush_resend", "note"),
        ("flush_outcome", "admit"),
        ("flush_turn_and_look", "admit"),
        ("flush_turn", "settle_send_again"),
        ("flush_note", "note"),
        ("flush_turn_and_look", "note_over"),
        ("flush_events", "settle_happened"),
        ("flush_ask", "decide_approve"),
        ("flush_expire", "decide_approve"),
        ("flush_attach", "flush_parent_attach"),
        ("flush_attach", "post_outside"),
        ("flush_adopt_issued", "cancel_undo"),
        ("flush_suspend", "post"),
        ("flush_suspend", "decide_approve"),
        ("flush_suspend", "deliver"),
        ("flush_success", "news"),
        ("cancel_family", "post_family"),
        ("pause", "resume"),
        ("put_rule", "put_rule"),
        ("fork", "flush_turn"),
        ("confirm_messages", "flush_success"),
        ("fire_schedules", "fire_schedules"),
        ("fire_schedules", "set_schedule"),
        ("put_schedule", "set_schedule"),
        ("due_schedules", "due_schedules"),
        ("decide_approve", "flush_events", "a_minute_passes"),
    ),
    "lost": (
        ("sweep", "renew"),
        ("sweep", "claim_by_its_worker"),
        ("sweep", "flush_outcome"),
    ),
    "queued": (
        ("claim", "claim"),
        ("claim", "cancel"),
        ("claim", "adopt"),
        ("claim", "claim_open"),
    ),
    "waiting": (
        ("post", "cancel"),
        ("postpone", "note"),
        ("claim_open", "settle_happened"),
    ),
    "due": (("sweep", "post"), ("sweep", "sweep")),
    "operator": (("wake", "wake"), ("wake", "adopt")),
    "failed": (("retry", "retry"), ("retry", "fork"), ("retry", "claim_open")),
    "succeeded": (("accept", "accept"),),
}
"""The casts of every run of the tests, by setting; each is explored up to one switch."""


PARTED = {
    frozenset(("sweep", "cancel_family")): "a sweep that skips one head of a family takes the others",
    frozenset(("sweep", "post_family")): "a sweep that skips one head of a family takes the others",
    frozenset(("sweep", "admit")): "a session ends before its leases do, and a passage tells of both",
}
"""Pairs that are not played, and why: a sweep does its work head by head, and what is held is left for the
next one, so that who meets it with several heads, or reads beside its own, may see a part of it."""


def pairs(settings: Iterable[str] = SETTINGS) -> Iterable[tuple[str, Cast]]:
    """Answer every pair of parts in every setting, twins included.

    Not time: alone with a verb it shows only whether that reads the clock more than once, as a sweep does.
    """
    parts = [name for name in sorted(ACTS) if name != "a_minute_passes"]
    for setting in settings:
        for cast in itertools.combinations_with_replacement(parts, 2):
            if frozenset(cast) not in PARTED:
                yield setting, cast
