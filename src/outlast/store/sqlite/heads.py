"""A task's head in hand, and the moves that several verbs share: queue it, let it wait, end its attempt, end
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from outlast.core.transitions import TASK
from outlast.store.entries import NewEvent
from outlast.store.sqlite import keys
from outlast.store.sqlite.transaction import Row, Transaction

NO_DATA = "{}"


def json_text(value: Any) -> str:
    """Write a store-made payload as JSON text."""
    return orjson.dumps(value).decode()


def any_unsettled(tx: Transaction) -> bool:
    """Say whether anything is in the reconciliation queue: one look a transaction."""
    if tx.unsettled is None:
        tx.unsettled = tx.row("any_unsettled") is not None
    return tx.unsettled


class Writes:
    """What is written of heads in hand: each at once, or at last and for all of them together, which spares a
    call for each.

    Whoever looks at other tasks than its own meanwhile has it written first.
    """

    __slots__ = ("_at_once", "_rows", "_tx")

    def __init__(self, tx: Transaction, *, at_once: bool) -> None:
        self._tx, self._at_once = tx, at_once
        # In the order in which they are written of one task.
        self._rows: dict[str, list[Row]] = {
            "keep_attempts": [],
            "drop_leases": [],
            "keep_results": [],
            "write_heads": [],
            "count_events": [],
        }

    def add(self, statement: str, row: Row) -> None:
        """Have a statement run for a row."""
        self._rows[statement].append(row)
        if self._at_once:
            self.write()

    def write(self) -> None:
        """Write what is not written yet."""
        for statement, rows in self._rows.items():
            changed = self._tx.run_many(statement, rows)
            assert changed == len(rows), (
                f"{statement}: a head or its lease changed inside its own transaction"
            )
            rows.clear()


class Head:
    """A head as read in this transaction, changed in memory and written back once by ``save``.

    It is the one mutable record here: event numbers are counted on in it.
    """

    __slots__ = (
        "_epoch_read",
        "_last_event_read",
        "_leavings",
        "_tx",
        "_writes",
        "at",
        "cancelling",
        "children",
        "deadline_at",
        "epoch",
        "facts",
        "lane",
        "last_event",
        "reason",
        "round",
        "state",
        "task",
        "tenant",
        "undoing",
    )

    def __init__(
        self, tx: Transaction, tenant: str, task: str, row: Row, at: int, writes: Writes | None = None
    ) -> None:
        self._tx, self._writes = tx, writes or Writes(tx, at_once=True)
        self.tenant, self.task, self.at = tenant, task, at
        self.state: str
        self.reason: str | None
        self.epoch: int
        self.round: int
        self.facts: int
        self.last_event: int
        self.lane: int
        self.deadline_at: int | None
        self.cancelling: int
        self.undoing: int
        self.children: int
        (
            self.state,
            self.reason,
            self.epoch,
            self.round,
            self.facts,
            self.last_event,
            self.lane,
            self.deadline_at,
            self.cancelling,
            self.undoing,
            self.children,
        ) = row
        self._epoch_read, self._last_event_read = self.epoch, self.last_event
        self._leavings: Row | None = None
        """What its end concerns, once that was read."""

    @classmethod
    def read(cls, tx: Transaction, tenant: str, task: str, at: int) -> Head | None:
        """Read a head; None when there is no such task. at: the time of what is about to happen to it."""
        return cls.read_all(tx, [(tenant, task)], at)[0]

    @classmethod
    def read_all(
        cls, tx: Transaction, names: Sequence[tuple[str, str]], at: int, writes: Writes | None = None
    ) -> list[Head | None]:
        """Read the heads of different tasks, given as (tenant, task), in their order. writes: how what comes
        of them is written, each at once by default."""
        found = {place: row for place, *row in tx.rows_of("read_heads", names)}
        return [
            cls(tx, *name, tuple(found[place]), at, writes) if place in found else None
            for place, name in enumerate(names)
        ]

    @staticmethod
    def read_leavings(tx: Transaction, heads: Sequence[Head]) -> None:
        """Read what the ends of tasks concern; nothing of them may be written between that and their ends."""
        for place, *row in tx.rows_of("read_leavings", [(head.tenant, head.task) for head in heads]):
            heads[place]._leavings = tuple(row)

    @property
    def cut(self) -> bool:
        """Whether a cancel stands that is not to undo first: whatever ends the attempt ends the task."""
        return bool(self.cancelling) and not self.undoing

    @property
    def live(self) -> bool:
        """Whether the task has not ended."""
        return self.state not in TASK.final

    def append(self, kind: str, data: str = NO_DATA, *, epoch: int = 0) -> None:
        """Give an event the next number."""
        self.last_event += 1
        self._tx.append_event((self.tenant, self.task, self.last_event, kind, epoch, data, self.at))

    def say(self, events: Sequence[NewEvent]) -> None:
        """Append what the worker of the running task says."""
        for event in events:
            self.append(event.kind, event.data, epoch=self.epoch)

    def save(self) -> None:
        """Write the head; the events appended to it are written by ``write_events``."""
        self._writes.add(
            "write_heads",
            (
                self.state,
                self.reason,
                self.epoch,
                self.round,
                self.facts,
                self.last_event,
                self.lane,
                self.deadline_at,
                self.cancelling,
                self.undoing,
                self.tenant,
                self.task,
                self._epoch_read,
            ),
        )

    def save_events(self) -> None:
        """Write only how far the events of a running task were counted."""
        if self.last_event != self._last_event_read:
            self._writes.add("count_events", (self.last_event, self.tenant, self.task, self.epoch))

    def write_others(self) -> None:
        """Have what was put off written, before other tasks are looked at."""
        self._writes.write()

    def save_children(self) -> None:
        """Write how many children a running task has, and how far its events were counted with them."""
        if self.last_event != self._last_event_read:
            name = (self.tenant, self.task)
            changed = self._tx.run("count_children", (self.children, self.last_event, *name, self.epoch))
            assert changed == 1, "the head changed inside its own transaction"

    def unsettle(self, key: str, *, sender_gone: bool = False, why: str = "") -> None:
        """Put an unknown operation into the reconciliation queue; what stands there already stays."""
        name = (self.tenant, self.task, key)
        added = self._tx.run("add_unsettled", (*name, self.at, self.at, sender_gone, why))
        self._tx.unsettled = True
        if sender_gone and not added:
            self._tx.run("sender_is_gone", name)

    # -- moves -----------------------------------------------------------------------------------------------

    def end_attempt(self, end: str) -> None:
        """Move the lease to the attempts that ended."""
        name = (self.tenant, self.task)
        self._writes.add("keep_attempts", (self.at, end, *name))
        self._writes.add("drop_leases", name)

    def enqueue(self) -> None:
        """Queue the task in its lane; a wake timer that it may have had is over."""
        if self.state == "waiting":
            self._tx.run("clear_wake", (self.tenant, self.task))
        self.state, self.reason = "queued", None
        self._tx.enqueue([(self.lane, self.tenant, self.task)])

    def wait(self, reason: str, due_at: int | None = None) -> None:
        """Let the task wait, with a wake timer if ``due_at`` is given."""
        self.state, self.reason = "waiting", reason
        if due_at is not None:
            self._tx.run("set_timer", (self.tenant, self.task, "wake", due_at))

    def wake(self) -> None:
        """Queue a task that waits."""
        reason = self.reason
        self.enqueue()
        self.append("task.woken", json_text({"reason": reason}))

    def tell(self) -> None:
        """Let whoever has to know hear that the facts were raised: a task that waits is woken, the worker of
        one that runs finds it among its news.

        A task that has not begun is left to its time: it reads what lies before it when it is claimed.
        """
        if self.state == "running":
            self._tx.run("tell_worker", (self.facts, self.tenant, self.task))
            self._tx.hints.add("facts")
        elif self.state == "waiting" and self.epoch > 0:
            self.wake()

    def finish(
        self,
        state: str,
        *,
        result: str | None = None,
        error: str | None = None,
        epoch: int = 0,
        data: dict[str, Any] | None = None,
        heard: bool = False,
    ) -> None:
        """End the task: result row, open effects to the reconciliation queue, open questions withdrawn,
        timers gone, its end left for its parent and a cancel for its children, the final event last.

        epoch: that of the attempt that ended it, 0 for none. data: what the final event says beside
        ``effects_open``. heard: its parent is told of it by its own worker.
        """
        tx, name = self._tx, (self.tenant, self.task)
        if self.state == "queued":
            tx.run("dequeue", name)
        if self._leavings is None:
            self.read_leavings(tx, [self])
        assert self._leavings is not None, "a head has an input"
        announced, parent, parent_key, effects_open, calls, timers, held, asks = self._leavings
        if calls:
            effects_open = self._lose_calls()
        keys.give_up_planned(tx, *name)
        if held:
            tx.run("release_task", name)
        if effects_open:
            tx.run("send_nothing", (self.at, *name))
        if asks:
            self.withdraw_approvals(epoch=epoch)
        self.state, self.reason, self.cancelling, self.undoing = state, None, 0, 0
        if timers:
            tx.run("clear_timers", name)
        self._writes.add("keep_results", (*name, self.round, state, result, error, effects_open, self.at))
        said = json_text({**(data or {}), "effects_open": effects_open})
        self.append(f"task.{state}", said, epoch=epoch)
        if announced:
            tx.run("announce", (*name, self.last_event, f"task.{state}", said, self.at))
        if parent is not None:
            ended = json_text({"task": self.task, "state": state})
            tx.run("leave_post", (self.tenant, parent, "child", parent_key, ended))
            if not heard:
                tx.hints.add("posts")
        # One that ends in the same flush may be left a cancel too; it finds nothing to do.
        if self.children and tx.run("leave_cancels", (self.task, self.tenant, self.task)):
            tx.hints.add("posts")

    def _lose_calls(self) -> int:
        """Let nobody know what became of the calls under way; answer how many are unknown now."""
        name = (self.tenant, self.task)
        for (key,) in self._tx.rows("open_effects", name):
            self._tx.run("lose_operation", (*name, key))
            self.unsettle(key)
        counted = self._tx.row("count_unsettled", name)
        assert counted is not None
        return int(counted[0])

    def end_cancelled(self, *, epoch: int = 0, error: str | None = None, undone: Any = None) -> None:
        """End a task whose cancel stands as that asked for.

        error: what is kept instead of its reason. undone: what is kept beside it of an undo, if anything.
        """
        asked = self._tx.row("read_cancel", (self.tenant, self.task))
        assert asked is not None, "a mark comes with its event"
        said = orjson.loads(asked[0])
        self.finish_cancelled(said["by"], said["reason"], epoch=epoch, error=error, undone=undone)

    def finish_cancelled(
        self, by: str, reason: str, *, epoch: int = 0, error: str | None = None, undone: Any = None
    ) -> None:
        """End the task as cancelled; see ``finish``, and ``end_cancelled``."""
        if error is None:
            more = {} if undone is None else {"compensation": undone}
            error = json_text({"code": "cancelled", "message": reason, **more})
        self.finish("cancelled", error=error, epoch=epoch, data={"by": by, "reason": reason})

    def withdraw_approvals(self, key: str | None = None, *, epoch: int = 0) -> None:
        """Withdraw the questions that are open, about one operation or all; answers to questions stay."""
        for (approval,) in self._tx.rows("open_approvals", (self.tenant, self.task, key)):
            self._tx.run("withdraw_approval", (self.tenant, approval))
            self.append("approval.withdrawn", json_text({"approval": approval}), epoch=epoch)
