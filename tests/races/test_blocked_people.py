"""The blocked twins of what reaches a task from outside, on PostgreSQL: signals, cancels, news.

Each began while another backend held what it needs, and answers what is true of what is there in the end: no
wake-up is lost, and a cancel and a completion agree with each other.
"""

from __future__ import annotations

from typing import Any

from tests.engine.house import House
from tests.races.blocking import (
    ON_POSTGRES,
    Blocked,
    Place,
    cancel,
    claim,
    deferred_then,
    flush,
    into,
    people,
    told,
)
from tests.races.holding import ended, rival, start

from outlast import TaskContext
from outlast.errors import WaitTimeout
from outlast.store.posting import CancelReply, Posted
from outlast.store.records import (
    Claimed,
    Serves,
    TaskRef,
)
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


def posting(scene: Scene, of: Any, **changes: Any) -> Any:
    """Begin to post a signal."""
    return start(scene.post(scene.signal(of, **changes)))


def cancelling(scene: Scene, of: Any) -> Any:
    """Begin to cancel."""
    return start(scene.cancel(of))


# ── post ─────────────────────────────────────────────────────────────────────────────────────────


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: the signal wakes it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.wait("signal"), scene.suspension("signal"))
        assert [one.kind for one in await other.commits_first(posting(scene, claimed))] == ["accepted"]
    assert (await scene.task(claimed)).state == "queued"
    assert (await scene.kinds(claimed))[-2:] == ["signal.received", "task.woken"]
    assert len(await scene.rows("queue", claimed)) == 1
    assert (await scene.claim_task(claimed)).facts == 1


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The signal comes first: the suspension has not seen it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).post([scene.signal(claimed)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.suspension("operator", facts=0))
    assert (verdict.kind, verdict.state) == ("accepted", "queued")


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The task ends first: there is nobody to hear it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.success())
        answer = await other.commits_first(posting(scene, claimed))
        assert [(one.kind, one.state) for one in answer] == [("ended", "succeeded")]
    assert await scene.rows("inbox", claimed) == []
    assert (await scene.kinds(claimed))[-1] == "task.succeeded"


async def a_wait_is_open(scene: Scene, due_in_us: int) -> Claimed:
    """Have a task that waits for the answer to a callback, by the database's clock."""
    claimed = await scene.running(ttl_us=HOUR)
    wait = scene.step("wait", kind="signal", state="running", due_in_us=due_in_us, result=None)
    await scene.store.flush(scene.batch(scene.writes(claimed, wait)))
    return claimed


def answering(scene: Scene, claimed: Claimed) -> Any:
    """Begin to answer it, by the database's clock."""
    return start(scene.store.post([scene.signal(claimed, "callback", key="answer", operation="wait")]))


@blocked("post", "head", "held")
async def _(place: Place) -> None:
    """The wait's time is over while its task is held: the answer comes too late."""
    scene = place.scene
    claimed = await a_wait_is_open(scene, SECOND // 2)
    due_at = (await scene.operation(claimed, "wait")).due_at
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = answering(scene, claimed)
        assert await other.see_blocked(twin)
        await other.see_time_over(due_at)
        await other.commit()
        assert await ended(twin) == [Posted(kind="over", state="running")]
    assert await scene.rows("inbox", claimed) == []


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The wait is recorded as over first."""
    scene = place.scene
    claimed = await a_wait_is_open(scene, HOUR)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.step("wait", kind="signal", state="failed", result=None))
        assert await other.commits_first(answering(scene, claimed)) == [Posted(kind="over", state="failed")]


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task first, without the signal: it is news to it."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        await other.commits_first(posting(scene, record))
    assert [(one.task, one.facts) for one in await scene.news(session)] == [(record.task, 1)]


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The sweeper takes the task away first: the signal waits for the next worker."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        await other.commits_first(posting(scene, claimed))
    again = await scene.claim_task(claimed)
    assert again.facts == 1
    [loaded] = await scene.store.load([again])
    assert [row.number for row in loaded.inbox] == [1]


@blocked("post", "key", "changed")
async def _(place: Place) -> None:
    """Two signals under one key: the second is told of the first."""
    scene = place.scene
    claimed = await scene.running()
    first = scene.signal(claimed, "go", key="k")
    async with rival(place.url) as other:
        await (await people(other)).post([first], now=scene.now)
        same, another = start(scene.post(first)), scene.signal(claimed, "go", key="k")
        assert await other.see_blocked(same)
        await other.commit()
        assert [(one.kind, one.number) for one in await ended(same)] == [("replayed", 1)]
    assert [(one.kind, one.number) for one in await scene.post(another)] == [("conflict", 1)]


@blocked("post", "key", "held")
async def _(place: Place) -> None:
    """The first fails after all: the key is free."""
    scene = place.scene
    claimed = await scene.running()
    first = scene.signal(claimed, "go", key="k")
    async with rival(place.url) as other:
        await (await people(other)).post([first], now=scene.now)
        answer = await other.fails_first(posting(scene, claimed, name="go", key="k"))
        assert [(one.kind, one.number) for one in answer] == [("accepted", 1)]


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The task completes first: the cancel says so."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.success())
        answer = await other.commits_first(cancelling(scene, claimed))
        assert answer == CancelReply(kind="ended", state="succeeded")
    assert (await scene.kinds(claimed))[-1] == "task.succeeded"
    assert await scene.store.read_audit(claimed.tenant) == []


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first: whatever ends the attempt becomes one."""
    scene = place.scene
    endings = (
        scene.success(),
        scene.failure(),
        scene.release(),
        scene.suspension("timer", wake_in_us=HOUR),
    )
    for ending in endings:
        claimed = await scene.running()
        async with rival(place.url) as other:
            [reply] = await (await people(other)).cancel([cancel(claimed)], now=scene.now)
            assert reply.kind == "requested"
            verdict = await deferred_then(scene, other, claimed, ending)
        assert (verdict.kind, verdict.state) == ("accepted", "cancelled")
        task = await scene.task(claimed)
        assert (task.state, task.cancelling, task.result) == ("cancelled", False, None)
        assert task.error == '{"code":"cancelled","message":"first"}'
        assert (await scene.kinds(claimed)).count("task.cancelled") == 1
        assert await scene.rows("queue", claimed) == await scene.rows("timers", claimed) == []


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: it is ended here and now."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("operator"))
        assert (await other.commits_first(cancelling(scene, claimed))).kind == "cancelled"
    assert (await scene.task(claimed)).state == "cancelled"


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task first: it is marked, and its worker told."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        answer = await other.commits_first(cancelling(scene, record))
        assert answer == CancelReply(kind="requested", state="running")
    assert [one.cancelling for one in await scene.news(session)] == [True]


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel of a queued task comes first: a claim leaves it, before that is committed and after."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    serves = [Serves(agent=record.agent, version="v")]
    async with rival(place.url) as other:
        [reply] = await (await people(other)).cancel([cancel(record)], now=scene.now)
        assert reply.kind == "cancelled"
        for _ in range(2):
            twin = start(scene.claim(session, pools=[record.pool], serves=serves))
            assert (await ended(twin)).claims == ()
            if other._lines:
                await other.commit()
                await other.begin()
    assert (await scene.task(record)).state == "cancelled"


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """Two cancels: the second changes nothing."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        answer = await other.commits_first(cancelling(scene, claimed))
        assert answer == CancelReply(kind="requested", state="running")
    assert (await scene.kinds(claimed)).count("task.cancel_requested") == 1
    assert [row.who for row in await scene.store.read_audit(claimed.tenant)] == ["person:rival"]
    await scene.write(claimed, scene.success())
    assert (await scene.task(claimed)).error == '{"code":"cancelled","message":"first"}'


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The sweeper takes the task away first: it is queued, and cancelled there."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        assert (await other.commits_first(cancelling(scene, claimed))).kind == "cancelled"
    assert await scene.rows("queue", claimed) == []


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first and the sweeper does not wait for it: the next sweep ends it as cancelled."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        scene.pass_time(61 * SECOND)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        assert (await ended(twin)).lost == ()
        await other.commit()
    await scene.sweep()
    assert (await scene.task(claimed)).state == "cancelled"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["cancelled"]


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """An intent comes first: it is committed before the acknowledgement."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, intent)
        assert (await other.commits_first(cancelling(scene, claimed))).kind == "requested"
    assert (await scene.operation(claimed, intent.key)).state == "running"
    assert (await scene.flush(claimed, scene.intent())).refusals == ((0, "cancelled"),)


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first: no intent is admitted from its commit on."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.intent())
    assert verdict.refusals == ((0, "cancelled"),)
    assert await scene.rows("operations", claimed) == []


@blocked("cancel", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert (await other.commits_first(cancelling(scene, claimed))).kind == "requested"


# ── news ─────────────────────────────────────────────────────────────────────────────────────────


@blocked("news", "lease", "changed")
async def _(place: Place) -> None:
    """Another signal is under way while the worker says what it has heard: that one is not lost."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    async with rival(place.url) as other:
        await (await people(other)).post([scene.signal(claimed)], now=scene.now)
        twin = start(scene.news(session, (claimed, 1)))
        assert not await other.see_blocked(twin)
        await ended(twin)
        await other.commit()
    assert [one.facts for one in await scene.news(session, (claimed, 1))] == [2]
    assert await scene.news(session, (claimed, 2)) == []


@blocked("news", "lease", "held")
async def _(place: Place) -> None:
    """Somebody has the lease's row: nobody waits, and what was heard is told once more."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    async with rival(place.url) as other:
        await other.hold("leases", tenant=claimed.tenant, task=claimed.task)
        twin = start(scene.news(session, (claimed, 1)))
        assert not await other.see_blocked(twin)
        assert [one.facts for one in await ended(twin)] == [1]
        await other.commit()
    assert await scene.news(session, (claimed, 1)) == []


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


test_a_blocked_twin_tells_the_truth = told(BLOCKED)


async def test_an_answer_that_is_on_its_way_to_disk_when_the_wait_is_over_counts(place: Place) -> None:
    """It was posted in time, though whoever waits cannot see it yet."""
    async with House(place.scene.store) as house:

        @house.app.agent
        async def waits(task: TaskContext) -> Any:
            try:
                return await task.wait("go", timeout=1)
            except WaitTimeout:
                return "nobody"

        handle = await house.submit(waits)
        house.start(linger_s=60.0)
        await house.reached(handle, "operation.started")
        (wait,) = (await house.operations(handle)).values()
        due_at = wait.due_at
        assert due_at is not None
        async with rival(place.url) as other:
            named = TaskRef(tenant=handle.tenant, task=handle.id)
            signal = place.scene.signal(named, "go", data='"ann"')
            assert [one.kind for one in await (await people(other)).post([signal])] == ["accepted"]
            await other.see_time_over(int(due_at.timestamp() * 1_000_000) + SECOND // 4)
            await other.commit()
        assert (await house.ended(handle)).result == "ann"
