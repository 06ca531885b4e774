"""Who may come too late, and how to build it: each kind of journal entry, each verb that writes.

The lists here are compared with the contract (``typing.get_args(Entry)``, the methods of ``Store``): a new
kind of entry or a new verb without twins fails ``test_registry.py``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from outlast.store.contract import Store
from outlast.store.entries import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    CommitIntent,
    EndAttempt,
    Entry,
    ExpireApproval,
    Note,
    RecordOperation,
    RecordOutcome,
    TakeTurn,
)
from outlast.store.records import Claimed
from outlast.testing.store_suite.forking import forked
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

ENTRIES: tuple[type, ...] = typing.get_args(Entry)
"""Every kind of journal entry."""

VERBS: frozenset[str] = frozenset(
    name for name, member in vars(Store).items() if inspect.iscoroutinefunction(member)
)
"""Every verb and view of the contract."""

FENCED = frozenset(
    {
        "submit",
        "submit_and_claim",
        "renew",
        "retire",
        "claim",
        "reconcile",
        "flush",
        "settle",
        "note",
        "admit",
        "claim_open",
        "postpone",
        "post",
        "cancel",
        "news",
        "deliver",
        "decide",
        "retry",
        "fork",
        "adopt",
        "wake",
        "accept",
        "post_outside",
        "withdraw_rule",
        "sweep",
        "confirm_messages",
        "put_schedule",
        "set_schedule",
        "due_schedules",
        "fire_schedules",
    }
)
"""Verbs that write what a late comer could spoil: each has stale and blocked twins."""

UNFENCED = {
    "open": "no rows",
    "close": "no rows",
    "migrate": "the schema, under a lock of its own: test_schema_race",
    "pause": "one row by its name, under the lock that intents share; whoever comes later overwrites it",
    "resume": "one row by its name, under the lock that intents share; only the one that finds it says so",
    "put_rule": "a row of its own; nothing that stands is changed",
    "load": "reads",
    "take_messages": "reads",
    "read_tasks": "reads",
    "list_tasks": "reads",
    "read_events": "reads",
    "read_ends": "reads",
    "read_attempts": "reads",
    "list_operations": "reads",
    "read_evidence": "reads",
    "read_open": "reads",
    "read_passage": "reads",
    "read_settled_counts": "reads",
    "list_pauses": "reads",
    "read_business_key": "reads",
    "read_audit": "reads",
    "list_versions": "reads",
    "list_sessions": "reads",
    "count_unknown": "reads",
    "read_acceptances": "reads",
    "read_outside": "reads",
    "read_inbox": "reads",
    "read_approvals": "reads",
    "read_approval": "reads",
    "list_approvals": "reads",
    "read_votes": "reads",
    "read_rules": "reads",
    "list_rules": "reads",
    "read_schedule": "reads",
    "list_schedules": "reads",
    "health": "reads",
    "dump": "reads",
}
"""Verbs without twins, and why."""


# ── entries ──────────────────────────────────────────────────────────────────────────────────────

Build = Callable[[Scene, Claimed], Awaitable[Entry]]
BUILD: dict[type, Build] = {}
"""How to prepare, under a live lease, an entry that would be accepted and would change something."""

TOUCHES: dict[type, str] = {}
"""The key of the operation whose existing row the entry writes, where it writes one."""


def builds(kind: type, *, touches: str | None = None) -> Callable[[Build], Build]:
    """Register how a kind of entry is built."""

    def register(build: Build) -> Build:
        BUILD[kind] = build
        if touches is not None:
            TOUCHES[kind] = touches
        return build

    return register


@builds(RecordOperation, touches="it")
async def _record(scene: Scene, claimed: Claimed) -> Entry:
    planned = scene.planned(scene.intent("it"))
    await scene.write(claimed, planned)
    return replace(planned, state="failed", error=scene.text("error"), events=(scene.event("mine"),))


@builds(CommitIntent, touches="it")
async def _intent(scene: Scene, claimed: Claimed) -> Entry:
    intent = scene.intent("it")
    await scene.write(claimed, scene.planned(intent))
    return replace(intent, events=(scene.event("mine"),))


@builds(AskApproval, touches="it")
async def _ask(scene: Scene, claimed: Claimed) -> Entry:
    await scene.write(claimed, scene.planned(scene.intent("it")))
    return scene.ask("it", events=(scene.event("mine"),))


@builds(ExpireApproval)
async def _expire(scene: Scene, claimed: Claimed) -> Entry:
    await scene.write(claimed, scene.ask("it", expires_in_us=1))
    scene.pass_time(1)
    return ExpireApproval(key="it", number=1, events=(scene.event("mine"),))


@builds(AdoptIssued)
async def _adopt(scene: Scene, claimed: Claimed) -> Entry:
    """Of a fork only (see ``begun``); any other task has nothing to take over."""
    return AdoptIssued(key="it", position=scene.number(), events=(scene.event("mine"),))


@builds(AttachSession)
async def _attach(scene: Scene, claimed: Claimed) -> Entry:
    session = f"session-{scene.number()}"
    return AttachSession(provider="provider-1", session=session, events=(scene.event("mine"),))


@builds(RecordOutcome, touches="it")
async def _outcome(scene: Scene, claimed: Claimed) -> Entry:
    await scene.called(claimed, key="it")
    return await scene.outcome(claimed, "it", "succeeded", events=(scene.event("mine"),))


@builds(TakeTurn, touches="it")
async def _turn(scene: Scene, claimed: Claimed) -> Entry:
    await scene.called(claimed, key="it")
    return TakeTurn(key="it", attempt=1, turn=1, events=(scene.event("mine"),))


@builds(AppendEvents)
async def _events(scene: Scene, claimed: Claimed) -> Entry:
    return AppendEvents(events=(scene.event("mine"),))


@builds(Note)
async def _note(scene: Scene, claimed: Claimed) -> Entry:
    await scene.called(claimed, "unknown", key="it")
    return Note(key="it", attempt=1, source="asked", data=scene.text("asked"))


@builds(EndAttempt, touches="it")
async def _end(scene: Scene, claimed: Claimed) -> Entry:
    await scene.called(claimed, key="it")
    return scene.success(events=(scene.event("mine"),))


VARIANTS: dict[str, Build] = {}
"""Entries of a kind that is built above, where they write what that one does not."""


def varies(build: Build) -> Build:
    """Register a variant."""
    VARIANTS[build.__name__.strip("_")] = build
    return build


@varies
async def _resend(scene: Scene, claimed: Claimed) -> Entry:
    intent = scene.intent("it")
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, "it", "unknown"))
    return replace(intent, attempt=1, turn=2, resend=True, events=(scene.event("mine"),))


@varies
async def _intent_under_a_decision(scene: Scene, claimed: Claimed) -> Entry:
    ask = scene.ask("it")
    assert (await scene.decide(await scene.asked(claimed, ask))).kind == "decided"
    return scene.agreed_intent(ask, events=(scene.event("mine"),))


@varies
async def _record_that_takes(scene: Scene, claimed: Claimed) -> Entry:
    await scene.post(scene.signal(claimed), scene.signal(claimed))
    return scene.step("it", takes=(2,), events=(scene.event("mine"),))


@varies
async def _newer_question(scene: Scene, claimed: Claimed) -> Entry:
    await scene.write(claimed, scene.ask("it"))
    return scene.ask("it", number=2, events=(scene.event("mine"),))


@varies
async def _end_that_withdraws(scene: Scene, claimed: Claimed) -> Entry:
    await scene.write(claimed, scene.ask("it"))
    return scene.success(events=(scene.event("mine"),))


@varies
async def _end_of_a_parent(scene: Scene, claimed: Claimed) -> Entry:
    await scene.child(claimed, "kid")
    return scene.success(events=(scene.event("mine"),))


BUILDS: dict[str, Build] = {**{kind.__name__: build for kind, build in BUILD.items()}, **VARIANTS}
"""Everything that is built, by name."""


async def begun(scene: Scene, entry_of: str, **changes: Any) -> Claimed:
    """Have the running task that an entry is built for."""
    if entry_of != AdoptIssued.__name__:
        return await scene.running(**changes)
    ttl_us, deadline_us = changes.pop("ttl_us", 60 * SECOND), changes.pop("deadline_us", None)
    origin = await scene.running(ttl_us=HOUR, **changes)
    await scene.called(origin, key="it")
    record = await forked(scene, scene.record_of(origin), "it", deadline_us=deadline_us)
    return await scene.claim_task(record, ttl_us=ttl_us)


# ── how a lease is lost ──────────────────────────────────────────────────────────────────────────

Lose = Callable[[Scene, Claimed], Awaitable[None]]
LOSSES: dict[str, Lose] = {}
"""Everything that takes a lease away, by name."""


def loses(lose: Lose) -> Lose:
    """Register a way to lose a lease."""
    LOSSES[lose.__name__] = lose
    return lose


@loses
async def swept(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed)


@loses
async def parked(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed, max_deaths=1)


@loses
async def expired(scene: Scene, claimed: Claimed) -> None:
    assert claimed.deadline_at is not None
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=10 * (claimed.deadline_at - scene.now), session=row["id"])
    scene.now = claimed.deadline_at + 1
    await scene.sweep(grace_us=0)


@loses
async def swept_and_claimed_again(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed)
    await scene.claim_task(claimed)


@loses
async def swept_and_ended_by_the_successor(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed)
    await scene.write(await scene.claim_task(claimed), scene.failure())


@loses
async def marked_and_swept(scene: Scene, claimed: Claimed) -> None:
    assert (await scene.cancel(claimed)).kind == "requested"
    await scene.lose(claimed)


@loses
async def released_and_cancelled(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.release())
    assert (await scene.cancel(claimed)).kind == "cancelled"


@loses
async def released(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.release())


@loses
async def suspended(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.suspension("operator"))


@loses
async def succeeded(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.success())


@loses
async def failed(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.failure())


@loses
async def cancelled(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.failure(attempt_end="cancelled", task_state="cancelled"))
