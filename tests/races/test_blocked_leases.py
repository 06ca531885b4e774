"""The blocked twins of sessions, claims and sweeps, on PostgreSQL."""

from typing import Any

from tests.races.blocking import ON_POSTGRES, Blocked, Place, claim, into, told, unknown
from tests.races.holding import ended, rival, start

from outlast.store.records import (
    Held,
    Serves,
    SessionRenewal,
    TaskRef,
)
from outlast.testing.store_suite.bringing import agrees
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


@blocked("renew", "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: the session is not revived."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    renewal = SessionRenewal(session=session, name="late", ttl_us=HOUR)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        assert (await other.commits_first(scene.store.renew(renewal, now=scene.now))).alive is False
    assert (await scene.task(claimed)).state == "queued"


@blocked("renew", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        answer = await other.commits_first(
            scene.store.renew(SessionRenewal(session=session, name="n", ttl_us=HOUR), now=scene.now)
        )
        assert answer.alive is True


@blocked("renew", "new-session", "changed")
async def _(place: Place) -> None:
    """Two openings of one new session at once: one row, both alive."""
    scene = place.scene
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.renew(SessionRenewal(session="ses_new", name="first", ttl_us=60 * SECOND), now=scene.now)
        twin = start(
            scene.store.renew(SessionRenewal(session="ses_new", name="second", ttl_us=HOUR), now=scene.now)
        )
        assert await other.see_blocked(twin)
        await other.commit()
        renewed = await ended(twin)
        assert (renewed.alive, renewed.expires_at) == (True, scene.now + HOUR)
    assert len((await scene.store.dump())["sessions"]) == 1


def claiming(scene: Scene, session: str, record: Any) -> Any:
    """Begin to claim."""
    serves = [Serves(agent=record.agent, version="v")]
    return start(scene.claim(session, pools=[record.pool], serves=serves, limit=9))


@blocked("retire", "session", "changed")
async def _(place: Place) -> None:
    """A claim is under way for the session: it is not retired under its lease."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        await other.commits_first(scene.store.retire(session))
    assert [row["id"] for row in (await scene.store.dump())["sessions"]] == [session]
    assert (await scene.task(record)).state == "running"


@blocked("retire", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        await other.commits_first(scene.store.retire(session))
    assert (await scene.store.dump())["sessions"] == []


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: no lease is made for a session that it has passed by."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        reply = await other.commits_first(claiming(scene, session, record))
        assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The session retires first."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.retire(session)
        reply = await other.commits_first(claiming(scene, session, record))
        assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


@blocked("claim", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        answer = await other.commits_first(claiming(scene, session, record))
        assert [claimed.task for claimed in answer.claims] == [record.task]


@blocked("claim", "session", "held")
async def _(place: Place) -> None:
    """A task is told something while the claim waits: nothing is brought along that does not know of it."""
    scene = place.scene
    told_one = await scene.submit()
    other_one = await scene.submit(agent=told_one.agent, pool=told_one.pool)
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        twin = claiming(scene, session, told_one)
        assert await other.see_blocked(twin)
        await scene.post(scene.signal(told_one))
        await other.commit()
        reply = await ended(twin)
    assert [(one.task, one.facts) for one in reply.claims] == [(told_one.task, 1), (other_one.task, 0)]
    assert await agrees(scene, reply) == [False, True]


@blocked("claim", "claimer", "changed")
async def _(place: Place) -> None:
    """Another claimer takes the task: it is not taken twice."""
    scene = place.scene
    record = await scene.submit()
    first, second = await scene.session(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, first, record)
        reply = await other.commits_first(claiming(scene, second, record))
        assert (reply.refused, reply.claims) == (False, ())
    [lease] = await scene.rows("leases", record)
    assert (lease["session"], lease["epoch"]) == (first, 1)


@blocked("claim", "claimer", "held")
async def _(place: Place) -> None:
    """Another claimer fails: its task is still there."""
    scene = place.scene
    record = await scene.submit()
    first, second = await scene.session(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, first, record)
        answer = await other.fails_first(claiming(scene, second, record))
        assert [claimed.epoch for claimed in answer.claims] == [1]


@blocked("claim", "head", "changed")
async def _(place: Place) -> None:
    """The deadline is being judged: the claim leaves the task alone, and later does not find it."""
    scene = place.scene
    record = await scene.submit(deadline_us=30 * SECOND)
    session = await scene.session(ttl_us=HOUR)
    async with rival(place.url) as other:
        scene.now = ((await scene.task(record)).deadline_at or 0) + 1
        await other.sweep(scene.now)
        assert (await ended(claiming(scene, session, record))).claims == ()
        await other.commit()
    assert (await ended(claiming(scene, session, record))).claims == ()
    assert (await scene.task(record)).state == "failed"


@blocked("claim", "head", "held")
async def _(place: Place) -> None:
    """A head that somebody holds is left for later, and stands before nobody."""
    scene = place.scene
    record = await scene.submit()
    after = await scene.submit(agent=record.agent, pool=record.pool)
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=record.tenant, id=record.task)
        reply = await ended(claiming(scene, session, record))
        assert [claimed.task for claimed in reply.claims] == [after.task]
        await other.commit()
    reply = await ended(claiming(scene, session, record))
    assert [claimed.task for claimed in reply.claims] == [record.task]


@blocked("reconcile", "session", "changed")
async def _(place: Place) -> None:
    """A claim whose client is gone commits after all: its lease is found and given back."""
    scene = place.scene
    session = await scene.session()
    known = await scene.running(session=session)
    record = await scene.submit()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        held = [Held(tenant=known.tenant, task=known.task, epoch=known.epoch)]
        answer = await other.commits_first(scene.store.reconcile(session, held, fence=1, now=scene.now))
        assert answer == [TaskRef(tenant=record.tenant, task=record.task)]
    assert (await scene.task(record)).state == "queued"
    assert (await scene.flush(known, scene.step())).kind == "accepted"


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The worker gives up on a claim that has not begun: it is refused by the fence."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.reconcile(session, [], fence=1, now=scene.now)
        assert (await other.commits_first(claiming(scene, session, record))).claims == ()
    assert (await scene.task(record)).state == "queued"


@blocked("reconcile", "session", "held")
async def _(place: Place) -> None:
    """A claim whose client is gone fails: there is nothing to give back."""
    scene = place.scene
    session = await scene.session()
    record = await scene.submit()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        assert await other.fails_first(scene.store.reconcile(session, [], fence=1, now=scene.now)) == []
    assert ((await scene.task(record)).state, (await scene.task(record)).epoch) == ("queued", 0)


@blocked("sweep", "session", "changed")
async def _(place: Place) -> None:
    """A renewal is under way: a session that it has renewed is not ended, however old the sweeper's view."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        theirs = await other.about_to_commit("control")
        await theirs.renew(SessionRenewal(session=session, name="n", ttl_us=HOUR), now=scene.now)
        twin = start(scene.sweep())
        # Whoever holds something, for however long, does not keep the sweeper from everything else.
        assert not await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).sessions == ()
    assert (await scene.sweep()).lost == ()
    assert (await scene.task(claimed)).state == "running"


@blocked("sweep", "session", "held")
async def _(place: Place) -> None:
    """What somebody holds is swept later."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.hold("sessions", id=session)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"


@blocked("sweep", "head", "changed")
async def _(place: Place) -> None:
    """The task ends while its session is swept: its end stands."""
    scene = place.scene
    claimed = await scene.running(announce=True)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.flush(scene.batch(scene.writes(claimed, scene.success())), scene.now)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).lost == ()
    assert (await scene.sweep()).lost == ()
    assert (await scene.task(claimed)).state == "succeeded"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["succeeded"]


@blocked("sweep", "head", "held")
async def _(place: Place) -> None:
    """A head that somebody holds when its session is ended is taken by a later sweep."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["lost"]


@blocked("sweep", "waiting-head", "changed")
async def _(place: Place) -> None:
    """A settlement wakes the task while its timer is due: it is queued once."""
    scene = place.scene
    claimed, key = await unknown(scene)
    await scene.write(claimed, scene.suspension("timer", wake_in_us=5 * SECOND))
    async with rival(place.url) as other:
        scene.pass_time(6 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        settling = start(scene.store.settle([scene.settlement(claimed, key)], now=scene.now))
        assert await other.see_blocked(settling)
        await ended(start(scene.sweep()))
        await other.commit()
        await ended(settling)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"
    again = await scene.claim_task(claimed)
    assert again.epoch == 2


@blocked("sweep", "waiting-head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.running()
    await scene.write(claimed, scene.suspension("timer", wake_in_us=5 * SECOND))
    async with rival(place.url) as other:
        scene.pass_time(6 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        await ended(start(scene.sweep()))
        assert (await scene.task(claimed)).state == "waiting"
        await other.commit()
    assert len((await scene.sweep()).woken) == 1


@blocked("sweep", "head-of-a-deadline", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record, bystander = [await scene.submit(deadline_us=30 * SECOND) for _ in range(2)]
    async with rival(place.url) as other:
        scene.now = ((await scene.task(bystander)).deadline_at or 0) + 1
        await other.hold("tasks", tenant=record.tenant, id=record.task)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        assert [one.task for one in (await ended(twin)).expired] == [bystander.task]
        await other.commit()
    assert [one.task for one in (await scene.sweep()).expired] == [record.task]


@blocked("sweep", "sweeper", "changed")
async def _(place: Place) -> None:
    """Two sweepers at once: each loss is judged once."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["lost"]
    assert (await scene.kinds(claimed)).count("attempt.lost") == 1


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
