"""Random programs in which tasks are undone, tried again, forked, moved to other versions and judged."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.contract.people_programs import PEOPLE
from tests.contract.programs import Program

from outlast.store.changing import Acceptance, Adopt, Fork, OutsideEvent, Retry
from outlast.store.contract import Store
from outlast.store.entries import AdoptIssued, AttachSession, Entry, RecordOutcome
from outlast.store.posting import Cancel
from outlast.store.records import Claimed, OperationRow, TaskRef
from outlast.testing.store_suite.scene import SECOND

SESSIONS = ("session-1", "session-2")


class ChangeProgram(Program):
    """A random program with every verb of change."""

    def __init__(self, seed: int, stores: tuple[Store, ...], now: int) -> None:
        super().__init__(seed, stores, now)
        self.forks: list[Fork] = []
        self.events: list[OutsideEvent] = []
        self.issued: dict[tuple[str, str], list[str]] = {}

    def kinds(self) -> dict[Callable[[], Awaitable[None]], int]:
        return {
            **super().kinds(),
            self.cancel: 3,
            self.retry: 4,
            self.fork: 4,
            self.adopt: 3,
            self.wake: 2,
            self.accept: 5,
            self.happen: 6,
            self.read: 2,
        }

    async def table(self, name: str) -> list[dict[str, Any]]:
        """Read a table of the first store."""
        return list((await self.stores[0].dump())[name])

    async def heads(self, *states: str) -> list[TaskRef]:
        """Name up to two tasks, mostly in one of these states, or nobody's."""
        rows = await self.table("tasks")
        likely = [row for row in rows if row["state"] in states]
        found = [
            TaskRef(tenant=row["tenant"], task=row["id"])
            for row in self.dice.sample(likely, min(2, len(likely)))
        ]
        if rows and self.dice.random() < 0.3:
            row = self.dice.choice(rows)
            found.append(TaskRef(tenant=row["tenant"], task=row["id"]))
        if self.dice.random() < 0.1:
            found.append(TaskRef(tenant="tenant-none", task="task-none"))
        return found

    # -- verbs -----------------------------------------------------------------------------------------

    async def cancel(self) -> None:
        requests = [
            Cancel(
                tenant=of.tenant,
                task=of.task,
                by=self.dice.choice(PEOPLE),
                reason=f"reason-{self.scene.number()}",
                undo=self.dice.random() < 0.7,
            )
            for of in await self.heads("running", "waiting")
        ]
        await self.on_both(f"cancel {requests}", lambda store: store.cancel(requests, now=self.scene.now))

    async def retry(self) -> None:
        operations = await self.table("operations")
        undone = [
            TaskRef(tenant=row["tenant"], task=row["task"])
            for row in operations
            if row["kind"] == "compensation" and self.dice.random() < 0.5
        ]
        requests = [
            Retry(
                tenant=of.tenant,
                task=of.task,
                by=self.dice.choice(PEOPLE),
                reason=f"reason-{self.scene.number()}",
                reopen=tuple(
                    row["key"]
                    for row in operations
                    if (row["tenant"], row["task"]) == (of.tenant, of.task) and self.dice.random() < 0.5
                ),
            )
            for of in [*await self.heads("failed", "cancelled"), *undone]
        ]
        await self.on_both(f"retry {requests}", lambda store: store.retry(requests, now=self.scene.now))

    async def fork(self) -> None:
        operations = await self.table("operations")
        requests = []
        for of in await self.heads("failed", "succeeded", "running"):
            keys = [row["key"] for row in operations if (row["tenant"], row["task"]) == (of.tenant, of.task)]
            made = Fork(
                tenant=of.tenant,
                task=of.task,
                new=self.scene.submission().task,
                before=self.dice.choice([None, *keys, *keys, "op-none"]),
                by=self.dice.choice(PEOPLE),
                reason=f"reason-{self.scene.number()}",
                input=self.dice.choice([None, self.scene.text("input")]),
                version=self.dice.choice([None, "", "v1", "v2"]),
            )
            requests.append(self.keyed(made))
        if self.forks and self.dice.random() < 0.3:
            requests.append(self.dice.choice(self.forks))
        self.forks += requests
        answers = await self.on_both(
            f"fork {requests}", lambda store: store.fork(requests, now=self.scene.now)
        )
        self.seen.update(f"Forked {one.kind}" for one in answers)

    def keyed(self, made: Fork) -> Fork:
        """Give a fork a key of its caller's, where it is to have one."""
        return made

    async def adopt(self) -> None:
        requests = []
        for row in await self.stores[0].read_tasks(await self.heads("queued", "waiting", "running")):
            requests.append(
                Adopt(
                    tenant=row.tenant,
                    task=row.task,
                    version=self.dice.choice(["v1", "v2"]),
                    seen_version=row.version,
                    seen_epoch=row.epoch,
                    seen_event=row.last_event - self.dice.choice([0, 0, 0, 1]),
                    by=self.dice.choice(PEOPLE),
                    reason=f"reason-{self.scene.number()}",
                )
            )
        if requests and self.dice.random() < 0.3:
            requests.append(replace(requests[0], tenant="tenant-none"))
        await self.on_both(f"adopt {requests}", lambda store: store.adopt(requests, now=self.scene.now))

    async def wake(self) -> None:
        for ref in await self.heads("waiting"):
            await self.on_both(
                f"wake {ref}", lambda s, ref=ref: s.wake(ref, "person:ann", "again", now=self.scene.now)
            )

    async def accept(self) -> None:
        verdicts: list[Acceptance] = [
            Acceptance(
                tenant=of.tenant,
                task=of.task,
                verdict=self.dice.choice(["accepted", "rejected"]),  # type: ignore[arg-type]
                by=self.dice.choice(PEOPLE),
                reason=f"reason-{self.scene.number()}",
                evidence=self.scene.text("seen"),
                seen=self.dice.choice([0, 0, 1, 2]),
            )
            for of in await self.heads("succeeded")
        ]
        await self.on_both(f"accept {verdicts}", lambda store: store.accept(verdicts, now=self.scene.now))

    async def happen(self) -> None:
        """Have something happen in outside sessions, or come again."""
        events = [
            OutsideEvent(
                tenant=self.dice.choice(self.agents)[0],
                provider="provider-1",
                session=self.dice.choice(SESSIONS),
                run=self.dice.choice(["", "run-2"]),
                event=f"event-{self.scene.number()}",
                data=self.scene.text("said"),
                digest=f"digest-{self.scene.number()}",
            )
            for _ in range(self.dice.randint(1, 3))
        ]
        if self.events and self.dice.random() < 0.5:
            again = self.dice.choice(self.events)
            events += [again, replace(again, digest="another")]
        answers = await self.on_both(
            f"happen {events}", lambda store: store.post_outside(events, now=self.scene.now)
        )
        self.events += [event for event, one in zip(events, answers, strict=True) if one.kind == "accepted"]

    # -- the journal -----------------------------------------------------------------------------------

    async def flush(self) -> None:
        self.issued = {}
        for row in await self.table("issued"):
            self.issued.setdefault((row["tenant"], row["task"]), []).append(row["key"])
        await super().flush()

    def entry(self, claimed: Claimed, rows: list[OperationRow]) -> Entry:
        scene, dice = self.scene, self.dice
        events = (scene.event(),) if dice.random() < 0.3 else ()
        kind = dice.choice(["other"] * 6 + ["adopt", "attach", "undo", "undo", "undo", "end"])
        behind = self.issued.get((claimed.tenant, claimed.task), [])
        if kind == "adopt":
            key = dice.choice([*behind, *behind, f"op-{dice.randint(1, 6)}"])
            return AdoptIssued(key=key, position=dice.randint(1, 9), events=events)
        if kind == "attach":
            return AttachSession(
                provider="provider-1",
                session=dice.choice(SESSIONS),
                run=dice.choice(["", "run-1"]),
                events=events,
            )
        if kind == "end":
            judged = ("rejected", "checker:totals", "wrong", scene.text("measured"))
            number = scene.number()
            code = "cancelled" if number % 2 else "agent_error"
            error = json.dumps({"code": code, "compensation": number})
            return dice.choice(
                [scene.success(), scene.success(judged=judged), scene.failure(), scene.failure(error=error)]
            )
        begun = [row.key.removesuffix("/undo") for row in rows if row.kind == "compensation"]
        if kind == "undo":
            return self.compensation(dice.choice(begun or [f"op-{dice.randint(1, 6)}"]), rows)
        made = super().entry(claimed, rows)
        if isinstance(made, RecordOutcome) and dice.random() < 0.5:
            return replace(made, usage=scene.text("tokens"))
        return made

    def compensation(self, key: str, rows: list[OperationRow]) -> Entry:
        """Make the next thing that undoing an operation needs."""
        undo = next((row for row in rows if row.key == f"{key}/undo"), None)
        if undo is None or undo.state in ("planned", "approved"):
            return self.scene.intent(
                f"{key}/undo",
                kind="compensation",
                name="undo-it",
                attempt=undo.attempt if undo else 0,
                turn=undo.turn if undo else 0,
                position=self.dice.randint(1, 9),
                timeout_us=4 * SECOND,
            )
        return RecordOutcome(
            key=undo.key,
            attempt=undo.attempt,
            turn=undo.turn,
            state=self.dice.choice(["succeeded", "succeeded", "failed", "unknown"]),  # type: ignore[arg-type]
        )

    # -- views -----------------------------------------------------------------------------------------

    async def read(self) -> None:
        tenant, _ = self.dice.choice(self.agents)
        await self.on_both("versions", lambda store: store.list_versions(tenant))
        await self.on_both("all versions", lambda store: store.list_versions())
        await self.on_both("audit", lambda store: store.read_audit(tenant))
        for ref in await self.heads("running", "succeeded"):
            await self.on_both("verdicts", lambda s, r=ref: s.read_acceptances(r.tenant, r.task))
            await self.on_both("outside", lambda s, r=ref: s.read_outside(r.tenant, r.task))
            await self.on_both("tasks", lambda s, r=ref: s.read_tasks([r]))
            await self.on_both("counts", lambda s, r=ref: s.read_settled_counts(r.tenant))
