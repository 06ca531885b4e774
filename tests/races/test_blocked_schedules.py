"""The blocked twins of schedules, on PostgreSQL."""

from typing import Any

from tests.races.blocking import ON_POSTGRES, Blocked, Place, into, told
from tests.races.holding import ended, rival, start

from outlast.store.scheduling import Fired, PutSchedule, Schedule, SchedulePut, ScheduleSet
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.scene import SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


MOVED = "update outlast.schedules set next_at = next_at + 3600000000 where id = $1"
REVISED = "update outlast.schedules set revision = revision + 1 where id = $1"


def putting(scene: Scene, made: Schedule, revision: int | None) -> Any:
    """Begin to put a schedule."""
    asked = PutSchedule(schedule=made, next_at=scene.now, by="ann", revision=revision)
    return start(scene.store.put_schedule(asked, now=scene.now))


@blocked("put_schedule", "schedule", "changed")
async def _(place: Place) -> None:
    """Somebody else was first: what was seen is not what is there."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(REVISED, row.schedule.id)
        answer = await other.commits_first(putting(scene, scheduling.schedule(scene, id=row.schedule.id), 1))
        assert answer == SchedulePut(kind="conflict", revision=2)
    assert (await scheduling.stored(scene, row.schedule)).schedule == row.schedule


@blocked("put_schedule", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        made = scheduling.schedule(scene, id=row.schedule.id)
        assert await other.commits_first(putting(scene, made, 1)) == SchedulePut(kind="replaced", revision=2)
    assert (await scheduling.stored(scene, made)).schedule == made


@blocked("put_schedule", "id", "changed")
async def _(place: Place) -> None:
    """Two make the same schedule: the second waits for the first's row, and finds it."""
    scene = place.scene
    row = await scheduling.put(scene)
    await scene.store.set_schedule(scheduling.set_(row, "delete"), now=scene.now)
    async with rival(place.url) as other:
        store = await other.about_to_commit("control")
        first = PutSchedule(schedule=row.schedule, next_at=scene.now, by="bob", revision=0)
        assert (await store.put_schedule(first, now=scene.now)).kind == "created"
        made = scheduling.schedule(scene, id=row.schedule.id)
        twins = [putting(scene, made, 0), putting(scene, made, None)]
        assert await other.see_blocked(twins[0])
        await other.commit()
        assert await ended(twins[0]) == SchedulePut(kind="conflict", revision=1)
        assert await ended(twins[1]) == SchedulePut(kind="replaced", revision=2)
    assert (await scheduling.stored(scene, made)).schedule == made


@blocked("set_schedule", "schedule", "changed")
async def _(place: Place) -> None:
    """What it saw was changed meanwhile."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(REVISED, row.schedule.id)
        asked = scheduling.set_(row, "delete", revision=1)
        answer = await other.commits_first(scene.store.set_schedule(asked, now=scene.now))
        assert answer == ScheduleSet(kind="conflict", revision=2)
    assert (await scheduling.stored(scene, row.schedule)).paused is None


@blocked("set_schedule", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        answer = await other.commits_first(
            scene.store.set_schedule(scheduling.set_(row, "pause"), now=scene.now)
        )
        assert answer.kind == "done"
    assert (await scheduling.stored(scene, row.schedule)).paused == "the auditors"


@blocked("due_schedules", "schedule", "changed")
async def _(place: Place) -> None:
    """One that is being fired is left alone, and is not due afterwards."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(MOVED, row.schedule.id)
        assert await scheduling.names(scene) == []
        await other.commit()
    assert await scheduling.names(scene) == []


@blocked("due_schedules", "schedule", "held")
async def _(place: Place) -> None:
    """One that somebody holds stands before nobody."""
    scene = place.scene
    held, after = await scheduling.put(scene, in_us=-SECOND), await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=held.schedule.id)
        assert await scheduling.names(scene) == [after.schedule.id]
        await other.commit()
    assert await scheduling.names(scene) == [held.schedule.id]


@blocked("fire_schedules", "schedule", "changed")
async def _(place: Place) -> None:
    """Its twin fires the same instant: it sees that in the row that it waited for, and submits nothing."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(MOVED, row.schedule.id)
        answer = await other.commits_first(scheduling.fire(scene, scheduling.firing(scene, row)))
        assert answer == [Fired(kind="passed")]
    assert (await scene.store.dump())["tasks"] == []


@blocked("fire_schedules", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        answer = await other.commits_first(scheduling.fire(scene, scheduling.firing(scene, row)))
        assert [each.kind for each in answer] == ["fired"]
    assert len((await scene.store.dump())["tasks"]) == 1


@blocked("fire_schedules", "key", "held")
async def _(place: Place) -> None:
    """A key that an open transaction has costs its own firing, after a bound, and no other."""
    scene = place.scene
    row, neighbour = await scheduling.put(scene), await scheduling.put(scene)
    shot = scheduling.firing(scene, row)
    assert shot.submission is not None
    async with rival(place.url) as other:
        theirs = scene.submission(key=shot.submission.key)
        assert (await scene.store.submit([theirs], connection=other.connection))[0].kind == "accepted"
        shots = (shot, scheduling.firing(scene, neighbour))
        assert [each.kind for each in await scheduling.fire(scene, *shots)] == ["busy", "fired"]
        await other.rollback()
    assert [each.kind for each in await scheduling.fire(scene, shot)] == ["fired"]


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
