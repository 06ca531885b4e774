"""Undo: a task that ends badly takes back what it has done, visibly, and says how far it came.

Purpose: after a failure (``on_failure="undo"``) or a cancel with ``undo``, every effect that has an undo is
undone, the newest first; what cannot be undone is named, and is somebody's to see to.

Identity: an undo is an operation of its own, kind ``compensation``, key ``<key>/undo``, with the rules of any
call: policy, intent, outcome, settling, retries under one key. It has no undo itself, and no budget holds it
back.

State: the decision to undo is on record (a ``value`` named ``undo``, with the error that the task will end
with) before the first of them. From then on the agent's function does not run again: the attempt that has
failed ends, and the next one, of whatever worker, only undoes. Order: by the number of the event that says
that the effect is there.

What is fenced: everything is written under the task's epoch. An undo begins only while there is no news that
its worker has not heard: what was settled since may be the next to undo. A cancel that stands lets undos
pass, and nothing else. One that comes once the undo is decided is taken as asking for it, wherever the task
is by then.

Failure by failure: killed at any point: the next attempt goes on where the ledger ends. A call of the task is
unknown: it is settled first, by evidence only; what only a person can settle is left in the reconciliation
queue, and so is an undo that fails for good, or of which nobody knows; the others go on. The end says what
was undone and what is left.

The deadline: past it nothing is sent, so that each effect that is not undone is put before people instead. A
task that undoes is awake when its time runs out, whatever it waits for, and does not wait for another attempt
that it would not live to see.

Not covered: a task that is parked, or that expires while it stands in the queue or waits for an operator,
ends as it is, since there is no code to say what an undo is; tried again, it can be cancelled with undo. What
a fork has from the task that it was made from is that task's to undo; so are the effects of children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import orjson

from outlast import probes
from outlast.core import canonical, values
from outlast.core.outcome import Failed, Succeeded
from outlast.core.record import record
from outlast.engine import effects, settling
from outlast.engine.operation import Operation
from outlast.engine.registry import RESULT, ToolSpec
from outlast.engine.run import Outpaced, Run
from outlast.engine.series import Series
from outlast.engine.settling import LeftToAPerson
from outlast.errors import DeadlineExceeded, InvalidRequest, OperationError
from outlast.store.entries import EndAttempt, RecordOperation
from outlast.store.records import OperationRow
from outlast.store.rows import EVENTS_ROOM, EventCursor, EventRow, OperationFilter, may_be_more

NAME: Final = "undo"
DECISION: Final = "undo!"
"""Key of the decision; a number follows where an earlier round, or the task that was forked, has one."""
SUFFIX: Final = "/undo"
KEY_CHARS: Final = 200
PAGE: Final = 500
TELLING: Final = ("operation.succeeded", "operation.settled", "task.cancel_requested")
"""Events that say what there is to undo, and why."""
NAMED: Final = 1_000
"""Keys that the end of a task names at most, of each kind."""
TOO_LATE: Final = "the task's time was over before it could be undone"


def prepare(run: Run) -> None:
    """Let a run undo, where that has been decided; or decide it when its agent fails."""
    decided = _decision(run)
    if run.claimed.cancelling or decided is not None:
        undoing = Undoing(run, decided)
        run.undoing = True
        run.instead, run.conclude = undoing.perform, undoing.conclude
    elif run.spec.undoes:
        run.conclude = Undoing(run, None).decide


def undo_key(key: str) -> str:
    """Make the key of the operation that undoes another."""
    if len(key) + len(SUFFIX) <= KEY_CHARS:
        return key + SUFFIX
    return f"{key[:150]}~{canonical.digest(key)[-32:]}{SUFFIX}"


def _decision(run: Run) -> dict[str, Any] | None:
    """Answer the error of the decision that this task has made in this round, if it has."""
    for row in run.known.rows.values():
        if (row.kind, row.name) == ("value", NAME) and row.result is not None:
            said = values.decode(row.result)
            if isinstance(said, dict) and (said.get("task"), said.get("round")) == (
                run.task,
                run.claimed.round,
            ):
                error: dict[str, Any] = said["error"]
                return error
    return None


@record
class History:
    """What a task's stream says. succeeded: number of the event by which an effect is there, by operation.
    reason: that of the cancel that stands."""

    succeeded: dict[str, int]
    reason: str | None


def read_history(rows: Sequence[EventRow]) -> History:
    """Read a task's events, oldest first."""
    succeeded: dict[str, int] = {}
    reason: str | None = None
    for row in rows:
        if row.kind not in TELLING:
            continue
        data = orjson.loads(row.data)
        key = data.get("operation")
        if row.kind == "task.cancel_requested":
            reason = data.get("reason")
        elif row.kind == "operation.succeeded" or data.get("verdict") == "happened":
            succeeded[key] = row.number
        else:
            # It did not happen; or an earlier operation has done it, whose effect it is.
            succeeded.pop(key, None)
    return History(succeeded=succeeded, reason=reason)


class Undoing:
    """The undo of one task in one attempt. error: what the task ends with, None while that is not decided."""

    def __init__(self, run: Run, error: dict[str, Any] | None) -> None:
        self._run = run
        self._error = error
        self._undone: list[str] = []
        self._left: list[str] = []
        self._ahead: list[OperationRow] = []
        """Effects that were not come to yet, the next one first."""

    # -- deciding -------------------------------------------------------------------------------------------

    async def decide(self, ending: EndAttempt) -> EndAttempt:
        """Put the decision on record where an attempt ends its task as failed; the next one undoes."""
        run = self._run
        if ending.task_state != "failed":
            return ending
        error: dict[str, Any] = values.decode(ending.error or "{}")
        await self._decide(error)
        if run.interruption == "expired":
            return await self._too_late()
        return EndAttempt(
            attempt_end="failed",
            task_state="waiting",
            reason="timer",
            facts=run.facts,
            error=ending.error,
            wake_in_us=0,
        )

    async def _decide(self, error: dict[str, Any]) -> None:
        run = self._run
        probes.reach("undo.before_decision")
        number, key = 1, DECISION
        while key in run.known.rows:
            number += 1
            key = f"{DECISION}{number}"
        said = {"task": run.task, "round": run.claimed.round, "error": error}
        # On disk, and with it all that the agent has done before.
        await run.commit(
            RecordOperation(
                key=key,
                position=run.known.next_position(),
                kind="value",
                name=NAME,
                state="succeeded",
                request=canonical.fingerprint("value", NAME, {}),
                result=values.encode(said, limit=2 * values.MAX_VALUE_BYTES),
            )
        )
        self._error = error
        probes.reach("undo.after_decision")

    # -- undoing --------------------------------------------------------------------------------------------

    async def perform(self) -> EndAttempt:
        """Undo what is there, and answer how the task ends."""
        try:
            return await self._perform()
        except Outpaced as error:
            self._run.interrupt("outpaced", str(error))
            raise asyncio.CancelledError from None

    async def _perform(self) -> EndAttempt:
        if self._error is None:
            await self._decide({"code": "cancelled", "message": (await self._history()).reason or ""})
        heard = self._run.facts
        await self._settle()
        await self._look()
        while self._ahead:
            row = self._ahead[0]
            if await self._undo(row, heard):
                self._undone.append(row.key)
            else:
                self._left.append(row.key)
            self._ahead.pop(0)
        return await self._ending()

    async def conclude(self, ending: EndAttempt) -> EndAttempt:
        """Say in every final ending how far it came; what was cut by the deadline is put before people."""
        if ending.task_state not in ("failed", "cancelled") or self._error is None:
            return ending
        if "compensation" in values.decode(ending.error or "{}"):
            return ending
        return await self._too_late()

    async def _settle(self) -> None:
        """Settle what is unknown and could be undone, as far as evidence goes."""
        run = self._run
        doubtful = [
            operation
            for row in run.loaded.operations
            if self._doubtful(row) and (operation := self._prepared(row)) is not None
        ]
        for operation in doubtful:
            effects.begin(run, operation, _settling(run, operation))
        # All at once: one that is over before it is joined tells nobody any more.
        await asyncio.gather(*(run.works.join(operation.key) for operation in doubtful))

    async def _look(self) -> None:
        """Read what is there to be undone, from disk."""
        run = self._run
        (loaded,) = await run.host.insist(lambda: run.host.store.load([run.claimed]))
        run.known.rows.update({row.key: row for row in loaded.operations})
        history = await self._history()
        there = []
        for row in loaded.operations:
            if self._doubtful(row):
                self._left.append(row.key)
            elif self._is_effect(row) and row.state == "succeeded" and row.key in history.succeeded:
                there.append(row)
        there.sort(key=lambda row: -history.succeeded[row.key])
        self._ahead = there

    async def _history(self) -> History:
        run, after = self._run, 0
        found: list[EventRow] = []
        while True:
            cursors = [EventCursor(tenant=run.tenant, task=run.task, after=after)]
            rows = await run.host.insist(partial(run.host.store.read_events, cursors, PAGE, room=EVENTS_ROOM))
            found += [row for row in rows if row.kind in TELLING]
            if not may_be_more(rows, PAGE):
                return read_history(found)
            after = rows[-1].number if rows else after

    def _is_effect(self, row: OperationRow) -> bool:
        """Whether an operation is one that can be undone."""
        return (
            row.kind == "tool" and row.attempt > 0 and self._run.host.registry.undo_of(row.name) is not None
        )

    def _doubtful(self, row: OperationRow) -> bool:
        return self._is_effect(row) and row.state in ("running", "unknown")

    def _prepared(self, row: OperationRow) -> Operation | None:
        """Make the operation of a row; None where its tool takes no such arguments any more."""
        tool = self._run.host.registry.tools[row.name]
        try:
            arguments = tool.signature.check(values.decode(row.arguments or "{}"))
        except InvalidRequest:
            return None
        return effects.prepared(self._run, "tool", row.key, tool, arguments, row)

    async def _undo(self, row: OperationRow, heard: int) -> bool:
        """Undo one effect; answer whether it is undone. What is not, is somebody's to see to."""
        run, key = self._run, undo_key(row.key)
        tool = run.host.registry.undo_of(row.name)
        assert tool is not None, "it was looked up before"
        before = run.known.rows.get(key)
        if before is not None and before.state in ("succeeded", "failed"):
            # One that is on record as failed was settled so by a person.
            return before.kind == "compensation" and before.state == "succeeded"
        given = _given(tool, row)
        try:
            arguments = tool.signature.check(given)
        except InvalidRequest as error:
            await self._leave(row, f"its undo {tool.name} cannot be called: {error}")
            return False
        request = canonical.fingerprint("compensation", tool.name, tool.signature.plain(arguments))
        if before is not None and (before.kind, before.name, before.request) != (
            "compensation",
            tool.name,
            request,
        ):
            await self._leave(row, "its undo was begun with other arguments than the code says now")
            return False
        try:
            await effects.compensate(run, key, tool, arguments, heard=heard)
        except LeftToAPerson:
            return False
        except DeadlineExceeded:
            await self._leave(row, TOO_LATE)
            return False
        except OperationError:
            # Done, though its result cannot be stored; or it is on record as not done.
            return run.known.rows[key].state == "succeeded"
        return True

    # -- what is left ---------------------------------------------------------------------------------------

    async def _leave(self, row: OperationRow, why: str) -> None:
        """Put an effect that was not undone before people, as an item of the reconciliation queue."""
        run, key = self._run, undo_key(row.key)
        tool = run.host.registry.undo_of(row.name)
        assert tool is not None, "it was looked up before"
        query = OperationFilter(tenant=run.tenant, task=run.task, key=key, limit=1)
        # From disk: what was begun in this attempt is not among the rows that it was loaded with.
        found = await run.host.insist(lambda: run.host.store.list_operations(query))
        before = found[0] if found else None
        if before is not None and before.state not in ("planned", "approved"):
            # It is there already, or over.
            return
        given = _given(tool, row)
        operation = Operation(
            key=key,
            position=before.position if before is not None else run.known.next_position(),
            tool=tool,
            arguments=given,
            text=values.encode(given),
            request=canonical.fingerprint("compensation", tool.name, given),
            decision="",
            attempt=0 if before is None else before.attempt,
            turn=0 if before is None else before.turn,
            state="planned",
            epoch=run.epoch,
            first_intent_at=None,
            deadline_at=None,
            series=Series.of(before),
            business=None,
            plain=given,
            kind="compensation",
        )
        await settling.never_sent(run, operation, why)
        await settling.leave_to_a_person(run, operation, why)

    async def _too_late(self) -> EndAttempt:
        """Put what was not come to before people, and answer the ending that says so."""
        self._undone, self._left = [], []
        try:
            await self._look()
            for row in self._ahead:
                before = self._run.known.rows.get(undo_key(row.key))
                if before is not None and before.kind == "compensation" and before.state == "succeeded":
                    self._undone.append(row.key)
                    continue
                await self._leave(row, TOO_LATE)
                self._left.append(row.key)
        except Outpaced:
            # The ledger moved on in this very moment; whoever is next looks again.
            return EndAttempt(attempt_end="released", task_state="queued", facts=self._run.facts)
        self._ahead = []
        return await self._ending()

    async def _ending(self) -> EndAttempt:
        run = self._run
        error = dict(self._error or {})
        cancelled = run.claimed.cancelling or run.cancel_heard or error.get("code") == "cancelled"
        if cancelled and error.get("code") != "cancelled":
            # It was to end as failed, and was cancelled while it undid.
            error = {"code": "cancelled", "message": (await self._history()).reason or ""}
        error["compensation"] = {
            "state": "incomplete" if self._left else "complete",
            "undone": self._undone[:NAMED],
            "left": self._left[:NAMED],
        }
        state: Any = "cancelled" if cancelled else "failed"
        text = values.encode(error, limit=2 * values.MAX_VALUE_BYTES, what="error")
        return EndAttempt(attempt_end=state, task_state=state, facts=run.facts, error=text)


def _given(tool: ToolSpec, row: OperationRow) -> dict[str, Any]:
    """Answer the plain arguments of an undo: those of what it undoes that it has parameters for, and the
    result."""
    arguments = values.decode(row.arguments or "{}")
    given = {name: arguments[name] for name in tool.signature.names if name in arguments}
    if RESULT in tool.signature.names:
        given[RESULT] = None if row.result is None else values.decode(row.result)
    return given


def _settling(run: Run, operation: Operation) -> Any:
    """Answer the work of settling one unknown, as far as evidence goes; nothing is sent again."""

    async def settle() -> None:
        while True:
            settled = await settling.settle(run, operation, pause_us=None)
            if isinstance(settled, Succeeded | Failed):
                return
            if settled is settling.SEND:
                await settling.leave_to_a_person(
                    run, operation, "its task undoes what it has done, and sends nothing again"
                )
                return
            try:
                await settling.until_asked(run, operation)
            except LeftToAPerson:
                return

    return settle
