"""What becomes of the model's tasks by retry, fork and adoption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.contract.model.kept import CALLS, FOREVER, Kept, Operation, Task

from outlast.store.changing import Acceptance, Accepted, Adopt, Adopted, Fork, Forked, Retried, Retry
from outlast.store.records import TaskRef


class Changing(Kept):
    """The verbs of change."""

    def retry(self, requests: Sequence[Retry], now: int) -> list[Retried]:
        """Open the next round of tasks that failed or were cancelled."""
        return [self._retry(one, now) for one in requests]

    def _retry(self, one: Retry, now: int) -> Retried:
        task = self.tasks.get((one.tenant, one.task))
        if task is None:
            return Retried(kind="not_found")
        if task.state not in ("failed", "cancelled"):
            return Retried(kind="not_ended", state=task.state, round=task.round)
        undos = [one for one in task.operations.values() if one.kind == "compensation"]
        if any(undo.state in ("succeeded", "unknown") for undo in undos):
            return Retried(kind="undone", state=task.state, round=task.round)
        for key in one.reopen:
            if key in task.operations:
                task.operations[key].reopen()
        task.round += 1
        task.deadline_at = None if one.deadline_us is None else now + one.deadline_us
        self._queue(task, "task.retried")
        return Retried(kind="retried", state="queued", round=task.round)

    def fork(self, requests: Sequence[Fork], now: int) -> list[Forked]:
        """Make tasks from prefixes of journals in which everything has ended."""
        return [self._fork(one, now) for one in requests]

    def _fork(self, one: Fork, now: int) -> Forked:
        if (one.tenant, one.new) in self.tasks:
            return Forked(kind="forked")
        holder = self.keys.get((one.tenant, one.key)) if one.key is not None else None
        if holder is not None:
            same = self.tasks[holder].record.request_digest == one.digest
            return Forked(kind="replayed" if same else "conflict", task=holder[1])
        task = self.tasks.get((one.tenant, one.task))
        if task is None:
            return Forked(kind="not_found")
        before = FOREVER
        if one.before is not None:
            if one.before not in task.operations:
                return Forked(kind="no_operation")
            before = task.operations[one.before].position
        prefix = dict(self._in_order(task, before))
        unsettled = [
            key
            for key, operation in prefix.items()
            if operation.state not in ("succeeded", "failed")
            or self._undo(task, key) in ("succeeded", "unknown")
        ]
        if unsettled:
            return Forked(kind="unsettled", keys=tuple(unsettled))
        # What was sent behind it, but for what was undone; and what it has not taken over itself.
        issued = {
            key: replace(operation, sent=operation.sent or f"{one.task}:{key}")
            for key, operation in task.operations.items()
            if operation.position >= before
            and operation.kind in CALLS
            and operation.attempt > 0
            and self._undo(task, key) != "succeeded"
        }
        issued |= {key: replace(one) for key, one in task.issued.items() if key not in task.operations}
        self.tasks[one.tenant, one.new] = Task(
            record=replace(
                task.record,
                task=one.new,
                key=one.key,
                parent=None,
                request_digest=one.digest or f"fork:{one.task}",
            ),
            deadline_at=None if one.deadline_us is None else now + one.deadline_us,
            version=task.version if one.version is None else one.version,
            events=["task.submitted"],
            operations={
                key: replace(
                    operation,
                    sent=operation.sent or (f"{one.task}:{key}" if operation.attempt else None),
                    words=(),
                )
                for key, operation in prefix.items()
                # Which branch is first is on record behind what lost its race, and may be another.
                if one.before is None or not operation.lost
            },
            issued=issued,
        )
        for key in prefix:
            self.business.copy((one.tenant, one.task, key), (one.tenant, one.new, key))
        if one.key is not None:
            self.keys[one.tenant, one.key] = (one.tenant, one.new)
        self._announce((one.tenant, one.new), self.tasks[one.tenant, one.new])
        return Forked(kind="forked")

    @staticmethod
    def _undo(task: Task, key: str) -> str | None:
        """Answer how the undoing of an operation stands."""
        undo = task.operations.get(f"{key}/undo")
        return undo.state if undo is not None and undo.kind == "compensation" else None

    @staticmethod
    def _in_order(task: Task, before: int) -> Iterator[tuple[str, Operation]]:
        for key, operation in sorted(task.operations.items(), key=lambda one: (one[1].position, one[0])):
            if operation.position < before:
                yield key, operation

    def adopt(self, requests: Sequence[Adopt]) -> list[Adopted]:
        """Bind tasks to another version, by compare-and-set on what was seen."""
        return [self._adopt(one) for one in requests]

    def _adopt(self, one: Adopt) -> Adopted:
        task = self.tasks.get((one.tenant, one.task))
        if task is None:
            return Adopted(kind="not_found")
        if not task.live:
            return Adopted(kind="ended", state=task.state)
        if task.state == "running":
            return Adopted(kind="running", state="running")
        seen = (one.seen_version, one.seen_epoch, one.seen_event)
        if seen != (task.version, task.epoch, len(task.events)):
            return Adopted(kind="moved", state=task.state)
        task.version = one.version
        if task.state == "queued" or task.epoch > 0:
            task.wake_at = None
            self._queue(task, "task.adopted")
        else:
            task.say("task.adopted")
        return Adopted(kind="adopted", state=task.state)

    def wake(self, ref: TaskRef) -> bool:
        """Let a task that waits for an operator try again."""
        task = self.tasks.get((ref.tenant, ref.task))
        if task is None or (task.state, task.reason) != ("waiting", "operator"):
            return False
        task.wake_at = None
        self._queue(task, "task.woken")
        return True

    def accept(self, verdicts: Sequence[Acceptance]) -> list[Accepted]:
        """Judge work that has succeeded, by compare-and-set on the words that were seen."""
        return [self._accept(one) for one in verdicts]

    def _accept(self, one: Acceptance) -> Accepted:
        task = self.tasks.get((one.tenant, one.task))
        if task is None:
            return Accepted(kind="not_found")
        if task.state != "succeeded":
            return Accepted(kind="not_ended", state=task.state)
        said = [verdict for round_, verdict in task.verdicts if round_ == task.round]
        if len(said) != one.seen or said[-1:] == [one.verdict]:
            return Accepted(kind="conflict", number=len(said), state=task.state)
        task.judge(one.verdict)
        return Accepted(kind="recorded", number=len(said) + 1, state=task.state)
