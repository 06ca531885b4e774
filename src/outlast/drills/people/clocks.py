"""A worker whose wall clock is an hour ahead, and is then put back by two: the database's clock decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outlast.drills import crew
from outlast.drills.people.scene import STEADY, WORKER, Played, Scene, invoice_of
from outlast.drills.stage import Check

__all__ = ["wrong_clock"]

_SECONDS = 1.0
_AHEAD_S = 3600.0
_STEP_S = -7200.0


async def wrong_clock(scene: Scene, cell: str) -> Played:
    """Let every kind of time limit go by under a wrong clock, before and after it is put back."""
    environ = {**scene.environ, "OUTLAST_DRILL_GENERATION": "2"}
    worker = scene.fleet.start(
        "wrong clock", WORKER, "wrong-clock", cell, "steady", str(_AHEAD_S), environ=environ
    )
    await worker.says("ready", timeout=crew.PATIENCE_S)
    # Its sweeper looks at everybody's leases, this one's included.
    other = await scene.submit("works", {"seconds": 3.0}, pool=STEADY)
    tasks, early, told, starts = [], [], [], []
    for number in (1, 2):
        input = {"invoice": invoice_of(cell, number), "seconds": _SECONDS}
        run_at = datetime.fromtimestamp(await scene.now_us() / 1_000_000, UTC) + timedelta(seconds=_SECONDS)
        task = await scene.submit("keeps_time", input, pool=cell, run_at=run_at)
        tasks.append(task)
        if number == 1:
            # With its waits under way.
            await scene.reached(task, "attempt.started")
            await worker.tell(str(_STEP_S))
        told.append(await scene.told(task))
        starts.append((await scene.reached(task, "attempt.started")).at >= run_at)
        early += await _too_early(scene, task)
    await scene.end(other)
    attempts = [await scene.attempts(task) for task in (other, *tasks)]
    await worker.stop()
    expired = {"code": "approval_expired", "reason": "expired"}
    return Played(
        cell=cell,
        tasks=(*tasks, other),
        checks=(
            Check(what="told", expected=[["none in time", expired]] * 2, seen=told),
            Check(what="begun no earlier than they should", expected=[True, True], seen=starts),
            Check(what="over before their time was", expected=[], seen=early),
            Check(what="attempts lost", expected=0, seen=sum(ends.count("lost") for ends in attempts)),
        ),
    )


async def _too_early(scene: Scene, task: str) -> list[str]:
    """Answer what ended before it was due, by the database's clock."""
    found = [
        one.id
        for one in await scene.app.operations.list(task=task)
        if one.due_at is not None and one.ended_at is not None and one.ended_at < one.due_at
    ]
    (asked,) = await scene.approvals(task)
    (expired,) = await scene.events(task, "approval.expired")
    if asked.expires_at is None or expired.at < asked.expires_at:
        found.append(asked.id)
    return found
