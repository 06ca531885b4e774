"""Every (state, command) pair of the tables in ``outlast.core.transitions``, driven through the store.

A drive brings a thing into a state, gives the command by the verb that carries it, and reads the state
afterwards: the table's target, or the state it was in where the table refuses. A command without a verb yet
is listed in ``LATER`` by name; one that is neither driven nor listed fails ``TestCoverage``, and so does one
that is listed although a drive exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.operation import OperationState
from outlast.core.transitions import APPROVAL, ATTEMPT, OPERATION, TASK, Machine, Refusal
from outlast.store.entries import AskApproval, EndAttempt, ExpireApproval
from outlast.store.records import Claimed, Evidence, Serves, Submission
from outlast.testing.store_suite.changing import adoption, retry_of
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

LATER: dict[str, dict[str, str]] = {
    "task": {},
    "attempt": {},
    "operation": {},
    "approval": {},
}
"""Commands by machine whose verb is still to come, with what will carry them."""


def driven(machine: Machine) -> list[Any]:
    """List the pairs of a machine that have a verb, as parameters."""
    return [
        pytest.param(state, command, answer, id=f"{state}-{command}")
        for state, command, answer in machine.pairs()
        if command not in LATER[machine.name]
    ]


def expected(state: str, answer: str | Refusal) -> str:
    """Answer the state after a command."""
    return state if isinstance(answer, Refusal) else answer


# -- tasks --------------------------------------------------------------------------------------------

DEADLINE = 100 * HOUR


async def task_in(scene: Scene, state: str) -> tuple[Submission, Claimed]:
    """Bring a task into a state; answer it with its newest lease (of a session that lasts a minute)."""
    record = await scene.submit(deadline_us=DEADLINE)
    claimed = await scene.claim_task(record)
    endings: dict[str, EndAttempt] = {
        "queued": scene.release(),
        # A timer far off, so that there is something to wake it.
        "waiting": scene.suspension("timer", wake_in_us=2 * HOUR),
        "succeeded": scene.success(),
        "failed": scene.failure(),
        "cancelled": scene.failure(attempt_end="cancelled", task_state="cancelled"),
    }
    if state != "running":
        await scene.write(claimed, endings[state])
    assert (await scene.task(record)).state == state
    return record, claimed


async def _claim(scene: Scene, record: Submission, claimed: Claimed) -> None:
    serves = [Serves(agent=record.agent, version=claimed.version)]
    await scene.claim(await scene.session(), pools=[record.pool], serves=serves, limit=9)


def _end(make: Callable[[Scene], EndAttempt]) -> Callable[[Scene, Submission, Claimed], Awaitable[None]]:
    async def drive(scene: Scene, record: Submission, claimed: Claimed) -> None:
        await scene.flush(claimed, make(scene))

    return drive


async def _lose(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.lose(claimed)


async def _wake(scene: Scene, record: Submission, claimed: Claimed) -> None:
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=9 * HOUR, session=row["id"])
    scene.pass_time(2 * HOUR)
    await scene.sweep()


async def _expire(scene: Scene, record: Submission, claimed: Claimed) -> None:
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=9 * DEADLINE, session=row["id"])
    scene.now = (claimed.deadline_at or 0) + 6 * SECOND
    await scene.sweep(grace_us=5 * SECOND)


async def _park(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.lose(claimed, max_deaths=1)


async def _cancel(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.cancel(record)


async def _undo(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.cancel(record, undo=True)


async def _retry(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.store.retry([retry_of(scene, record)], now=scene.now)


async def _adopt(scene: Scene, record: Submission, claimed: Claimed) -> None:
    await scene.store.adopt([await adoption(scene, record, claimed.version)], now=scene.now)


TASK_DRIVES: dict[str, Callable[[Scene, Submission, Claimed], Awaitable[None]]] = {
    "claim": _claim,
    "release": _end(lambda scene: scene.release()),
    "lose": _lose,
    "suspend": _end(lambda scene: scene.suspension("operator")),
    "wake": _wake,
    "succeed": _end(lambda scene: scene.success()),
    "fail": _end(lambda scene: scene.failure()),
    "cancel": _cancel,
    "undo": _undo,
    "retry": _retry,
    "adopt": _adopt,
    "end_cancelled": _end(lambda scene: scene.failure(attempt_end="cancelled", task_state="cancelled")),
    "expire": _expire,
    "park": _park,
}


class TestTaskTransitions:
    """Every pair of the table of tasks."""

    @pytest.mark.parametrize(("state", "command", "answer"), driven(TASK))
    async def test_ends_where_the_table_says(
        self, scene: Scene, state: str, command: str, answer: str | Refusal
    ) -> None:
        record, claimed = await task_in(scene, state)
        before = await scene.task(record)
        await TASK_DRIVES[command](scene, record, claimed)
        task = await scene.task(record)
        assert task.state == expected(state, answer)
        if isinstance(answer, Refusal):
            assert task == before
            assert await scene.kinds(record, after=before.last_event) == []
        # A cancel of a running task is a mark, and the mark is not the end.
        marked = command == "undo" and not isinstance(answer, Refusal)
        assert task.cancelling == (marked or (state, command) == ("running", "cancel"))


# -- attempts ------------------------------------------------------------------------------------------

ATTEMPT_ENDS: dict[str, tuple[str, Callable[[Scene], EndAttempt] | None]] = {
    "succeed": ("succeeded", lambda scene: scene.success()),
    "fail": ("failed", lambda scene: scene.failure()),
    "suspend": ("suspended", lambda scene: scene.suspension("operator")),
    "release": ("released", lambda scene: scene.release()),
    "cancel": ("cancelled", lambda s: s.failure(attempt_end="cancelled", task_state="cancelled")),
    "lose": ("lost", None),
}


async def end_attempt(scene: Scene, claimed: Claimed, command: str) -> None:
    """Give an attempt a command."""
    _, make = ATTEMPT_ENDS[command]
    if make is None:
        await scene.lose(claimed)
    else:
        await scene.flush(claimed, make(scene))


class TestAttemptTransitions:
    """Every pair of the table of attempts."""

    @pytest.mark.parametrize(("state", "command", "answer"), driven(ATTEMPT))
    async def test_ends_where_the_table_says(
        self, scene: Scene, state: str, command: str, answer: str | Refusal
    ) -> None:
        claimed = await scene.running()
        for first, (end, _) in ATTEMPT_ENDS.items():
            if end == state:
                await end_attempt(scene, claimed, first)
        before = await scene.rows("attempts", claimed)
        assert [row["end"] for row in before] == ([] if state == "running" else [state])
        await end_attempt(scene, claimed, command)
        [row] = await scene.rows("attempts", claimed)
        assert row["end"] == expected(state, answer)
        assert row["epoch"] == claimed.epoch
        if state != "running":
            assert [row] == before


# -- operations ----------------------------------------------------------------------------------------


async def operation_in(scene: Scene, claimed: Claimed, state: str) -> str:
    """Bring an operation into a state, behind an attempt that is to be made again; answer its key."""
    intent = scene.intent("it", position=71, timeout_us=9 * SECOND)
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, "it", "planned"))
    intent = replace(intent, attempt=1, turn=2)
    # Asked about, so that there is something to decide where it may still be.
    asked = await scene.asked(claimed, scene.ask("it", position=71))
    if state == "approved":
        assert (await scene.decide(asked)).kind == "decided"
    elif state != "planned":
        await scene.write(claimed, intent)
    if state not in ("planned", "approved", "running"):
        # A success by evidence, which other evidence may contradict.
        settled_by = "worker" if state == "succeeded" else None
        outcome = await scene.outcome(claimed, "it", state, settled_by=settled_by)  # type: ignore[arg-type]
        await scene.write(claimed, outcome)
    assert (await scene.operation(claimed, "it")).state == state
    return "it"


async def _start(scene: Scene, claimed: Claimed, key: str) -> None:
    row = await scene.operation(claimed, key)
    await scene.flush(claimed, scene.intent(key, attempt=row.attempt, turn=row.turn))


async def _resend(scene: Scene, claimed: Claimed, key: str) -> None:
    row = await scene.operation(claimed, key)
    await scene.flush(claimed, scene.intent(key, attempt=row.attempt, turn=row.turn, resend=True))


async def _approve(scene: Scene, claimed: Claimed, key: str) -> None:
    await scene.decide(await scene.approval(claimed, key))


async def _refuse(scene: Scene, claimed: Claimed, key: str) -> None:
    intent = scene.intent(key, position=71)
    await scene.flush(claimed, scene.planned(intent, state="failed", error=scene.text("error")))


def _outcome(state: OperationState) -> Callable[[Scene, Claimed, str], Awaitable[None]]:
    async def drive(scene: Scene, claimed: Claimed, key: str) -> None:
        await scene.flush(claimed, await scene.outcome(claimed, key, state))

    return drive


def _settle(verdict: str) -> Callable[[Scene, Claimed, str], Awaitable[None]]:
    async def drive(scene: Scene, claimed: Claimed, key: str) -> None:
        await scene.store.settle([scene.settlement(claimed, key, verdict, forced=True)], now=scene.now)

    return drive


async def _reopen(scene: Scene, claimed: Claimed, key: str) -> None:
    end = scene.failure(task_state="waiting", reason="operator", error=None, reopen=(key,))
    assert (await scene.flush(claimed, end)).kind == "accepted"


async def _contradict(scene: Scene, claimed: Claimed, key: str) -> None:
    row = await scene.operation(claimed, key)
    evidence = Evidence(
        tenant=claimed.tenant,
        task=claimed.task,
        key=key,
        attempt=row.attempt,
        source="late",
        data="{}",
        says="did_not_happen" if row.state == "succeeded" else "happened",
    )
    await scene.store.note([evidence], now=scene.now)


OPERATION_DRIVES: dict[str, Callable[[Scene, Claimed, str], Awaitable[None]]] = {
    "approve": _approve,
    "start": _start,
    "refuse": _refuse,
    "succeed": _outcome("succeeded"),
    "fail": _outcome("failed"),
    "lose": _outcome("unknown"),
    "back_off": _outcome("planned"),
    "settle_happened": _settle("happened"),
    "settle_did_not_happen": _settle("did_not_happen"),
    "send_again": _settle("send_again"),
    "resend": _resend,
    "contradict": _contradict,
    "reopen": _reopen,
}

SETTLED_BY_THE_WORKER = {
    # A worker that holds the lease settles an unknown by its own outcome: same compare-and-set and target.
    ("unknown", "succeed"): "settle_happened",
    ("unknown", "fail"): "settle_did_not_happen",
    # Still unknown after having asked.
    ("unknown", "lose"): None,
}
"""Pairs that the table refuses under this name and takes under another, which the same verb carries."""


class TestOperationTransitions:
    """Every pair of the table of operations."""

    @pytest.mark.parametrize(("state", "command", "answer"), driven(OPERATION))
    async def test_ends_where_the_table_says(
        self, scene: Scene, state: str, command: str, answer: str | Refusal
    ) -> None:
        claimed = await scene.running()
        key = await operation_in(scene, claimed, state)
        before = await scene.operation(claimed, key)
        await OPERATION_DRIVES[command](scene, claimed, key)
        row = await scene.operation(claimed, key)
        if (state, command) in SETTLED_BY_THE_WORKER:
            other = SETTLED_BY_THE_WORKER[state, command]
            assert row.state == (expected(state, OPERATION.apply(state, other)) if other else state)
            return
        assert row.state == expected(state, answer)
        if isinstance(answer, Refusal):
            assert replace(row, epoch=0) == replace(before, epoch=0)
        unsettled = await scene.rows("unsettled", claimed)
        assert len(unsettled) == (row.state == "unknown")


# -- approvals -------------------------------------------------------------------------------------------


async def approval_in(scene: Scene, claimed: Claimed, state: str) -> AskApproval:
    """Bring a question about a call into a state."""
    ask = scene.ask("it", expires_in_us=HOUR)
    asked = await scene.asked(claimed, ask)
    if state == "rejected":
        await scene.decide(asked, "reject")
    elif state in ("approved", "used"):
        await scene.decide(asked)
    elif state == "expired":
        await _late(scene, claimed, ask)
    elif state == "withdrawn":
        await _ask_anew(scene, claimed, ask)
    if state == "used":
        await scene.write(claimed, scene.agreed_intent(ask))
    assert (await scene.approval(claimed, "it")).state == state
    return ask


async def _late(scene: Scene, claimed: Claimed, ask: AskApproval) -> None:
    scene.now = ((await scene.approval(claimed, ask.key)).expires_at or 0) + 1
    await scene.flush(claimed, ExpireApproval(key=ask.key, number=1))


async def _ask_anew(scene: Scene, claimed: Claimed, ask: AskApproval) -> None:
    await scene.flush(claimed, replace(ask, number=2, fingerprint="another"))


async def _use(scene: Scene, claimed: Claimed, ask: AskApproval) -> None:
    await scene.flush(claimed, scene.agreed_intent(ask))


def _decide(verdict: str) -> Callable[[Scene, Claimed, AskApproval], Awaitable[None]]:
    async def drive(scene: Scene, claimed: Claimed, ask: AskApproval) -> None:
        await scene.decide(await scene.approval(claimed, ask.key), verdict)

    return drive


APPROVAL_DRIVES: dict[str, Callable[[Scene, Claimed, AskApproval], Awaitable[None]]] = {
    "approve": _decide("approve"),
    "reject": _decide("reject"),
    "expire": _late,
    "withdraw": _ask_anew,
    "use": _use,
}


class TestApprovalTransitions:
    """Every pair of the table of approvals."""

    @pytest.mark.parametrize(("state", "command", "answer"), driven(APPROVAL))
    async def test_ends_where_the_table_says(
        self, scene: Scene, state: str, command: str, answer: str | Refusal
    ) -> None:
        claimed = await scene.running()
        ask = await approval_in(scene, claimed, state)
        before = await scene.approval(claimed, "it")
        await APPROVAL_DRIVES[command](scene, claimed, ask)
        after = await scene.approval(claimed, "it")
        assert after.state == expected(state, answer)
        if isinstance(answer, Refusal):
            assert after == before


class TestCoverage:
    """Nothing in the tables is forgotten here."""

    @pytest.mark.parametrize(
        ("machine", "drives"),
        [
            (TASK, TASK_DRIVES),
            (ATTEMPT, ATTEMPT_ENDS),
            (OPERATION, OPERATION_DRIVES),
            (APPROVAL, APPROVAL_DRIVES),
        ],
        ids=lambda value: value.name if isinstance(value, Machine) else "",
    )
    def test_every_command_is_driven_or_listed_as_later(
        self, machine: Machine, drives: dict[str, object]
    ) -> None:
        later = LATER[machine.name]
        assert set(machine.commands) == set(drives) | set(later)
        assert not set(drives) & set(later)

    def test_every_command_of_the_later_ones_is_known(self) -> None:
        for machine in (TASK, ATTEMPT, OPERATION, APPROVAL):
            assert set(LATER[machine.name]) <= set(machine.commands)
