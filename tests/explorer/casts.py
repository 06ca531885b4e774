"""Which verbs meet: chosen casts for every run of the tests; all pairs, and trios, for the long form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.explorer.acts import ACTS, ENTRIES
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
        ("flush_events", "post"),
        ("decide_next", "flush_ask", "post"),
        ("post_up", "post_down", "post_around"),
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
        ("submit_and_claim", "sweep"),
        ("submit_and_claim", "submit_same_key"),
    ),
    "waiting": (
        ("post", "cancel"),
        ("postpone", "note"),
        ("claim_open", "settle_happened"),
    ),
    "due": (("sweep", "post"), ("sweep", "sweep")),
    "operator": (("wake", "wake"), ("wake", "adopt")),
    "held": (("resume", "deliver"), ("deliver", "cancel"), ("resume", "deliver", "pause")),
    "failed": (("retry", "retry"), ("retry", "fork"), ("retry", "claim_open")),
    "succeeded": (("accept", "accept"),),
}
"""The casts of every run of the tests, by setting; each is explored in every order of its steps."""
SHORT_MOST = 20
"""How many runs of a cast there are in every run of the tests at most; the long form plays all."""


PARTED = {
    frozenset(("sweep", "cancel_family")): "a sweep that skips one head of a family takes the others",
    frozenset(("sweep", "post_family")): "a sweep that skips one head of a family takes the others",
    frozenset(("sweep", "admit")): "a session ends before its leases do, and a passage tells of both",
    frozenset(
        ("submit_and_claim", "claim")
    ): "who submits waits for no claimer, and so does not claim at all",
    frozenset(("submit_and_claim", "claim_by_its_worker")): "as of any other claimer",
}
"""Pairs of which one may see a part of the other, and why: a sweep does its work head by head, and what is
held is left for the next one, so that who meets it with several heads, or reads beside its own, may see a
part of it; what is submitted beside a claimer that is at work is there, and can be claimed by the next one.
They are judged by the checkers alone, since no order of the verbs comes to that."""


SHARING = {
    "deliver": "of two, one may take ends and the other what a switch has held, with the switch between them",
}
"""Verbs of which two share what there is to do, and why a third may come between their parts."""


def parted(cast: Cast) -> bool:
    """Answer whether one of a cast may see a part of another."""
    shared = len(cast) > 2 and any(cast.count(name) > 1 for name in SHARING)
    return shared or any(frozenset(pair) in PARTED for pair in itertools.combinations(cast, 2))


BY_THREE = {
    "a_minute_passes": "alone with a verb it shows only whether that reads the clock more than once",
    "post_up": "post_family is two of these and more",
    "post_down": "post_family is two of these and more",
    "post_around": "post_family is two of these and more",
}
"""Parts that are not played by pairs, and why."""


def pairs(settings: Iterable[str] = SETTINGS) -> Iterable[tuple[str, Cast]]:
    """Answer every pair of parts in every setting, twins included."""
    parts = [name for name in sorted(ACTS) if name not in BY_THREE]
    for setting in settings:
        for cast in itertools.combinations_with_replacement(parts, 2):
            yield setting, cast


MEET = (
    "cancel",
    "claim",
    "decide_approve",
    "deliver",
    "flush_parent_intent",
    "flush_parent_success",
    "fork",
    "post",
    "retry",
    "settle_happened",
    "submit",
    "submit_child",
    "submit_same_key",
    "sweep",
)
"""Whom a worker's entry meets two of at once, and who meet each other by three."""


def trios(settings: Iterable[str] = SETTINGS) -> Iterable[tuple[str, Cast]]:
    """Answer trios of the verbs that matter most in every setting: each kind of entry with two of the others,
    and three of those.

    Not time: whoever read the clock before another may commit behind it, where nothing else is between them.
    """
    entries = sorted(name for name in ENTRIES if not name.startswith("flush_parent_"))
    for setting in settings:
        for entry in entries:
            for others in itertools.combinations_with_replacement(MEET, 2):
                yield setting, (entry, *others)
        for cast in itertools.combinations_with_replacement(MEET, 3):
            yield setting, cast
