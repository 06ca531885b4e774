"""The blocked twins of parents and children, on PostgreSQL: submitted, ended, delivered.

Each began while another backend held what it needs, and answers what is true of what is there in the end: a
child's end reaches its parent once, and no child outlives a parent that it belongs to.
"""

from __future__ import annotations

from typing import Any

from tests.races.blocking import (
    ON_POSTGRES,
    Blocked,
    Place,
    cancel,
    claim,
    deferred_then,
    flush,
    flushing,
    into,
    people,
    told,
)
from tests.races.holding import ended, rival, start

from outlast.store.entries import RecordOperation
from outlast.store.posting import Delivered
from outlast.store.records import (
    Claimed,
    Submission,
    Submitted,
    TaskRef,
)
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import refusal, switch
from outlast.testing.store_suite.posting import head, inbox
from outlast.testing.store_suite.scene import HOUR, Scene, changed

pytestmark = ON_POSTGRES

RESULT = '{"of":"the kid"}'

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


# ── children ─────────────────────────────────────────────────────────────────────────────────────


def kid_of(scene: Scene, parent: Claimed) -> Submission:
    """Make the record of a child."""
    return scene.submission(key=None, parent=scene.parent(parent, "kid"))


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The parent ends first: it has no more children."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.success())
        answer = await other.commits_first(scene.store.submit([kid]))
        assert answer == [Submitted(kind="stale", task=kid.task)]
    assert await scene.store.read_tasks([TaskRef(tenant=kid.tenant, task=kid.task)]) == []


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The parent is cancelled first."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(parent)], now=scene.now)
        assert [one.kind for one in await other.commits_first(scene.store.submit([kid]))] == ["stale"]


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The child comes first: its parent's end reaches it."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await scene.store.submit([kid], connection=other.connection)
        verdict = await deferred_then(scene, other, parent, scene.success())
        assert verdict.kind == "accepted"
    await scene.deliver_all()
    assert (await scene.task(kid)).state == "cancelled"


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The parent's worker writes first: what is said of the child is numbered behind that."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.step("before", events=(scene.event(), scene.event())))
        answer = await other.commits_first(scene.store.submit([kid]))
        assert answer == [Submitted(kind="accepted", task=kid.task)]
    assert (await scene.kinds(parent))[-1] == "operation.started"
    assert (await scene.operation(parent, "kid")).state == "running"
    assert check_all(await scene.store.dump()) == []


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The child is put on record first: what the parent's worker says is numbered behind that."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await scene.store.submit([kid], connection=other.connection)
        verdict = await deferred_then(scene, other, parent, scene.step("after", events=(scene.event(),)))
        assert verdict.kind == "accepted"
    assert (await scene.kinds(parent))[-2] == "operation.started"
    assert check_all(await scene.store.dump()) == []


@blocked("submit", "parent", "held")
async def _(place: Place) -> None:
    scene = place.scene
    parent = await scene.running()
    kid, alone = kid_of(scene, parent), scene.submission()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=parent.tenant, id=parent.task)
        answer = await other.commits_first(scene.store.submit([alone, kid]))
        assert [one.kind for one in answer] == ["accepted", "accepted"]
    assert (await scene.task(parent)).children == 1


# ── deliver ──────────────────────────────────────────────────────────────────────────────────────


async def a_child_has_ended(scene: Scene) -> Claimed:
    """Have a running parent, its child's end on the way."""
    parent = await scene.running(ttl_us=HOUR)
    kid = await scene.claim_task(await scene.child(parent, "kid"))
    await scene.write(kid, scene.success(result=RESULT))
    return parent


def delivering(scene: Scene) -> Any:
    """Begin to deliver."""
    return start(scene.store.deliver(99, now=scene.now))


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The parent suspends first: it is woken."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.suspension("child"))
        assert [one.task for one in (await other.commits_first(delivering(scene))).told] == [parent.task]
    assert (await scene.task(parent)).state == "queued"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The child's end comes first: the suspension has not seen it."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        verdict = await deferred_then(scene, other, parent, scene.suspension("child"))
    assert verdict.state == "queued"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The parent ends first: nobody is told."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.success())
        assert (await other.commits_first(delivering(scene))).told == ()
    await scene.deliver_all()
    assert await inbox(scene, parent) == []
    assert (await scene.kinds(parent))[-1] == "task.succeeded"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the child first: it is marked."""
    scene = place.scene
    parent = await scene.running()
    kid, session = await scene.child(parent), await scene.session()
    await scene.write(parent, scene.success())
    async with rival(place.url) as other:
        await claim(other, scene, session, kid)
        assert [one.task for one in (await other.commits_first(delivering(scene))).cancelled] == [kid.task]
    task = await scene.task(kid)
    assert (task.state, task.cancelling) == ("running", True)


@blocked("deliver", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=parent.tenant, id=parent.task)
        assert [one.task for one in (await other.commits_first(delivering(scene))).told] == [parent.task]


@blocked("deliver", "post", "changed")
async def _(place: Place) -> None:
    """Another delivers it: nobody waits, and it is delivered once."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        twin = delivering(scene)
        assert not await other.see_blocked(twin)
        assert await ended(twin) == Delivered()
        await other.commit()
    before = await scene.store.dump()
    assert await scene.store.deliver(99, now=scene.now) == Delivered()
    assert changed(before, await scene.store.dump()) == {}
    assert [(row.number, row.name) for row in await inbox(scene, parent)] == [(1, "kid")]


@blocked("deliver", "post", "held")
async def _(place: Place) -> None:
    """Another fails to deliver it: it is still there."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        assert await ended(delivering(scene)) == Delivered()
        await other.rollback()
    assert [one.task for one in (await scene.store.deliver(99, now=scene.now)).told] == [parent.task]


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """Another delivers into the same families: posts are shared out, heads locked in one order."""
    scene = place.scene
    parents = [await scene.running() for _ in range(4)]
    for _ in range(2):
        for parent in parents:
            await scene.write(await scene.claim_task(await scene.child(parent)), scene.success())
    async with rival(place.url) as other:
        theirs = await (await other.about_to_commit("deliver")).deliver(3, now=scene.now)
        told = {one.task for one in (*theirs.told, *(await other.commits_first(delivering(scene))).told)}
    assert told == {parent.task for parent in parents}
    for parent in parents:
        assert [row.number for row in await inbox(scene, parent)] == [1, 2]


# ── ends that the parent's worker has heard of by itself ─────────────────────────────────────────


def hearing(scene: Scene) -> RecordOperation:
    """Make the record of a child's end that its parent's worker has told."""
    return scene.step("kid", kind="child", result=RESULT, takes_end=True)


@blocked("flush", "post", "held")
async def _(place: Place) -> None:
    """Another is delivering the end: it is not waited for, finds the end on record, and drops it."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    before = await head(scene, parent)
    async with rival(place.url) as other:
        await other.hold("posts", tenant=parent.tenant, task=parent.task)
        twin = flushing(scene, parent, hearing(scene))
        assert not await other.see_blocked(twin)
        assert (await ended(twin))[0].kind == "accepted"
        await other.rollback()
    assert (await scene.operation(parent, "kid")).state == "succeeded"
    assert [row["name"] for row in (await scene.store.dump())["posts"]] == ["kid"]
    assert await ended(delivering(scene)) == Delivered()
    assert (await inbox(scene, parent), (await scene.store.dump())["posts"]) == ([], [])
    assert await head(scene, parent) == before
    assert check_all(await scene.store.dump()) == []


@blocked("flush", "post", "changed")
async def _(place: Place) -> None:
    """The parent's worker has taken the end, and not committed: whoever delivers passes over it."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await flush(other, scene, parent, hearing(scene))
        twin = delivering(scene)
        assert not await other.see_blocked(twin)
        assert await ended(twin) == Delivered()
        await other.rollback()
    assert [one.task for one in (await scene.store.deliver(99, now=scene.now)).told] == [parent.task]


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """Another has delivered the end first: it is taken where it lies."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        verdict = await deferred_then(scene, other, parent, hearing(scene))
        assert verdict.kind == "accepted"
    assert await inbox(scene, parent) == []
    [row] = await scene.rows("inbox", parent)
    assert (row["name"], row["taken_by"]) == ("kid", "kid")
    assert check_all(await scene.store.dump()) == []


# ── switches that are taken back ─────────────────────────────────────────────────────────────────


async def a_switch_has_held(scene: Scene, *, taken_back: bool = True) -> Claimed:
    """Have a running task whose call a switch has refused, and which has not heard that it is gone."""
    await scene.store.pause(switch(scene.tenant), now=scene.now)
    claimed = await scene.running(ttl_us=HOUR)
    assert await refusal(scene, claimed, scene.intent()) == "paused"
    if taken_back:
        assert await scene.store.resume(switch(scene.tenant), now=scene.now)
    return claimed


@blocked("deliver", "switch", "changed")
async def _(place: Place) -> None:
    """A refusal is under way as its switch is taken back: that is answered when it can be found."""
    scene = place.scene
    claimed = await scene.running()
    await scene.store.pause(switch(scene.tenant), now=scene.now)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.intent())
        assert await other.commits_first(scene.store.resume(switch(scene.tenant), now=scene.now)) is True
    assert [one.task for one in (await ended(delivering(scene))).told] == [claimed.task]


@blocked("flush", "switch", "changed")
async def _(place: Place) -> None:
    """The switch is taken back first: the intent is admitted, and nothing is kept of it."""
    scene = place.scene
    claimed = await scene.running()
    await scene.store.pause(switch(scene.tenant), now=scene.now)
    async with rival(place.url) as other:
        assert await (await people(other)).resume(switch(scene.tenant), now=scene.now)
        assert (await other.commits_first(flushing(scene, claimed, scene.intent())))[0].refusals == ()
    assert (await scene.store.dump())["held_tasks"] == []


@blocked("flush", "switch", "held")
async def _(place: Place) -> None:
    """A switch is thrown: an intent that waits for that is refused by it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).pause(switch(scene.tenant), now=scene.now)
        answer = await other.commits_first(flushing(scene, claimed, scene.intent()))
        assert answer[0].refusals == ((0, "paused"),)


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """Whom a switch has held suspends first: it is woken."""
    scene = place.scene
    claimed = await a_switch_has_held(scene)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("operator"))
        assert [one.task for one in (await other.commits_first(delivering(scene))).told] == [claimed.task]
    assert (await scene.task(claimed)).state == "queued"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """Whom a switch has held is told first: its suspension has not seen it."""
    scene = place.scene
    claimed = await a_switch_has_held(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.suspension("operator"))
    assert verdict.state == "queued"


@blocked("flush", "switch", "changed")
async def _(place: Place) -> None:
    """Whom a switch has held ends while somebody who delivers has taken that: neither waits for the other."""
    scene = place.scene
    claimed = await a_switch_has_held(scene)
    async with rival(place.url) as other:
        await other.hold("held_tasks", tenant=claimed.tenant, task=claimed.task)
        twin = flushing(scene, claimed, scene.success())
        assert not await other.see_blocked(twin)
        assert (await ended(twin))[0].state == "succeeded"
    assert await ended(delivering(scene)) == Delivered()
    assert (await scene.store.dump())["held_tasks"] == []


@blocked("deliver", "switch", "held")
async def _(place: Place) -> None:
    """Another fails to tell whom a switch has held: nobody waited, and it is told afterwards."""
    scene = place.scene
    claimed = await a_switch_has_held(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        assert await ended(delivering(scene)) == Delivered()
        await other.rollback()
    assert [one.task for one in (await scene.store.deliver(99, now=scene.now)).told] == [claimed.task]


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """Two batches end each other's children: neither waits."""
    scene = place.scene
    one, two = await scene.running(), await scene.running()
    ones = await scene.claim_task(await scene.child(one, "kid"))
    twos = await scene.claim_task(await scene.child(two, "kid"))
    over = [scene.success() for _ in range(4)]
    batch = scene.batch(scene.writes(two, over[2]), scene.writes(ones, over[3]))
    async with rival(place.url) as other:
        first = scene.batch(scene.writes(one, over[0]), scene.writes(twos, over[1]), writer="wr_other")
        await other.flush(first, scene.now)
        twin = start(scene.store.flush(batch, now=scene.now))
        assert not await other.see_blocked(twin)
        assert [(verdict.kind, verdict.state) for verdict in await ended(twin)] == [
            ("accepted", "succeeded")
        ] * 2
        await other.commit()
    await scene.deliver_all()
    for task in (one, two, ones, twos):
        assert [kind for kind in await scene.kinds(task) if kind == "task.succeeded"] == ["task.succeeded"]


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
