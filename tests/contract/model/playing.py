"""What the machine plays: programs of ``tests.contract``, as far as the model knows their verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

from tests.contract.change_programs import ChangeProgram
from tests.contract.model.model import Model
from tests.contract.people_programs import PEOPLE, PeopleProgram

from outlast.store.changing import Fork
from outlast.store.contract import Store
from outlast.store.entries import (
    BusinessKey,
    CommitIntent,
    EndAttempt,
    Entry,
    RecordOperation,
    RecordOutcome,
    TaskWrites,
)
from outlast.store.reconciling import EVERY_TENANT, Pause
from outlast.store.records import Claimed
from outlast.store.rows import Message, Publication
from outlast.store.scheduling import Firing, ScheduleRow
from outlast.testing.store_suite.scene import HOUR, SECOND

TIMED = frozenset(
    {"settle", "decide", "renew", "claim", "flush", "retry", "fork", "sweep"}
    | {"put_schedule", "set_schedule", "due_schedules", "fire_schedules"}
)
"""Verbs of the model that look at the clock."""
PROVIDERS = ("mailer", "payer")
"""Who asks everybody to wait."""


class Answers:
    """The model, asked as a store is."""

    def __init__(self, model: Model, began: int) -> None:
        self._model = model
        # A store reads its own clock when it accepts, which is a little later than the program's beginning.
        self._began = began

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        answer = getattr(self._model, verb, None)

        async def ask(*arguments: Any, now: int | None = None, **named: Any) -> Any:
            if answer is None:
                return NotImplemented
            if verb in TIMED:
                named["now"] = now
            if verb == "submit":
                named["now"] = self._began
            if verb in ("deliver", "wake"):
                arguments = arguments[:1] if verb == "wake" else ()
            return answer(*arguments, **named)

        return ask


class ModelledProgram(ChangeProgram, PeopleProgram):
    """What people and workers do, as far as the model knows it."""

    doubted = ("running", "unknown", "succeeded", "failed", "planned", "approved")

    def __init__(self, stores: tuple[Store, ...], model: Model, now: int) -> None:
        super().__init__(0, stores, now)
        self.model = Answers(model, now)
        self.shots: list[Firing] = []
        self.taken: list[tuple[str, str, int, str]] = []

    async def on_both(self, what: str, act: Callable[[Any], Any]) -> Any:
        """Do the same on every store and in the model, and compare."""
        answer = await super().on_both(what, act)
        expected = await act(self.model)
        if expected is not NotImplemented:
            assert reduced(answer) == reduced(expected), (
                f"{reduced(answer)}\n is not what the model says:\n{reduced(expected)}\n{self.told()}"
            )
        return answer

    def entry(self, claimed: Claimed, rows: list[Any]) -> Entry:
        again = [row.key for row in rows if row.state == "planned" and row.attempt > 0]
        if again and self.dice.random() < 0.1:
            # Its race is over before it is made again.
            return self.scene.step(self.dice.choice(again), kind="tool", state="failed", lost=True)
        made = super().entry(claimed, rows)
        if isinstance(made, CommitIntent) and made.consent is None and self.dice.random() < 0.2:
            made = replace(made, name="pay")
        if isinstance(made, CommitIntent) and self.dice.random() < 0.3:
            made = replace(made, effect=self.dice.choice(["read", "idempotent"]))
        if isinstance(made, CommitIntent) and self.dice.random() < 0.5:
            made = replace(made, provider=self.dice.choice(PROVIDERS))
        if isinstance(made, CommitIntent) and self.dice.random() < 0.5:
            return replace(made, business=self.business(), repeat=self.dice.random() < 0.2)
        return self.ended(claimed, made)

    def ended(self, claimed: Claimed, made: Entry) -> Entry:
        """Let something end as other programs never do: lost to another branch, or with a wait for all."""
        dice = self.dice
        if isinstance(made, RecordOperation) and made.state == "failed" and dice.random() < 0.5:
            return replace(made, lost=True)
        if isinstance(made, RecordOutcome) and dice.random() < 0.3:
            seconds = dice.choice([5, 20, 60, 3600])
            return replace(made, wait=(dice.choice(PROVIDERS), seconds * SECOND))
        return made

    def keyed(self, made: Fork) -> Fork:
        """Let callers name forks as they name what they submit, so that keys meet."""
        dice = self.dice
        if dice.random() < 0.5:
            return made
        other = dice.choice([one for one in self.tasks if one.tenant == made.tenant] or [None])
        key, digest = dice.choice(["fork-1", "fork-2"]), dice.choice(["digest-1", "digest-2"])
        if other is not None and dice.random() < 0.3:
            key, digest = other.key or key, dice.choice([digest, other.request_digest])
        return replace(made, key=key, digest=digest, deadline_us=dice.choice([None, 2 * HOUR]))

    async def switch(self) -> None:
        """Throw one of a few switches, or take one back that may stand."""
        dice, standing = self.dice, await self.table("pauses")
        tenant = dice.choice([*(tenant for tenant, _ in self.agents), EVERY_TENANT])
        switch = Pause(
            tenant=tenant, scope=dice.choice(["all", "tool:pay"]), by=dice.choice(PEOPLE),
            reason=dice.choice(["too many", "the auditors"]),
        )  # fmt: skip
        if dice.random() < 0.4:
            await self.on_both(f"pause {switch}", lambda store: store.pause(switch, now=self.scene.now))
            return
        if standing and dice.random() < 0.8:
            row = dice.choice(standing)
            switch = replace(switch, tenant=row["tenant"], scope=row["scope"])
        stood = await self.on_both(f"resume {switch}", lambda store: store.resume(switch, now=self.scene.now))
        self.seen.add(f"resumed {stood}")

    async def publish(self) -> None:
        """Publish or park what is to be published, and some of what was taken before."""
        expected = named(await self.model.take_messages(500))
        for store in self.stores:
            there = named(await store.take_messages(500, now=self.scene.now))
            assert there == expected, f"{there}\n is not what the model says:\n{expected}\n{self.told()}"
        said = [
            Publication(
                tenant=tenant, task=task, number=number,
                parked=self.dice.choice([None, None, "too large"]),
            )
            for tenant, task, number, _ in [*expected, *self.taken[-3:]]
            if self.dice.random() < 0.5
        ]  # fmt: skip
        self.taken += expected
        await self.on_both(f"confirm {said}", lambda store: store.confirm_messages(said))

    async def fire(self) -> None:
        """Fire what is due, of schedules that are there."""
        if not self.due:
            await self.schedule()
            await self.schedule()
        await super().fire()

    def shot(self, row: ScheduleRow) -> Firing:
        """Make a firing; one that leaves what is next lets another meet its key."""
        if self.shots and self.dice.random() < 0.4:
            again = self.dice.choice(self.shots[-4:])
            if again.submission is None or self.dice.random() < 0.5:
                return again
            return replace(again, submission=replace(again.submission, request_digest="another"))
        made = super().shot(row)
        if self.dice.random() < 0.5:
            made = replace(made, next_at=made.expected)
        self.shots.append(made)
        return made

    def arranged(self, writes: list[TaskWrites]) -> list[TaskWrites]:
        """Have who asks for a business key write alone, and ask last, and nobody heed waits in a batch that
        asks for one: the contract leaves open whether an intent sees what else its batch does to these."""
        writes = super().arranged(writes)
        if any(getattr(entry, "wait", None) for one in writes for entry in one.entries):
            writes = [replace(one, entries=tuple(map(heedless, one.entries))) for one in writes]
        keyed = [
            one
            for one in writes
            if any(isinstance(entry, CommitIntent) and entry.business for entry in one.entries)
        ]
        if not keyed:
            return writes
        # Each operation once.
        first = {getattr(entry, "key", id(entry)): entry for entry in reversed(keyed[0].entries)}
        order = sorted(
            reversed(first.values()),
            key=lambda entry: (isinstance(entry, EndAttempt), isinstance(entry, CommitIntent)),
        )
        return [replace(keyed[0], entries=tuple(order))]

    def business(self) -> BusinessKey:
        """Name what a call is about; few names, so that calls meet."""
        mode, window_us = self.dice.choice(
            [("lock", None), ("once", 20 * SECOND), ("once", HOUR), ("once", None)]
        )
        value = self.dice.choice(["invoice-1", "invoice-2"])
        return BusinessKey(tool="pay", value=value, mode=mode, window_us=window_us)  # type: ignore[arg-type]


def heedless(entry: Entry) -> Entry:
    """Have an intent heed no provider's waits."""
    return replace(entry, provider=None) if isinstance(entry, CommitIntent) else entry


def named(messages: list[Message]) -> list[tuple[str, str, int, str]]:
    """Name messages, each task's in their order; whose task is older is by the stores' own clocks."""
    rows = [(one.tenant, one.task, one.number, one.topic) for one in messages]
    return sorted(rows, key=lambda one: one[:2])


def reduced(answer: Any) -> Any:
    """Take from an answer what the model does not know, and the order where the contract gives none."""
    if isinstance(answer, list | tuple):
        return [reduced(one) for one in answer]
    name = type(answer).__name__
    if name == "ClaimReply":
        return answer.refused, sorted(repr(replace(one, deadline_at=None)) for one in answer.claims)
    if name == "Decided":
        return answer.kind
    if name == "Flushed":
        return answer.kind, answer.refusals, answer.state if answer.kind == "accepted" else None
    if name == "ScheduleRow":
        return replace(answer, note=answer.note and "note")
    if name == "DueSchedules":
        return answer.now, reduced(answer.rows), answer.next_due_us
    if name in ("Swept", "Delivered"):
        parts = {part: value for part, value in asdict(answer).items() if isinstance(value, list | tuple)}
        return {part: sorted(map(str, value)) for part, value in parts.items()}
    return answer
