"""What the model accepts: tasks of callers, of parents and of schedules."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.model.kept import Kept, Operation, Task

from outlast.store.records import Submission, Submitted


class Submitting(Kept):
    """The verb ``submit``."""

    def submit(self, batch: Sequence[Submission], now: int) -> list[Submitted]:
        """Accept tasks; a key belongs to the first that came."""
        return [self._submit(record, now) for record in batch]

    def _submit(self, record: Submission, now: int) -> Submitted:
        name = (record.tenant, record.task)
        parent = None
        if record.parent is not None and name not in self.tasks:
            parent = self.tasks.get((record.tenant, record.parent.task))
            if (
                parent is None
                or (parent.state, parent.epoch) != ("running", record.parent.epoch)
                or parent.cancelling
            ):
                return Submitted(kind="stale", task=record.task)
        holder = self.keys.get((record.tenant, record.key)) if record.key is not None else None
        if holder is not None or name in self.tasks:
            first = self.tasks[holder or name]
            same = first.record.request_digest == record.request_digest
            if same and first.record.task == record.task and first.record.key == record.key:
                return Submitted(kind="accepted", task=record.task)
            kind = "replayed" if same and holder is not None else "conflict"
            return Submitted(kind=kind, task=first.record.task)  # type: ignore[arg-type]
        task = self.tasks[name] = Task(record=record, version=record.version, events=["task.submitted"])
        self._announce(name, task)
        if record.key is not None:
            self.keys[record.tenant, record.key] = name
        if record.run_at is not None and record.run_at > now:
            task.state, task.reason, task.wake_at = "waiting", "timer", record.run_at
        if record.deadline_us is not None:
            task.deadline_at = now + record.deadline_us
        if parent is not None:
            assert record.parent is not None
            parent.children += 1
            began = Operation(kind="child", position=record.parent.position, state="running")
            parent.operations.setdefault(record.parent.key, began)
            parent.say("operation.started")
        return Submitted(kind="accepted", task=record.task)
