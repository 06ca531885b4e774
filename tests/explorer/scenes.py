"""What a task's world is like when the verbs begin: one rich scene, in each of the places a task can be in.

The same task is always the one in question. It has a parent and children, calls in every state, a question
before people, something in its inbox, a message that was not sent yet, an outside session; beside it there is
another task in its lane, a session without leases, and a schedule that is due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from outlast.store.approving import ApprovalRow
from outlast.store.contract import Store
from outlast.store.entries import AttachSession, BusinessKey, CommitIntent
from outlast.store.reconciling import Pause
from outlast.store.records import Claimed, OperationRow, Submission, SweepRequest
from outlast.store.rows import TaskRow
from outlast.store.scheduling import ScheduleRow
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

KEY = BusinessKey(tool="pay", value="invoice-1", mode="once", window_us=HOUR)


@dataclass(frozen=True)
class Props:
    """What there is. session, worker: of whoever has the task, and its name; spare: one without leases."""

    scene: Scene
    session: str
    worker: str
    spare: str
    parent: Claimed
    record: Submission
    claimed: Claimed
    task: TaskRow
    facts: int
    kid: Submission
    open: OperationRow
    call: OperationRow
    intent: CommitIntent
    asked: ApprovalRow
    ask: Any
    schedule: ScheduleRow

    @property
    def of(self) -> dict[str, Any]:
        """The task, as what is asked of the store names it."""
        return {"tenant": self.claimed.tenant, "task": self.claimed.task}


Turn = Callable[[Scene, Claimed], Awaitable[None]]


async def _stay(scene: Scene, claimed: Claimed) -> None:
    """It runs."""


async def _facts(scene: Scene, claimed: Claimed) -> int:
    [row] = await scene.rows("tasks", claimed)
    return int(row["facts"])


async def _lost(scene: Scene, claimed: Claimed) -> None:
    """Its worker is dead: the session has run out, and nobody has swept yet."""
    scene.pass_time(61 * SECOND)


async def _released(scene: Scene, claimed: Claimed) -> None:
    """It stands in the queue."""
    await scene.write(claimed, scene.release())


async def _waits(scene: Scene, claimed: Claimed) -> None:
    """It waits for a signal, for half a minute."""
    facts = await _facts(scene, claimed)
    await scene.write(claimed, scene.suspension("signal", facts=facts, wake_in_us=30 * SECOND))


async def _is_due(scene: Scene, claimed: Claimed) -> None:
    """It waited for a time that is over."""
    await _waits(scene, claimed)
    scene.pass_time(31 * SECOND)


async def _needs_an_operator(scene: Scene, claimed: Claimed) -> None:
    """It waits for an operator."""
    facts = await _facts(scene, claimed)
    await scene.write(claimed, scene.suspension("operator", facts=facts))


async def _marked(scene: Scene, claimed: Claimed) -> None:
    """It runs, and a cancel stands."""
    assert (await scene.cancel(claimed)).kind == "requested"


async def _held(scene: Scene, claimed: Claimed) -> None:
    """It waits, and a switch that stands holds one of its calls back."""
    switch = Pause(tenant=claimed.tenant, scope="tool:pay", reason="audit", by="person:ann")
    await scene.store.pause(switch, now=scene.now)
    verdict = await scene.flush(claimed, scene.intent("held", name="pay"))
    assert verdict.refusals == ((0, "paused"),)
    await _waits(scene, claimed)


async def _failed(scene: Scene, claimed: Claimed) -> None:
    """It has failed, with calls that nobody knows of."""
    await scene.write(claimed, scene.failure())


async def _succeeded(scene: Scene, claimed: Claimed) -> None:
    """It has succeeded."""
    await scene.write(claimed, scene.success())


SETTINGS: dict[str, Turn] = {
    "running": _stay,
    "lost": _lost,
    "queued": _released,
    "waiting": _waits,
    "due": _is_due,
    "operator": _needs_an_operator,
    "marked": _marked,
    "held": _held,
    "failed": _failed,
    "succeeded": _succeeded,
}
"""Where the task is, by name."""


async def furnish(setting: str, store: Store, now: int) -> Props:
    """Furnish an empty database; every verb that follows happens at the scene's time."""
    scene = Scene(store=store, now=now)
    session, spare = await scene.session(), await scene.session(ttl_us=10 * HOUR)
    [worker] = [row.name for row in await store.list_sessions() if row.session == session]
    await scene.session(ttl_us=SECOND)
    parent = await scene.running(session=session, agent="agent-parent", pool="pool-parent")
    record = await scene.child(
        parent, "spawned", agent="agent-task", pool="pool-task", announce=True, deadline_us=HOUR
    )
    claimed = await scene.claim_task(record, session=session, version="v1")
    kid = await scene.child(claimed, "kid", agent="agent-kid", pool="pool-kid")
    ended = await scene.child(claimed, "kid-that-ended", agent="agent-kid", pool="pool-kid")
    await scene.cancel(ended)
    await scene.submit(agent="agent-task", pool="pool-task", version="v1")

    await scene.write(claimed, scene.step("done"))
    intent = scene.intent("open", name="mail", timeout_us=SECOND)
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, "open", "unknown"))
    await scene.called(claimed, key="call", name="pay", business=KEY, timeout_us=SECOND)
    ask = scene.ask("asked", name="pay", expires_in_us=50 * SECOND)
    await scene.write(claimed, ask)
    await scene.write(claimed, AttachSession(provider="provider-1", session="session-1"))
    await scene.write(claimed, scene.wait("signal", "awaited"))
    await scene.post(scene.signal(claimed, "go"))
    await store.put_rule(scene.rule("mail"), now=scene.now)
    scene.pass_time(2 * SECOND)
    schedule = await scheduling.put(
        scene, id="nightly", agent="agent-task", pool="pool-task", version="v1", overlap="skip"
    )
    # So that a sweep has nothing else to do.
    await store.sweep(SweepRequest(), now=scene.now)
    await SETTINGS[setting](scene, claimed)
    return Props(
        scene=scene,
        session=session,
        worker=worker,
        spare=spare,
        parent=parent,
        record=record,
        claimed=claimed,
        task=await scene.task(claimed),
        facts=await _facts(scene, claimed),
        kid=kid,
        open=await scene.operation(claimed, "open"),
        call=await scene.operation(claimed, "call"),
        intent=intent,
        asked=await scene.approval(claimed, "asked"),
        ask=ask,
        schedule=schedule,
    )
