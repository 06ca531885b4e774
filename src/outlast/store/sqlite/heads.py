"""A task's head in hand, and the moves that several verbs share: queue it, let it wait, end its attempt, end
it."""

from __future__ import annotations

from typing import Any

import orjson

from outlast.core.transitions import TASK
from outlast.store.sqlite import keys
from outlast.store.sqlite.transaction import Transaction

NO_DATA = "{}"


def json_text(value: Any) -> str:
    """Write a store-made payload as JSON text."""
    return orjson.dumps(value).decode()


def any_unsettled(tx: Transaction) -> bool:
    """Say whether anything is in the reconciliation queue: one look a transaction."""
    if tx.unsettled is None:
        tx.unsettled = tx.row("any_unsettled") is not None
    return tx.unsettled


class Head:
    """A head as read in this transaction, changed in memory and written back once by ``save``.

    It is the one mutable record here: event numbers are counted on in it.
    """

    __slots__ = (
        "_epoch_read",
        "_last_event_read",
        "_tx",
        "at",
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
    )

    def __init__(self, tx: Transaction, tenant: str, task: str, row: tuple[Any, ...], at: int) -> None:
        self._tx = tx
        self.tenant, self.task, self.at = tenant, task, at
        self.state: str
        self.reason: str | None
        self.epoch: int
        self.round: int
        self.facts: int
        self.last_event: int
        self.lane: int
        self.deadline_at: int | None
        (
            self.state,
            self.reason,
            self.epoch,
            self.round,
            self.facts,
            self.last_event,
            self.lane,
            self.deadline_at,
        ) = row
        self._epoch_read, self._last_event_read = self.epoch, self.last_event

    @classmethod
    def read(cls, tx: Transaction, tenant: str, task: str, at: int) -> Head | None:
        """Read a head; None when there is no such task. at: the time of what is about to happen to it."""
        row = tx.row("read_head", (tenant, task))
        return None if row is None else cls(tx, tenant, task, row, at)

    @property
    def live(self) -> bool:
        """Whether the task has not ended."""
        return self.state not in TASK.final

    def append(self, kind: str, data: str = NO_DATA, *, epoch: int = 0) -> None:
        """Give an event the next number."""
        self.last_event += 1
        self._tx.append_event((self.tenant, self.task, self.last_event, kind, epoch, data, self.at))

    def save(self) -> None:
        """Write the head and the events appended to it."""
        changed = self._tx.run(
            "write_head",
            {
                "tenant": self.tenant,
                "task": self.task,
                "state": self.state,
                "reason": self.reason,
                "epoch": self.epoch,
                "round": self.round,
                "facts": self.facts,
                "last_event": self.last_event,
                "lane": self.lane,
                "epoch_read": self._epoch_read,
            },
        )
        assert changed == 1, "the head changed inside its own transaction"

    def save_events(self) -> None:
        """Write only how far the events of a running task were counted."""
        if self.last_event != self._last_event_read:
            changed = self._tx.run("count_events", (self.last_event, self.tenant, self.task, self.epoch))
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
        lease = self._tx.row("read_lease", (self.tenant, self.task))
        assert lease is not None, "a running task has a lease"
        epoch, round_, session, version, config, started_at = lease
        worker = self._tx.label(session)
        self._tx.run(
            "keep_attempt",
            (
                self.tenant,
                self.task,
                epoch,
                round_,
                session,
                worker,
                version,
                config,
                started_at,
                self.at,
                end,
            ),
        )
        self._tx.run("drop_lease", (self.tenant, self.task))

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

    def finish(
        self,
        state: str,
        *,
        result: str | None = None,
        error: str | None = None,
        epoch: int = 0,
        data: dict[str, Any] | None = None,
    ) -> None:
        """End the task: result row, open effects to the reconciliation queue, timers gone, the final event
        last.

        epoch: that of the attempt that ended it, 0 for none. data: what the final event says beside
        ``effects_open``.
        """
        tx, name = self._tx, (self.tenant, self.task)
        if self.state == "queued":
            tx.run("dequeue", name)
        for (key,) in tx.rows("open_effects", name):
            tx.run("lose_operation", (*name, key))
            self.unsettle(key)
        keys.give_up_planned(tx, *name)
        counted = tx.row("count_unsettled", name)
        assert counted is not None
        effects_open = int(counted[0])
        self.state, self.reason = state, None
        tx.run("clear_timers", name)
        tx.run("keep_result", (*name, self.round, state, result, error, effects_open, self.at))
        said = json_text({**(data or {}), "effects_open": effects_open})
        self.append(f"task.{state}", said, epoch=epoch)
        announced = tx.row("is_announced", name)
        if announced is not None and announced[0]:
            tx.run("announce", (*name, self.last_event, f"task.{state}", said, self.at))
