"""Random programs of verbs, valid and invalid, carried out on several stores at once and compared as they go.

What may differ is taken away first, and only that: instants of ``submit``, which is by the database's own
clock; numbers of lanes and queue entries; the shape of recorded verdicts; the state in a verdict that nothing
was written; the words of a refusal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import (
    AppendEvents,
    EndAttempt,
    Entry,
    Note,
    RecordOutcome,
    TakeTurn,
    TaskWrites,
)
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Evidence,
    Held,
    OperationRow,
    Serves,
    SessionRenewal,
    Submission,
    SweepRequest,
    TaskRef,
)
from outlast.store.rows import (
    EventCursor,
    EventRow,
    OperationFilter,
    Publication,
    TaskFilter,
)
from outlast.store.scheduling import DueRequest, Firing, PutSchedule, ScheduleRow, SetSchedule
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.scene import HOUR, SECOND, Dump, Scene


class Program:
    """A random program, made as it goes from what the first store answers."""

    def __init__(self, seed: int, stores: tuple[Store, ...], now: int) -> None:
        self.dice = random.Random(seed)
        # By dice of their own, so that schedules change nothing of what else is done.
        self.clock = random.Random(f"schedules of {seed}")
        self.stores = stores
        self.scene = Scene(store=stores[0], now=now)
        self.sessions: list[str] = []
        self.tasks: list[Submission] = []
        self.claims: list[Claimed] = []
        self.due: list[ScheduleRow] = []
        self.log: list[str] = []
        self.seen: set[str] = set()
        self.agents = [("tenant-blue", "agent-blue"), ("tenant-red", "agent-red")]

    async def on_both(self, what: str, act: Callable[[Store], Any]) -> Any:
        """Do the same on both stores, compare the answers, and answer the first."""
        self.log.append(what)
        answers = []
        for store in self.stores:
            try:
                answers.append(await act(store))
            except BatchRejected as error:
                answers.append(type(error))
        first, *others = (plain(answer) for answer in answers)
        for second in others:
            assert first == second, f"{first}\n is not\n{second}\n{self.told()}"
        self.seen.update(verdicts(answers[0]))
        return answers[0]

    def told(self) -> str:
        """Tell what was done."""
        return "after:\n" + "\n".join(self.log[-30:])

    async def schedule(self) -> None:
        """Put, pause, resume or delete one of a few schedules, with a revision that may be right."""
        tenant, agent = self.clock.choice(self.agents)
        name, by = self.clock.choice(["nightly", "hourly"]), self.clock.choice(["ann", "bob"])
        stands = await self.stores[0].read_schedule(tenant, name)
        revision = self.clock.choice([None, None, 0, 1, stands.revision if stands else 0])
        command: Any = self.clock.choice(["put", "put", "put", "pause", "resume", "delete"])
        next_at = self.scene.now + self.clock.choice([-HOUR, 0, 20 * SECOND, 2 * HOUR])
        if command != "put":
            change = SetSchedule(
                tenant=tenant, id=name, command=command, by=by, reason=self.clock.choice(["x", "y"]),
                next_at=next_at, revision=revision,
            )  # fmt: skip
            await self.on_both(f"{change}", lambda store: store.set_schedule(change, now=self.scene.now))
            return
        made = scheduling.schedule(
            self.scene, tenant=tenant, id=name, agent=agent, pool="pool-x", version="v1", deadline_us=None,
            overlap=self.clock.choice(["allow", "skip"]), missed=self.clock.choice(["once", "all"]),
            timing=self.clock.choice(['{"every_us":1}', '{"every_us":2}']),
        )  # fmt: skip
        if stands is not None and self.clock.random() < 0.3:
            made = stands.schedule
        asked = PutSchedule(schedule=made, next_at=next_at, by=by, reason="why", revision=revision)
        await self.on_both(f"{asked}", lambda store: store.put_schedule(asked, now=self.scene.now))
        await self.on_both("schedules", lambda store: store.list_schedules(tenant, limit=1))

    async def fire(self) -> None:
        """Take what is due, and fire what was taken now or some time ago."""
        request = DueRequest(limit=500, lease_us=30 * SECOND)
        due = await self.on_both("due", lambda store: store.due_schedules(request, now=self.scene.now))
        self.due += due.rows
        shots = [self.shot(row) for row in self.clock.sample(self.due, min(3, len(self.due)))]
        said = "\n    ".join(map(repr, shots))
        await self.on_both(f"fire\n    {said}", lambda store: store.fire_schedules(shots, now=self.scene.now))

    def shot(self, row: ScheduleRow) -> Firing:
        """Make a firing that may fit or not."""
        shot = scheduling.firing(self.scene, row)
        return self.clock.choice(
            [
                shot,
                shot,
                replace(shot, submission=None, note="left out"),
                replace(shot, next_at=shot.expected + SECOND),
                replace(shot, next_at=None),
                replace(shot, instant=self.scene.now + self.clock.choice([0, 1])),
            ]
        )

    async def step(self) -> None:
        """Do one thing."""
        kinds = self.kinds()
        [kind] = self.dice.choices(list(kinds), list(kinds.values()))
        await kind()
        if self.clock.random() < 0.2:
            await self.clock.choice([self.schedule, self.fire])()

    def kinds(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Answer what may be done, and how often."""
        return {
            self.submit: 4,
            self.claim: 4,
            self.submit_and_claim: 2,
            self.flush: 12,
            self.settle: 4,
            self.note: 1,
            self.sweep: 3,
            self.renew: 3,
            self.retire: 1,
            self.reconcile: 1,
            self.publish: 2,
            self.look: 2,
            self.wait: 3,
        }

    async def submit(self) -> None:
        batch = self.batch()
        await self.on_both(f"submit {[r.task[-4:] for r in batch]}", lambda store: store.submit(batch))

    async def submit_and_claim(self) -> None:
        """Accept a batch and claim: where both are not to be had at once, one after the other."""
        batch, request = self.batch(), self.request()

        async def both(store: Store) -> list[Any]:
            answer = await store.submit_and_claim(batch, request, now=self.scene.now)
            # The model does not know it, and does the two.
            if not isinstance(answer, tuple):
                answer = await store.submit(batch), await store.claim(request, now=self.scene.now)
            return [*answer[0], answer[1]]

        said = f"submit and claim {[r.task[-4:] for r in batch]} {request.session} {request.serves}"
        *_, reply = await self.on_both(said, both)
        await self.took(reply)

    def batch(self) -> list[Submission]:
        """Make tasks, some of which are there already."""
        batch = []
        for _ in range(self.dice.randint(1, 3)):
            tenant, agent = self.dice.choice(self.agents)
            record = self.scene.submission(
                tenant=tenant,
                agent=agent,
                pool="pool-x",
                priority=self.dice.choice([0, 0, 7, -2]),
                announce=self.dice.random() < 0.4,
                version=self.dice.choice(["", "", "v1", "v2"]),
                # Waits are tens of seconds, so the few by which the databases' clocks differ do not decide.
                deadline_us=self.dice.choice([None, 2 * HOUR + 5 * SECOND, 5 * HOUR + 5 * SECOND]),
                run_at=self.dice.choice([None, None, None, self.scene.now + 2 * HOUR]),
            )
            if self.tasks and self.dice.random() < 0.3:
                other = self.dice.choice(self.tasks)
                record = self.dice.choice(
                    [
                        other,
                        replace(record, tenant=other.tenant, key=other.key),
                        replace(
                            record, tenant=other.tenant, key=other.key, request_digest=other.request_digest
                        ),
                        replace(other, tenant="tenant-green"),
                    ]
                )
            batch.append(record)
        self.tasks += [record for record in batch if record.agent in ("agent-blue", "agent-red")]
        return batch

    async def renew(self) -> None:
        if not self.sessions or self.dice.random() < 0.4:
            self.sessions.append(f"ses_{self.scene.number()}")
        session = self.dice.choice(self.sessions)
        renewal = SessionRenewal(
            session=session, name=f"n-{session}", ttl_us=self.dice.choice([60, 7200, 90_000]) * SECOND
        )
        await self.on_both(f"renew {session}", lambda s: s.renew(renewal, now=self.scene.now))

    async def claim(self) -> None:
        request = self.request()
        reply = await self.on_both(
            f"claim {request.session} {request.serves}", lambda s: s.claim(request, now=self.scene.now)
        )
        await self.took(reply)

    def request(self) -> ClaimRequest:
        """Ask for a claim, by a session that may live or not."""
        session = self.dice.choice([*self.sessions, "ses_none"])
        _, agent = self.dice.choice(self.agents)
        serves = self.dice.choice(
            [
                (Serves(agent=agent, version="v1"),),
                (Serves(agent=agent, version="v2"), Serves(agent=agent, version="v1", default=False)),
                (Serves(agent=agent, version="v2", default=False),),
            ]
        )
        # All there is: whose turn comes first is the one thing about which stores may differ.
        return ClaimRequest(
            session=session, pools=("pool-x",), serves=serves, limit=500, fence=self.dice.choice([3, 3, 2])
        )

    async def took(self, reply: ClaimReply) -> None:
        """Load what was claimed, and go on with it."""
        self.claims += reply.claims
        if reply.claims:
            loaded = await self.on_both(
                "load", lambda store: store.load(sorted(reply.claims, key=lambda c: c.task))
            )
            assert set(reply.loaded) <= set(loaded), self.told()

    async def flush(self) -> None:
        if not self.claims:
            return
        chosen = {(c.tenant, c.task): c for c in self.dice.sample(self.claims, min(3, len(self.claims)))}
        writes = []
        for claimed in chosen.values():
            rows = await self.stores[0].list_operations(
                OperationFilter(tenant=claimed.tenant, task=claimed.task)
            )
            entries = [self.entry(claimed, rows) for _ in range(self.dice.randint(1, 4))]
            ends = [n for n, entry in enumerate(entries) if isinstance(entry, EndAttempt)]
            if ends:
                last = entries[ends[0]]
                entries = [*entries[: ends[0]], *self.on_record(last), last]
            writes.append(self.scene.writes(claimed, *entries))
        batch = self.scene.batch(*self.arranged(writes))
        for _ in range(self.dice.choice([1, 1, 1, 2])):
            said = "\n    ".join(repr(entry) for one in batch.writes for entry in one.entries)
            await self.on_both(f"flush\n    {said}", lambda store: store.flush(batch, now=self.scene.now))

    def arranged(self, writes: list[TaskWrites]) -> list[TaskWrites]:
        """Change what is written in one batch, where it may not be written together."""
        return writes

    def on_record(self, end: Entry) -> list[Entry]:
        """Put on record what a suspension waits for, as workers do."""
        assert isinstance(end, EndAttempt)
        if end.reason in ("signal", "child"):
            due_in_us = self.dice.choice([None, None, HOUR])
            return [self.scene.wait(end.reason, due_in_us=due_in_us)]
        return [self.scene.ask()] if end.reason == "approval" else []

    def entry(self, claimed: Claimed, rows: list[OperationRow]) -> Entry:
        """Make an entry that may fit or not."""
        scene, dice = self.scene, self.dice
        events = (scene.event(),) if dice.random() < 0.3 else ()
        row = dice.choice(rows) if rows and dice.random() < 0.8 else None
        key = row.key if row else f"op-{dice.randint(1, 6)}"
        attempt, turn = (row.attempt, row.turn) if row else (0, 0)
        if dice.random() < 0.1:
            turn += dice.choice([-1, 1])
        kind = dice.choice(
            ["record", "intent", "intent", "outcome", "outcome", "turn", "events", "note", "end"]
        )
        if kind == "record":
            state = dice.choice(["succeeded", "failed", "planned", "running"])
            if state == "running":
                return scene.timer(
                    key, due_in_us=dice.choice([0, HOUR]), position=dice.randint(1, 9), events=events
                )
            return scene.step(
                key,
                state=state,
                kind=dice.choice(["step", "tool"]),
                position=dice.randint(1, 9),
                events=events,
            )
        if kind == "intent":
            return scene.intent(
                key,
                attempt=attempt,
                turn=turn,
                kind=dice.choice(["tool", "model"]),
                position=dice.randint(1, 9),
                # Shorter than what is left of a task's time whenever there is any, so that it is exact.
                timeout_us=4 * SECOND,
                visible_us=turn % 3 * SECOND,
                events=events,
            )
        if kind == "outcome":
            state = dice.choice(["succeeded", "failed", "unknown", "planned"])
            return RecordOutcome(
                key=key,
                attempt=attempt,
                turn=turn,
                state=state,  # type: ignore[arg-type]
                result=scene.text("result") if state == "succeeded" else None,
                error=scene.text("error") if state in ("failed", "unknown") else None,
                settled_by=dice.choice([None, "worker"]),
                sender_gone=turn % 2 == 0,
                events=events,
            )
        if kind == "turn":
            return TakeTurn(
                key=key, attempt=attempt, turn=turn, reason=f"reason-{scene.number()}", events=events
            )
        if kind == "events" or (kind == "note" and row is None):
            return AppendEvents(events=(scene.event("log"), scene.event()))
        if kind == "note":
            return Note(key=key, attempt=attempt, source="asked", data=scene.text("note"))
        reopen = tuple(r.key for r in rows if dice.random() < 0.5)
        return dice.choice(
            [
                scene.success(events=events),
                scene.failure(events=events),
                scene.failure(attempt_end="cancelled", task_state="cancelled"),
                scene.release(),
                scene.failure(task_state="queued", error=None, reopen=reopen),
                scene.failure(task_state="waiting", reason="timer", wake_in_us=HOUR, reopen=reopen),
                scene.suspension("timer", wake_in_us=dice.choice([0, HOUR]), facts=dice.randint(0, 2)),
                scene.suspension("timer", facts=dice.randint(0, 2)),
                scene.suspension("reconciliation", facts=dice.randint(0, 2), events=events),
                scene.suspension(dice.choice(["signal", "operator", "child"]), facts=dice.randint(0, 3)),
            ]
        )

    async def operations(self) -> list[dict[str, Any]]:
        return [*(await self.stores[0].dump())["operations"]]

    async def settle(self) -> None:
        rows = await self.operations()
        unknown = [row for row in rows if row["state"] == "unknown"]
        settlements = []
        for row in self.dice.sample(rows, min(2, len(rows))) + self.dice.sample(
            unknown, min(2, len(unknown))
        ):
            settlements.append(
                self.scene.settlement(
                    TaskRef(tenant=row["tenant"], task=row["task"]),
                    self.dice.choice([row["key"], row["key"], row["key"], "missing"]),
                    self.dice.choice(["happened", "did_not_happen", "send_again"]),
                    turn=self.dice.choice([None, row["turn"], row["turn"] + 1]),
                    forced=self.dice.random() < 0.3,
                    by=self.dice.choice(["person:ann", "settler"]),
                )
            )
        said = "\n    ".join(repr(one) for one in settlements)
        await self.on_both(f"settle\n    {said}", lambda store: store.settle(settlements, now=self.scene.now))

    async def note(self) -> None:
        rows = await self.operations()
        pieces = [
            Evidence(
                tenant=row["tenant"],
                task=row["task"],
                key=row["key"],
                attempt=1,
                source="late",
                data=self.scene.text("d"),
            )
            for row in self.dice.sample(rows, min(3, len(rows)))
        ]
        await self.on_both("note", lambda store: store.note(pieces, now=self.scene.now))

    async def sweep(self) -> None:
        request = SweepRequest(max_deaths=self.dice.choice([1, 2, 3]), grace_us=self.dice.choice([0, HOUR]))
        await self.on_both(f"sweep {request}", lambda store: store.sweep(request, now=self.scene.now))

    async def retire(self) -> None:
        session = self.dice.choice([*self.sessions, "ses_none"])
        await self.on_both(f"retire {session}", lambda store: store.retire(session))

    async def reconcile(self) -> None:
        session = self.dice.choice([*self.sessions, "ses_none"])
        held = [
            Held(tenant=c.tenant, task=c.task, epoch=c.epoch) for c in self.claims if self.dice.random() < 0.7
        ]
        fence = self.dice.choice([1, 2, 3])
        await self.on_both(
            f"reconcile {session}",
            lambda store: store.reconcile(session, held, fence=fence, now=self.scene.now),
        )

    async def publish(self) -> None:
        messages = await self.stores[0].take_messages(500, now=self.scene.now)
        theirs = await self.stores[-1].take_messages(500, now=self.scene.now)
        # Which of two tasks is older is by the databases' own clocks.
        assert sorted(map(message_name, messages)) == sorted(map(message_name, theirs)), self.told()
        said = [
            Publication(
                tenant=m.tenant,
                task=m.task,
                number=m.number,
                parked=self.dice.choice([None, None, "too large"]),
            )
            for m in messages
            if self.dice.random() < 0.5
        ]
        await self.on_both("confirm", lambda store: store.confirm_messages(said))

    async def look(self) -> None:
        tenant, agent = self.dice.choice(self.agents)
        state = self.dice.choice([None, "queued", "waiting", "failed"])
        for query in (
            TaskFilter(tenant=tenant, state=state, limit=7),
            TaskFilter(tenant=tenant, agent=agent),
        ):
            await self.on_both(f"{query}", lambda store, query=query: store.list_tasks(query))  # type: ignore[misc]
        queue = OperationFilter(tenant=tenant, state="unknown", limit=5)
        await self.on_both(f"{queue}", lambda store: store.list_operations(queue))
        if self.tasks:
            one = self.dice.choice(self.tasks)
            ref, cursor = (
                TaskRef(tenant=one.tenant, task=one.task),
                EventCursor(tenant=one.tenant, task=one.task),
            )
            await self.on_both("events", lambda store: store.read_events([cursor]))
            await self.on_both("attempts", lambda store: store.read_attempts(ref))
            await self.on_both("end", lambda store: store.read_ends([ref]))

    async def wait(self) -> None:
        self.log.append(
            f"wait until {self.scene.pass_time(self.dice.choice([10, 30, 70, 3600, 7300]) * SECOND)}"
        )


def verdicts(answer: Any) -> set[str]:
    """Name what an answer says, for the test that the programs are worth something."""
    found = set()
    for one in answer if isinstance(answer, list) else [answer]:
        name = type(one).__name__
        if hasattr(one, "kind") and not isinstance(one, EventRow):
            found.add(f"{name} {one.kind}")
            found.update(f"refused {refusal}" for _, refusal in getattr(one, "refusals", ()))
        for part in (
            "refused",
            "claims",
            "lost",
            "parked",
            "woken",
            "expired",
            "alive",
            "told",
            "cancelled",
            "loaded",
        ):
            if hasattr(one, part):
                found.add(f"{name} {part} {bool(getattr(one, part))}")
    return found


def message_name(message: Any) -> tuple[str, str, int, str, str]:
    return message.tenant, message.task, message.number, message.topic, json.dumps(json.loads(message.data))


def plain(answer: Any) -> Any:
    """Take away what stores may differ in, and the order where the contract gives none."""
    if is_dataclass(answer) and not isinstance(answer, type):
        row = asdict(answer)
        for name in row:
            value = row[name]
            if name in ("submitted_at", "next_due_us") or (name == "deadline_at" and "request" not in row):
                row[name] = None
            elif name in ("claims", "sessions", "lost", "parked", "woken", "expired"):
                row[name] = sorted(json.dumps(plain_row(one)) for one in value)
            elif name == "loaded":
                row[name] = sorted(json.dumps({**one, "submitted_at": None}) for one in value)
            elif name in ("data", "error"):
                row[name] = json_of(value, name)
            elif name == "detail":
                # A refusal says why, in the store's own words.
                row[name] = bool(value)
            elif name == "operations":
                row[name] = [without_birth(one) for one in value]
        if row.get("kind") in ("task.submitted", "operation.started"):
            row["at"] = None
        if row.get("kind") in ("stale", "deferred"):
            row["state"] = None
        return without_birth(row)
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    return answer


def without_birth(row: dict[str, Any]) -> dict[str, Any]:
    """Take away when a child was put on record, which is when it was submitted."""
    return {**row, "created_at": None} if str(row.get("key")).startswith("spawn-") else row


def plain_row(row: Any) -> Any:
    return {**row, "deadline_at": None} if isinstance(row, dict) else row


def json_of(text: Any, name: str) -> Any:
    """Read JSON text; of an error that a store has made only the code is the same."""
    if text is None:
        return None
    value = json.loads(text)
    return {"code": value["code"]} if name == "error" and "message" in value else value


def comparable(dump: Dump) -> dict[str, Any]:
    """Take away from a dump what stores may differ in."""
    queued = {(row["tenant"], row["id"]) for row in dump["tasks"] if row["state"] == "queued"}
    found: dict[str, Any] = {
        "queue": sorted({(r["tenant"], r["task"]) for r in dump["queue"]} & queued),
        "writers": sorted((row["id"], row["number"]) for row in dump["writers"]),
    }
    for table, rows in dump.items():
        if table in ("queue", "writers", "lanes", "migrations", "sequences"):
            continue
        kept = []
        for row in rows:
            row = dict(row)
            row.pop("lane", None)
            if table in ("inputs", "tasks"):
                row.pop("submitted_at", None)
                row.pop("deadline_at", None)
            if table == "timers" and row["kind"] == "deadline":
                row.pop("due_at")
            if table == "events" and row["kind"] in ("task.submitted", "operation.started"):
                row.pop("at")
            if table == "operations":
                row = without_birth(row)
            if table == "outbox" and row["topic"] == "task.submitted":
                row.pop("created_at")
            if table == "posts":
                row.pop("seq")
            if table == "approvals" and isinstance(row["roles"], str):
                row["roles"] = json.loads(row["roles"])
            for name in ("data", "error"):
                if name in row:
                    row[name] = json_of(row[name], name)
            for name, value in row.items():
                if isinstance(value, bool):
                    row[name] = int(value)
            kept.append(json.dumps(row, sort_keys=True))
        found[table] = sorted(kept)
    return found
