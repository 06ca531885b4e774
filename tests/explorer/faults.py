"""Deliberate faults in the functions of PostgreSQL: what SQLite's one writer cannot show.

Each is made in the test's own database, and is looked for by one cast. A judge that finds nothing is believed
only if it finds what was put there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.explorer.casts import Cast
from tests.explorer.stage import Edit


@dataclass(frozen=True)
class Fault:
    """A deliberate fault.

    says: what it does. edits: by function. setting, cast: where it is looked for. hidden: up to how many
    switches no run finds it.
    """

    says: str
    edits: Mapping[str, Edit]
    setting: str
    cast: Cast
    hidden: int = -1


def instead(old: str, new: str = "") -> Edit:
    """Put something in the place of a text, which has to be there."""

    def edit(source: str) -> str:
        assert old in source, f"{old!r} is not there any more"
        return source.replace(old, new)

    return edit


def every(*edits: Edit) -> Edit:
    """Make several edits, one after the other."""
    return lambda source: functools.reduce(lambda text, edit: edit(text), edits, source)


def first(moved: str, before: str) -> Edit:
    """Move a statement before another, which have to be there."""
    return lambda source: instead(moved)(source).replace(before, f"{moved}\n    {before}", 1)


LOCK = "perform outlast.lock_heads(p_tenant, p_task);"
CLOCK = "v_now := coalesce(p_now, outlast.clock_us());"

FAULTS: dict[str, Fault] = {
    "heads_not_locked": Fault(
        "heads are named in order and not locked",
        {"lock_heads": instead(" for no key update")},
        "running",
        ("flush_events", "cancel"),
    ),
    "heads_in_the_callers_order": Fault(
        "a cancel locks heads in the order in which it was asked",
        {
            "cancel": instead(
                LOCK,
                "perform outlast.lock_heads(p_tenant[n:n], p_task[n:n])"
                "   from generate_series(1, cardinality(p_task)) n;",
            )
        },
        "running",
        ("cancel_family", "post_family"),
    ),
    "settle_looks_first": Fault(
        "a settlement does not lock the head",
        {"settle": instead(LOCK)},
        "running",
        ("flush_events", "settle_happened"),
    ),
    "note_looks_first": Fault(
        "evidence is numbered without the head's lock",
        {"note": instead(LOCK)},
        "running",
        ("flush_note", "note"),
    ),
    "over_looks_first": Fault(
        "that a sender is gone is noted without the head's lock, while its call becomes unknown",
        {"note": instead(LOCK)},
        "running",
        ("flush_turn_and_look", "note_over"),
    ),
    "admit_looks_first": Fault(
        "a request is let through without the head's lock",
        {"admit": instead(LOCK)},
        "running",
        ("flush_turn_and_look", "admit"),
    ),
    "postpone_looks_first": Fault(
        "an operation is put back without the head's lock",
        {"postpone": instead(LOCK)},
        "waiting",
        ("postpone", "note"),
    ),
    "post_looks_first": Fault(
        "a signal is posted without the head's lock",
        {"post": instead(LOCK)},
        "running",
        ("flush_suspend", "post"),
    ),
    "facts_before_the_lock": Fault(
        "a suspension waits for the head, and counts the facts that its snapshot has",
        {
            "flush": every(
                instead("for no key update of t skip locked)", "for no key update of t)"),
                instead(
                    "t.facts, t.lane, coalesce",
                    "(select u.facts from outlast.tasks u"
                    " where u.tenant = h.tenant and u.id = h.task) as facts, t.lane, coalesce",
                ),
            )
        },
        "running",
        ("flush_suspend", "post"),
    ),
    "flush_without_locks": Fault(
        "a batch compares epochs without locking the heads",
        {"flush": instead("for no key update of t skip locked")},
        "running",
        ("flush_suspend", "post"),
    ),
    "writers_not_in_line": Fault(
        "a batch does not wait for an earlier backend of its writer",
        {"flush": instead("perform pg_advisory_xact_lock(hashtextextended(p_writer, 1));")},
        "running",
        ("flush_record", "flush_record"),
    ),
    "clock_of_a_decision": Fault(
        "a decision reads the clock before it waits for the head",
        {"decide": first(CLOCK, "perform outlast.lock_heads(v_tenants, v_tasks);")},
        "running",
        ("decide_approve", "flush_events", "a_minute_passes"),
    ),
    "cancel_looks_first": Fault(
        "a cancel does not lock the head", {"cancel": instead(LOCK)}, "running", ("flush_events", "cancel")
    ),
    "decide_looks_first": Fault(
        "a decision does not lock the head",
        {"decide": instead("perform outlast.lock_heads(v_tenants, v_tasks);")},
        "running",
        ("flush_suspend", "decide_approve"),
    ),
    "deliver_looks_first": Fault(
        "a child's end is delivered without the head's lock",
        {"deliver": instead("perform outlast.lock_heads(v_tenant || v_held_tenant, v_task || v_held_task);")},
        "running",
        ("flush_suspend", "deliver"),
    ),
    "parent_not_locked": Fault(
        "a child is accepted without its parent's lock",
        {"submit": instead("perform outlast.lock_heads(v_tenants, v_parents);", "null;")},
        "running",
        ("submit_child", "flush_success"),
    ),
    "key_looked_up_first": Fault(
        "an idempotency key is looked up, then inserted",
        {
            "submit": every(
                instead("on conflict do nothing\n                returning 1)", "returning 1)"),
                instead(
                    "where (v_round = 1 and v_stale = '{}') or s.item = any(v_open)",
                    "where not exists (select from outlast.inputs i"
                    " where i.tenant = s.tenant and i.key = s.key)",
                ),
            )
        },
        "running",
        ("submit", "submit_same_key"),
    ),
    "business_key_looked_up_first": Fault(
        "a business key is looked up, and not reserved",
        {
            "flush": every(
                instead(
                    "where h_ok[x.place >> 20]\n"
                    "           and not exists (select from outlast.business_keys b",
                    "where false and not exists (select from outlast.business_keys b",
                ),
                instead("x.place <> all(v_near) or others.open", "others.open"),
            )
        },
        "running",
        ("flush_intent", "flush_parent_intent"),
    ),
    "attached_twice": Fault(
        "an outside session is looked up, then attached",
        {"attach_sessions": instead("on conflict do nothing")},
        "running",
        ("flush_attach", "flush_parent_attach"),
    ),
    "retired_under_a_claim": Fault(
        "a session is retired while a claim makes leases for it",
        {"retire": instead(" for update")},
        "running",
        ("retire", "claim"),
    ),
    "schedule_taken_twice": Fault(
        "whoever takes schedules that are due does not lock them",
        {"due_schedules": instead("for no key update skip locked")},
        "running",
        ("due_schedules", "due_schedules"),
    ),
    "schedule_fired_twice": Fault(
        "whoever fires a schedule does not lock it",
        {"fire_schedules": instead("for no key update")},
        "running",
        ("fire_schedules", "fire_schedules"),
    ),
    "schedule_replaced_unseen": Fault(
        "whoever replaces a schedule looks at its revision without locking it",
        {"put_schedule": instead("for no key update")},
        "running",
        ("put_schedule", "set_schedule"),
    ),
    "session_not_locked_to_renew": Fault(
        "a renewal does not lock the session",
        {"renew": instead("for no key update")},
        "lost",
        ("sweep", "renew"),
    ),
    "session_swept_unseen": Fault(
        "the sweeper does not look again behind the session's lock",
        {
            "sweep": every(
                instead("limit p_limit\n           for update skip locked);", "limit p_limit);"),
                instead("and s.lost_at is null and s.expires_at <= v_now\n        returning", "returning"),
            )
        },
        "lost",
        ("sweep", "renew"),
    ),
    "claim_for_a_dead_session": Fault(
        "a claim does not hold the session while it makes leases",
        {
            "claim": instead(
                "where s.id = p_session and s.lost_at is null and s.fence <= p_fence\n"
                "                for key share;",
                "where s.id = p_session;",
            )
        },
        "lost",
        ("sweep", "claim_by_its_worker"),
    ),
    "claimed_twice": Fault(
        "claims stand beside each other, and look at heads before they lock them",
        {
            "claim": every(
                instead("perform pg_advisory_xact_lock(hashtextextended('outlast.claim', 0));"),
                instead("for no key update of t skip locked)", ")"),
            )
        },
        "queued",
        ("claim", "claim"),
    ),
    "adopt_looks_first": Fault(
        "a task is adopted without the head's lock", {"adopt": instead(LOCK)}, "queued", ("claim", "adopt")
    ),
    "wake_looks_first": Fault(
        "an operator wakes without the head's lock",
        {"wake": instead("perform outlast.lock_heads(array[p_tenant], array[p_task]);")},
        "operator",
        ("wake", "wake"),
    ),
    "retry_looks_first": Fault(
        "a round is opened without the head's lock", {"retry": instead(LOCK)}, "failed", ("retry", "retry")
    ),
    "accept_looks_first": Fault(
        "a verdict is recorded without the head's lock",
        {"accept": instead(LOCK)},
        "succeeded",
        ("accept", "accept"),
    ),
}
"""Every deliberate fault by its name."""

DEEP: dict[str, Fault] = {
    "free_again_is_gone": Fault(
        "a head that is held when a batch comes, and is free when the batch looks why, is taken for lost",
        {
            "flush": instead(
                "and l.head is null) held on true;",
                "and l.head is null"
                "   and not exists (select from (select u.id from outlast.tasks u"
                "                                 where u.tenant = h.tenant and u.id = h.task"
                "                                   for no key update of u skip locked) u)) held on true;",
            )
        },
        "running",
        ("flush_events", "post"),
        hidden=1,
    ),
    "decided_while_it_is_asked": Fault(
        "a question that was asked while a decision looked for its head is decided without that head's lock",
        {
            "decide": lambda source: re.sub(
                r"and exists \(select from unnest\(v_tenants, v_tasks\).*?h\.task = a\.task\)",
                "",
                source,
                flags=re.DOTALL,
            )
        },
        "running",
        ("decide_next", "flush_ask", "post"),
        hidden=1,
    ),
    "heads_in_a_circle": Fault(
        "whoever locks heads does so in the order in which they were given",
        {
            "lock_heads": every(
                instead(
                    'select distinct s.tenant collate "C" as tenant, s.task collate "C" as task',
                    "select s.tenant, s.task",
                ),
                instead("order by 1, 2"),
            )
        },
        "running",
        ("post_up", "post_down", "post_around"),
        hidden=0,
    ),
}
"""Faults that it takes two switches to find, or three players."""
