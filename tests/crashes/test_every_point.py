"""A worker dies at every point there is, for real; a second one finishes; the other side counts.

All of it happens in one database: each crash has a pool of its own, with a worker of its own that dies there.
One last worker, which serves every pool, finds what they left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.crashes.scene import PATIENCE_S, Scene, gathered

from outlast.handle import TaskHandle
from outlast.probes import POINTS
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule

# Passes beyond the first, where a later one finds another state of affairs.
LATER = {
    "journal.before_flush": (3, 5),
    "journal.after_flush": (2, 4),
    "effects.after_intent": (3,),
    "effects.before_outcome": (2,),
    "http.before_send": (2, 3),
    "worker.claimed": (2,),
    "worker.loaded": (2, 3),
    "worker.before_end": (2,),
    "session.before_renew": (2,),
    "sweeper.after_sweep": (3,),
    "deliver.before": (3,),
}
CLIENT = ("submit.before_commit", "submit.after_commit")
ASKING = ("approvals.before_ask", "approvals.after_ask")
SCHEDULES = ("schedules.before_fire", "schedules.after_fire")
AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One death. pool: where it happens."""

    trigger: Trigger

    @property
    def pool(self) -> str:
        return f"{self.trigger.point.replace('.', '-')}-{self.trigger.nth}"


ELSEWHERE = ("undo.before_decision", "undo.after_decision", "fork.after_commit")
"""Points that lie on no journey; their deaths are those of ``test_undo`` and of the tests of forks."""
# Nobody but a gateway comes to its points: tests/gateway/test_processes.py.
HERE = [point for point in POINTS if point not in ELSEWHERE and not point.startswith("gateway.")]
CRASHES = [
    Crash(trigger=Trigger(point=point, action="kill", nth=nth))
    for point in HERE
    for nth in (1, *LATER.get(point, ()))
]


async def worker_dies(scene: Scene, crash: Crash) -> list[TaskHandle]:
    """Let a worker die; answer the tasks that it leaves."""
    # Nobody is asked anything on a journey.
    agent, more = ("asks", {}) if crash.trigger.point in ASKING else ("journey", {"pool": crash.pool})
    handles = [
        await scene.submit(agent, {"invoice": f"{crash.pool}-{letter}", **more}, pool=crash.pool)
        for letter in "ab"
    ]
    # The second one's answer is lost, so that there is something to settle.
    await scene.recorder.plan(Rule(then="reset", key=f"{handles[1].id}:create_ticket#1"))
    worker = scene.worker(crash.pool, crash.trigger, pools=[crash.pool])
    await worker.says(crash.trigger.point)
    assert await worker.exited() == -9
    return handles


async def client_dies(scene: Scene, crash: Crash) -> list[TaskHandle]:
    """Let a client die while it submits; submit the same again."""
    request = {"key": f"key-{crash.pool}", "pool": crash.pool, "invoice": f"{crash.pool}-a"}
    client = scene.client(crash.pool, crash.trigger, **request)
    await client.says(crash.trigger.point)
    assert await client.exited() == -9
    again = await scene.submit(
        "journey", {"invoice": request["invoice"]}, key=request["key"], pool=crash.pool
    )
    assert again.replayed is (crash.trigger.point == "submit.after_commit")
    return [again]


async def answer(scene: Scene, handle: TaskHandle) -> None:
    """Wait until a task asks a person, and answer; there is one question, however often its worker died."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in handle.events():
            if event.kind == "approval.requested":
                break
    (question,) = await scene.app.approvals.list(task=handle.id)
    await scene.app.approvals.answer(question.id, "118.50", by="kim", fingerprint=question.fingerprint)


async def schedule_dies(scene: Scene, crash: Crash) -> str:
    """Let the only worker there is die while it fires a schedule; answer the schedule."""
    now = datetime.now(UTC)
    await scene.app.schedules.put(
        crash.pool, "journey", {"invoice": f"{crash.pool}-a"}, at=now, pool=crash.pool
    )
    worker = scene.worker(crash.pool, crash.trigger, pools=[crash.pool])
    await worker.says(crash.trigger.point)
    assert await worker.exited() == -9
    # Whoever looks next finds it due, or fired.
    fired = (await scene.app.schedules.get(crash.pool)).fired
    assert fired == (crash.trigger.point == "schedules.after_fire")
    return crash.pool


async def test_whatever_point_a_process_dies_at_each_effect_happens_once(scene: Scene) -> None:
    # Any worker fires any schedule, so these die before there is another.
    schedules = [await schedule_dies(scene, crash) for crash in CRASHES if crash.trigger.point in SCHEDULES]
    deaths = [
        (client_dies if crash.trigger.point in CLIENT else worker_dies)(scene, crash)
        for crash in CRASHES
        if crash.trigger.point not in SCHEDULES
    ]
    left = await gathered(deaths, AT_ONCE)
    reached = {said.word for process in scene.fleet.processes for said in process.said}
    assert reached >= set(HERE), f"not reached: {sorted(set(HERE) - reached)}"

    # It is not the one to die: a busy machine must not take its lease.
    pools = [crash.pool for crash in CRASHES]
    successor = scene.worker("successor", pools=pools, slots=100, lease_s=30.0)
    handles = [handle for group in left for handle in group]
    asked = [handle for handle in handles if (await handle.get()).agent == "asks"]
    await asyncio.gather(*(answer(scene, handle) for handle in asked))
    handles += [await scene.fired(schedule) for schedule in schedules]
    views = await scene.ended(*handles)
    assert await successor.stop() == 0

    # The other side is the judge: one ticket and one POST a task, and the note that belongs to it.
    posts = await scene.posts()
    tickets = {ticket["idempotency_key"]: ticket for ticket in await scene.recorder.tickets()}
    wrong = []
    for view in views:
        key, invoice = f"{view.id}:create_ticket#1", view.input["invoice"]
        ticket = tickets.pop(key, None)
        expected = ticket and {"ticket": ticket["id"], "note": f"for {invoice}"}
        if view.state != "succeeded" or view.result != expected or ticket is None:
            wrong.append(f"{view.pool}: {view.state} {view.result or view.error}, the ticket is {ticket}")
        elif ticket["invoice"] != invoice or ticket.get("note") != f"for {invoice}":
            wrong.append(f"{view.pool}: the ticket says {ticket}")
        if len(posts.get(key, ())) != 1:
            wrong.append(f"{view.pool}: {len(posts.get(key, ()))} POSTs")
    assert wrong == []
    assert tickets == {}
    assert await scene.violations() == []
    # The deaths were real, and each task came to one end.
    ends = await asyncio.gather(*(scene.ends(handle) for handle in handles))
    assert [end for end in ends if end[-1] != "succeeded" or end.count("succeeded") > 1] == []
    assert sum("lost" in end for end in ends) >= len(CRASHES) - len(SCHEDULES)
