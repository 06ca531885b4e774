"""What the model keeps: tasks and all that belongs to them, and what happens to a head whoever does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.contract.model.keys import Keys

from outlast.store.approving import Rule
from outlast.store.entries import AskApproval, Flushed
from outlast.store.records import Submission
from outlast.store.scheduling import ScheduleRow

FINAL = ("succeeded", "failed", "cancelled")
CALLS = ("tool", "model", "compensation")
WAITS = ("timer", "signal", "child")
FOREVER = 1 << 62

Name = tuple[str, str]
"""Tenant and id of a task."""


@dataclass
class Operation:
    """One durable thing. open: it is in the reconciliation queue; resend: to be sent again; gone: its outcome
    said that whoever sent it cannot send any more. lost: it ended since another branch was first. sent: the
    key of another task's that it goes on under."""

    kind: str
    position: int
    state: str
    attempt: int = 0
    turn: int = 0
    deadline_at: int | None = None
    visible_at: int | None = None
    due_at: int | None = None
    settled_by: str | None = None
    open: bool = False
    resend: bool = False
    gone: bool = False
    lost: bool = False
    sent: str | None = None
    effect: str | None = None
    # Attempts that are said to have happened, since a person has settled it.
    words: tuple[int, ...] = ()

    @property
    def happened(self) -> bool:
        """Whether it is said to have happened, and that matters."""
        return self.effect not in (None, "read") and any(1 <= one <= self.attempt for one in self.words)

    def reopen(self) -> None:
        """Have a failed one made again."""
        if self.state == "failed":
            self.state, self.settled_by, self.lost = "planned", None, False

    @property
    def fresh(self) -> bool:
        """Whether nothing was sent for it and it has not ended: a record may replace it."""
        return self.state in ("planned", "approved") or (self.state == "running" and self.attempt == 0)


@dataclass
class Question:
    """One question to people. words: what was said, as (who, verdict, fingerprint)."""

    ask: AskApproval
    fingerprint: str
    expires_at: int | None
    state: str = "pending"
    votes: int = 0
    answer: str | None = None
    words: list[tuple[str, str, str]] = field(default_factory=list)
    spent: bool = False

    @property
    def open(self) -> bool:
        """Whether somebody may still decide it, or act on it."""
        return self.state == "pending" or (self.state == "approved" and self.ask.subject == "call")


@dataclass
class Row:
    """What lies before a task, under its number."""

    kind: str
    name: str
    key: str | None = None
    digest: str = ""
    taken_by: str | None = None


@dataclass
class Lease:
    """A worker's right to a task. news: facts that it has not heard of."""

    epoch: int
    session: str
    news: int = 0


@dataclass
class Task:
    """A task: its head, and all that belongs to it."""

    record: Submission
    version: str
    state: str = "queued"
    reason: str | None = None
    epoch: int = 0
    round: int = 1
    facts: int = 0
    cancelling: bool = False
    undoing: bool = False
    deadline_at: int | None = None
    wake_at: int | None = None
    children: int = 0
    events: list[str] = field(default_factory=list)
    operations: dict[str, Operation] = field(default_factory=dict)
    questions: dict[tuple[str, int], Question] = field(default_factory=dict)
    inbox: dict[int, Row] = field(default_factory=dict)
    # Calls behind the fork that this one began as, which it may take over.
    issued: dict[str, Operation] = field(default_factory=dict)
    attempts: list[tuple[int, str]] = field(default_factory=list)
    lease: Lease | None = None
    # What was said of the work of each round, the last word last.
    verdicts: list[tuple[int, str]] = field(default_factory=list)
    # Attempts at operations, by key and number, that said to send nothing any more.
    over: set[tuple[str, int]] = field(default_factory=set)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state not in FINAL

    @property
    def cut(self) -> bool:
        """Whether nothing is left but to end as cancelled."""
        return self.cancelling and not self.undoing

    def has_ended(self, key: str) -> bool:
        """Answer whether an operation has ended."""
        there = self.operations.get(key)
        return there is not None and there.state in ("succeeded", "failed")

    def say(self, kind: str) -> None:
        """Append an event."""
        self.events.append(kind)

    def judge(self, verdict: str) -> None:
        """Keep a word on the work of this round."""
        self.verdicts.append((self.round, verdict))
        self.say(f"task.{verdict}")


@dataclass
class Session:
    """A worker process."""

    expires_at: int
    lost: bool = False
    fence: int = 0


class Kept:
    """All that is kept."""

    def __init__(self) -> None:
        self.tasks: dict[Name, Task] = {}
        self.keys: dict[Name, Name] = {}
        self.sessions: dict[str, Session] = {}
        self.posts: list[tuple[Name, str, str]] = []
        self.batches: dict[str, tuple[int, list[Flushed]]] = {}
        self.rules: dict[int, Rule] = {}
        # The version of each tool's list of rules, out of one row of numbers.
        self.versions: dict[Name, int] = {}
        self.business = Keys()
        # Until when a provider asked everybody of a tenant to wait.
        self.waits: dict[Name, int] = {}
        # Why and by whom, by tenant and scope; and whom each switch has held back.
        self.switches: dict[Name, tuple[str, str]] = {}
        self.held: set[tuple[Name, Name]] = set()
        # Task and last event of each, by tenant, provider, session and run.
        self.outside: dict[tuple[str, str, str, str], tuple[str, str | None]] = {}
        self.schedules: dict[Name, ScheduleRow] = {}
        # Until when a schedule that was due is left alone.
        self.taken: dict[Name, int] = {}
        # Topic, and why it is parked, by tenant, task and number of the event that it tells.
        self.outbox: dict[tuple[str, str, int], tuple[str, str | None]] = {}
        self._changes = 0

    # -- what becomes of a head ----------------------------------------------------------------------------

    def _queue(self, task: Task, said: str) -> None:
        task.state, task.reason = "queued", None
        task.say(said)

    def _take_away(self, name: Name, task: Task, end: str, said: str | None = None) -> None:
        """End the attempt of a task."""
        assert task.lease is not None
        task.attempts.append((task.round, end))
        task.lease = None
        task.say(said or f"attempt.{end}")

    def _end(self, name: Name, task: Task, state: str) -> None:
        """End a task: nobody knows of what it was doing, nobody decides its questions any more."""
        for key, operation in task.operations.items():
            if operation.state == "running" and operation.kind in CALLS:
                operation.state, operation.open = "unknown", True
            operation.resend = False
            if operation.state not in ("running", "unknown"):
                self.business.give_up((*name, key))
        self.held = {one for one in self.held if one[1] != name}
        for _, question in sorted(task.questions.items()):
            if question.open:
                question.state = "withdrawn"
                task.say("approval.withdrawn")
        # Whoever ran it is fenced off, unless it was the one that ended it.
        task.epoch += task.state == "running"
        task.state, task.reason = state, None
        task.cancelling = task.undoing = False
        task.deadline_at = task.wake_at = None
        task.say(f"task.{state}")
        self._announce(name, task)
        if task.record.parent is not None:
            self.posts.append(((name[0], task.record.parent.task), "child", task.record.parent.key))
        for kid, other in sorted(self.tasks.items()):
            of = other.record.parent
            if of and (kid[0], of.task) == name and not of.detached and other.live:
                self.posts.append((kid, "cancel", name[1]))

    def _announce(self, name: Name, task: Task) -> None:
        """Write a message that says a task's last event, where it is announced."""
        if task.record.announce:
            self.outbox[*name, len(task.events)] = (task.events[-1], None)

    def _raise(self, task: Task, more: int, *, operators: bool = True) -> None:
        """Facts have come: a task that waits goes on, the worker of one that runs is told."""
        task.facts += more
        if task.state == "waiting" and task.epoch > 0 and (operators or task.reason != "operator"):
            task.wake_at = None
            self._queue(task, "task.woken")
        elif task.lease is not None:
            task.lease.news = task.facts

    # -- what can be seen ----------------------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        """Answer what there is, in the shape of ``seen_in``."""
        found: dict[str, Any] = {
            "tasks": {}, "operations": {}, "questions": {}, "inbox": {}, "leases": {}, "issued": {},
            "verdicts": {},
        }  # fmt: skip
        for name, task in self.tasks.items():
            found["tasks"][name] = (
                task.state, task.reason, task.epoch, task.round, task.facts, task.cancelling, task.undoing,
                task.children, task.events,
            )  # fmt: skip
            for key, one in task.operations.items():
                gone = one.open and (one.gone or (key, one.attempt) in task.over)
                found["operations"][*name, key] = (
                    one.state, one.attempt, one.turn, one.lost, one.sent,
                    (one.resend, gone) if one.open else None,
                )  # fmt: skip
            for (key, number), question in task.questions.items():
                found["questions"][*name, key, number] = (question.state, question.votes, question.spent)
            for key, one in task.issued.items():
                found["issued"][*name, key] = (one.kind, one.state, one.attempt, one.turn, one.sent)
            for number, row in task.inbox.items():
                found["inbox"][*name, number] = (row.kind, row.name, row.taken_by)
            if task.lease is not None:
                found["leases"][name] = (task.lease.epoch, task.lease.session, task.lease.news)
            found["verdicts"][name] = task.verdicts
        found["sessions"] = {name: one.lost for name, one in self.sessions.items()}
        found["schedules"] = {
            name: (row.revision, row.next_at, row.last_task, row.fired, row.skipped, self.taken.get(name, 0))
            for name, row in self.schedules.items()
        }
        found["outbox"] = self.outbox
        found["switches"] = self.switches
        found["waits"] = self.waits
        found["outside"] = self.outside
        found["held"] = {(*switch, *name): True for switch, name in self.held}
        found["keys"] = {of: (one.name, one.state, one.until) for of, one in self.business.rows.items()}
        return found


def seen_in(dump: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Answer what a store's dump shows of all that the model knows."""
    events: dict[Name, list[str]] = {}
    for row in sorted(dump["events"], key=lambda one: int(one["number"])):
        events.setdefault((row["tenant"], row["task"]), []).append(row["kind"])
    open_ = {
        (row["tenant"], row["task"], row["key"]): (bool(row["resend"]), bool(row["sender_gone"]))
        for row in dump["unsettled"]
    }
    found: dict[str, Any] = {"tasks": {}, "operations": {}, "questions": {}, "inbox": {}, "leases": {}}
    for row in dump["tasks"]:
        name = (row["tenant"], row["id"])
        found["tasks"][name] = (
            row["state"], row["reason"], row["epoch"], row["round"], row["facts"], bool(row["cancelling"]),
            bool(row["undoing"]), row["children"], events.get(name, []),
        )  # fmt: skip
    for row in dump["operations"]:
        of = (row["tenant"], row["task"], row["key"])
        found["operations"][of] = (
            row["state"],
            row["attempt"],
            row["turn"],
            bool(row["lost"]),
            row["idempotency_key"],
            open_.get(of),
        )
    for row in dump["approvals"]:
        question = (row["tenant"], row["task"], row["key"], row["number"])
        found["questions"][question] = (row["state"], row["votes"], bool(row["spent"]))
    for row in dump["inbox"]:
        found["inbox"][row["tenant"], row["task"], row["number"]] = (
            row["kind"],
            row["name"],
            row["taken_by"],
        )
    for row in dump["leases"]:
        found["leases"][row["tenant"], row["task"]] = (row["epoch"], row["session"], row["news"])
    found["sessions"] = {row["id"]: row["lost_at"] is not None for row in dump["sessions"]}
    found["outside"] = {
        (row["tenant"], row["provider"], row["session"], row["run"]): (row["task"], row["last_event"])
        for row in dump["outside"]
    }
    found["schedules"] = {
        (row["tenant"], row["id"]): tuple(
            row[part] for part in ("revision", "next_at", "last_task", "fired", "skipped", "taken_until")
        )
        for row in dump["schedules"]
    }
    found["outbox"] = {
        (row["tenant"], row["task"], row["number"]): (row["topic"], row["parked"]) for row in dump["outbox"]
    }
    found["issued"] = {
        (row["tenant"], row["task"], row["key"]): tuple(
            row[part] for part in ("kind", "state", "attempt", "turn", "idempotency_key")
        )
        for row in dump["issued"]
    }
    found["verdicts"] = {name: [] for name in found["tasks"]}
    for row in sorted(dump["acceptances"], key=lambda one: (one["round"], one["number"])):
        found["verdicts"][row["tenant"], row["task"]].append((row["round"], row["verdict"]))
    found["waits"] = {(row["tenant"], row["provider"]): row["until_at"] for row in dump["provider_waits"]}
    found["switches"] = {
        (row["tenant"], row["scope"]): (row["reason"], row["by_whom"]) for row in dump["pauses"]
    }
    found["held"] = {
        (row["by_tenant"], row["scope"], row["tenant"], row["task"]): True for row in dump["held_tasks"]
    }
    found["keys"] = {
        (row["tenant"], row["task"], row["key"]): (
            (row["tenant"], row["tool"], row["value"]),
            row["state"],
            row["until_at"],
        )
        for row in dump["business_keys"]
    }
    return found
