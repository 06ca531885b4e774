"""A worker stands still before a write, another finishes its tasks; what it writes afterwards is refused."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.crashes.scene import PATIENCE_S, Scene, gathered

from outlast.drills.fleet import Process
from outlast.handle import TaskHandle
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule

# Where the worker freezes, and the kind of write, or of start, that is next when it goes on.
FREEZES = {
    "worker.claimed": "the first step of every task that it holds",
    "worker.loaded": "the first step",
    "journal.before_flush": "a step's result and an event",
    "effects.before_intent": "an intent",
    "effects.after_intent": "a call, which the check before the send refuses",
    "http.before_send": "a call that is past its last check",
    "effects.before_outcome": "an outcome",
    "settle.after_find": "a settlement",
    "worker.before_suspend": "a suspension",
    "worker.before_end": "a completion",
    "session.before_renew": "a heartbeat",
    "sweeper.before_sweep": "a sweep",
}
# Never frozen inside a transaction. Nobody sweeps, so only the one to freeze at a suspension suspends. A busy
# machine leaves them their lease until they freeze.
CALM = {
    "calm": True,
    "lease_s": 5.0,
    "sweep_s": 30.0,
    "renew_s": 0.3,
    "linger_s": 60.0,
    "grace_s": PATIENCE_S,
}
NTH = {"session.before_renew": 2, "journal.before_flush": 2}


async def freezes(scene: Scene, point: str) -> tuple[Process, list[TaskHandle]]:
    """Let a worker freeze at a point, with two tasks that it works on."""
    pool = point.replace(".", "-")
    handles = [await scene.submit("journey", {"invoice": f"{pool}-{letter}"}, pool=pool) for letter in "ab"]
    await scene.recorder.plan(Rule(then="reset", key=f"{handles[1].id}:create_ticket#1"))
    trigger = Trigger(point=point, action="freeze", nth=NTH.get(point, 1))
    quick = {"linger_s": 0.0} if point == "worker.before_suspend" else {}
    worker = scene.worker(pool, trigger, pools=[pool], **{**CALM, **quick})
    await worker.says(point)
    await worker.stopped()
    return worker, handles


async def thaws(worker: Process) -> None:
    """Let a worker go on until it knows that it lost its session."""
    worker.thaw()
    await worker.says("session_lost")


async def lost(scene: Scene, names: list[str]) -> None:
    """Wait until the sweeper has ended every session of these names."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            sessions = (await scene.app.store.dump())["sessions"]
            if all(row["lost_at"] is not None for row in sessions if row["name"] in names):
                return
            # The end of a session that holds no lease is told to nobody.
            await asyncio.sleep(0.05)


def told(dump: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Answer everything that tells a task's story. Evidence may still come: it changes nothing."""
    tables = ("tasks", "inputs", "operations", "events", "attempts", "results", "timers", "queue", "leases")
    return {name: sorted(dump[name], key=repr) for name in (*tables, "unsettled", "outbox")}


async def test_nothing_of_a_worker_that_stood_still_lands(scene: Scene) -> None:
    frozen = await gathered([freezes(scene, point) for point in FREEZES], 6)
    pools = [worker.name for worker, _ in frozen]
    # It lives, and must not be taken for dead on a busy machine.
    successor = scene.worker("successor", pools=pools, slots=100, lease_s=30.0)
    views = await scene.ended(*(handle for _, handles in frozen for handle in handles))
    assert {view.state for view in views} == {"succeeded"}
    # A session that ran out is not lost before somebody has said so; its worker would renew it when it thaws.
    await lost(scene, pools)
    assert await successor.stop() == 0
    before = await scene.app.store.dump()
    earlier = await scene.recorder.log()

    await asyncio.gather(*(thaws(worker) for worker, _ in frozen))
    # One call was past its last check; it goes out.
    sent = len([call for call in earlier if call.method == "POST"]) + 1
    await scene.recorder.wait_for(calls=sent, method="POST", ended=True, timeout=PATIENCE_S)
    assert {await worker.stop() for worker, _ in frozen} == {0}

    after = await scene.app.store.dump()
    assert told(after) == told(before)
    assert await scene.violations(earlier=before, quiet=False) == []
    assert await scene.violations() == []
    # Late answers are kept, as evidence.
    late = [row for row in after["evidence"] if row["source"] == "late"]
    assert late != []
    # It had the key of the one that counted.
    added = [call for call in (await scene.recorder.log())[len(earlier) :] if call.method != "GET"]
    assert [(call.method, call.effect, call.replayed) for call in added] == [("POST", None, True)]
    posts = await scene.posts()
    assert sum(len(calls) for calls in posts.values()) == len(views) + 1
    assert len(await scene.recorder.tickets()) == len(views)
    # Tasks that were claimed and not begun were not begun by the one that came too late.
    for worker, handles in frozen:
        if worker.name in ("worker-claimed", "worker-loaded"):
            assert [said for said in worker.said if said.word == "step"] == [], worker.name
            for handle in handles:
                assert await scene.ends(handle) == ["lost", "suspended", "succeeded"]
