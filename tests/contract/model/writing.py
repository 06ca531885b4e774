"""The model's journal: what workers write under their leases."""

from __future__ import annotations

from tests.contract.model.gates import Gates
from tests.contract.model.kept import FINAL, FOREVER, WAITS, Name, Operation, Question, Task

from outlast.store.entries import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    Batch,
    CommitIntent,
    EndAttempt,
    Entry,
    ExpireApproval,
    Flushed,
    Note,
    RecordOperation,
    RecordOutcome,
    TakeTurn,
    TaskWrites,
)


class Writing(Gates):
    """The verb ``flush``."""

    def flush(self, batch: Batch, now: int) -> list[Flushed]:
        """Write a numbered batch once, each task's part under its own fence."""
        number, verdicts = self.batches.get(batch.writer, (0, []))
        if number != batch.number:
            verdicts = [self._write(one, now) for one in batch.writes]
            self.batches[batch.writer] = (batch.number, verdicts)
        return verdicts

    def _write(self, writes: TaskWrites, now: int) -> Flushed:
        name = (writes.tenant, writes.task)
        task = self.tasks.get(name)
        if task is None or (task.state, task.epoch) != ("running", writes.epoch):
            return Flushed(kind="stale")
        refusals = []
        for index, entry in enumerate(writes.entries):
            refused = self._enter(name, task, entry, now)
            if refused is not None:
                refusals.append((index, refused))
        return Flushed(kind="accepted", refusals=tuple(refusals), state=task.state)  # type: ignore[arg-type]

    def _enter(self, name: Name, task: Task, entry: Entry, now: int) -> str | None:
        """Write one entry; answer the name of its refusal."""
        said: list[str] = []
        match entry:
            case RecordOperation():
                self._record(name, task, entry, now)
            case CommitIntent():
                refused = self._intend(name, task, entry, now)
                if refused:
                    return refused
            case AdoptIssued():
                issued = task.issued.get(entry.key)
                if issued is None or entry.key in task.operations:
                    return None
                task.operations[entry.key] = Operation(
                    kind=issued.kind, position=entry.position, state="unknown", attempt=issued.attempt,
                    turn=issued.turn + 1, deadline_at=issued.deadline_at, visible_at=issued.visible_at,
                    open=True, sent=issued.sent, gone=issued.state in ("succeeded", "failed"),
                    effect=issued.effect,
                )  # fmt: skip
            case AttachSession():
                taken = self._attach(name, entry)
                if taken:
                    return taken
            case RecordOutcome() | TakeTurn():
                if not self._outcome(name, task, entry, now):
                    return "turn_passed"
            case AskApproval():
                asked = self._ask(task, entry, now)
                if asked is None:
                    return None
                said = asked
            case ExpireApproval():
                question = task.questions.get((entry.key, entry.number))
                if question and question.open and (question.expires_at or FOREVER) <= now:
                    question.state = "expired"
                    said = ["approval.expired"]
                elif question is None or question.state != "expired":
                    return "not_expired"
            case EndAttempt():
                self._end_attempt(name, task, entry, now)
                return None
            case AppendEvents() | Note():
                pass
            case _:
                raise AssertionError(f"{entry} is not modelled")
        for kind in [*(event.kind for event in getattr(entry, "events", ())), *said]:
            task.say(kind)
        return None

    def _record(self, name: Name, task: Task, entry: RecordOperation, now: int) -> None:
        """Put a record in the place of what nothing was sent for."""
        if entry.takes_end:
            self._take_end(name, task, entry.key)
        there = task.operations.get(entry.key)
        if there is not None and not there.fresh:
            return
        due_at = entry.due_at if entry.due_in_us is None else now + entry.due_in_us
        operation = there or Operation(kind=entry.kind, position=entry.position, state=entry.state)
        operation.kind, operation.state, operation.due_at = entry.kind, entry.state, due_at
        operation.settled_by, operation.lost = None, entry.lost
        task.operations[entry.key] = operation
        if operation.state in ("succeeded", "failed"):
            # It ends without a call.
            self.business.give_up((*name, entry.key))
        for number in entry.takes:
            if number in task.inbox and task.inbox[number].taken_by is None:
                task.inbox[number].taken_by = entry.key

    def _take_end(self, name: Name, task: Task, key: str) -> None:
        """Take what the end of a child has left, on its way or in the inbox."""
        if (name, "child", key) in self.posts:
            self.posts.remove((name, "child", key))
            return
        for row in task.inbox.values():
            if (row.kind, row.name, row.taken_by) == ("child", key, None):
                row.taken_by = key

    def _outcome(self, name: Name, task: Task, entry: RecordOutcome | TakeTurn, now: int) -> bool:
        """Take an operation's turn, by compare-and-set, and say what became of it."""
        operation = task.operations.get(entry.key)
        state = entry.state if isinstance(entry, RecordOutcome) else "unknown"
        if (
            operation is None
            or (operation.attempt, operation.turn) != (entry.attempt, entry.turn)
            or operation.state not in ("running", "unknown")
            or (operation.state == "unknown" and state == "planned")
            or (state in ("failed", "planned") and operation.happened)
        ):
            return False
        operation.state, operation.turn = state, operation.turn + 1
        operation.open = state == "unknown"
        operation.resend = operation.resend and operation.open
        self.business.end((*name, entry.key), state, now)
        if isinstance(entry, RecordOutcome):
            operation.settled_by = entry.settled_by
            operation.gone = operation.gone or entry.sender_gone
            if entry.wait is not None:
                of, until = (name[0], entry.wait[0]), now + entry.wait[1]
                self.waits[of] = max(self.waits.get(of, 0), until)
        operation.gone = operation.gone and operation.open
        return True

    def _ask(self, task: Task, entry: AskApproval, now: int) -> list[str] | None:
        """Put a question before people; None where there is nothing to ask."""
        if (entry.key, entry.number) in task.questions:
            return None
        there = task.operations.get(entry.key)
        expires_at = None if entry.expires_in_us is None else now + entry.expires_in_us
        question = entry.subject == "question"
        if there is None or there.fresh:
            operation = there or Operation(kind=entry.kind, position=entry.position, state="")
            operation.kind, operation.state = entry.kind, "running" if question else "planned"
            operation.due_at = expires_at if question else None
            task.operations[entry.key] = operation
        elif there.state != "unknown":
            return None
        said = []
        for (key, _), other in sorted(task.questions.items()):
            if key == entry.key and other.open:
                other.state = "withdrawn"
                said.append("approval.withdrawn")
        task.questions[entry.key, entry.number] = Question(
            ask=entry, fingerprint=entry.fingerprint, expires_at=expires_at
        )
        return [*said, "approval.requested"]

    def _end_attempt(self, name: Name, task: Task, entry: EndAttempt, now: int) -> None:
        """End an attempt, and with it the task, its wait, or nothing but the lease."""
        end, state = entry.attempt_end, entry.task_state
        if task.cut or (task.cancelling and state in FINAL):
            end = state = "cancelled"
        else:
            for key in entry.reopen:
                if key in task.operations:
                    task.operations[key].reopen()
        for event in entry.events:
            task.say(event.kind)
        self._take_away(name, task, end)
        if entry.judged is not None and state == "succeeded":
            task.judge(entry.judged[0])
        if state in FINAL:
            # Its own worker ends it: there is nobody to fence off.
            task.epoch -= 1
            self._end(name, task, state)
            return
        due_at = None
        if state == "waiting":
            dues = [
                one.due_at
                for one in task.operations.values()
                if one.state == "running" and one.kind in WAITS and one.due_at is not None
            ]
            if entry.wake_in_us is not None:
                own = now + entry.wake_in_us
                due_at = min([own, *dues]) if entry.at_latest else own
            else:
                due_at = min(dues, default=None)
            over = (
                task.facts > entry.facts
                or (entry.reason == "reconciliation" and not any(o.open for o in task.operations.values()))
                or (due_at is not None and due_at <= now)
                or (entry.reason == "timer" and due_at is None)
            )
            state = "queued" if over else "waiting"
        if state == "queued":
            self._queue(task, "task.queued")
        else:
            task.state, task.reason, task.wake_at = "waiting", entry.reason, due_at
            task.say("task.waiting")
