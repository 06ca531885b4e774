"""The blocked twins of submitting and of the outbox, on PostgreSQL."""

from dataclasses import replace

from tests.races.blocking import ON_POSTGRES, Blocked, Place, into, told
from tests.races.holding import ended, rival, start

from outlast.store.records import (
    Submission,
    Submitted,
)
from outlast.store.rows import (
    Publication,
)
from outlast.testing.store_suite.scene import Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


@blocked("submit", "key", "changed")
async def _(place: Place) -> None:
    """A twin commits: this one is its replay, or in conflict with it."""
    scene = place.scene
    first = scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    other_content = scene.submission(key=first.key)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        assert await other.commits_first(scene.store.submit([same, other_content])) == [
            Submitted(kind="replayed", task=first.task),
            Submitted(kind="conflict", task=first.task),
        ]
    assert len((await scene.store.dump())["tasks"]) == 1


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin rolls back: the key is free."""
    scene = place.scene
    first = scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        answer = await other.fails_first(scene.store.submit([same]))
        assert answer == [Submitted(kind="accepted", task=same.task)]
    assert [row["id"] for row in (await scene.store.dump())["tasks"]] == [same.task]


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin stays open: waiting is bounded, and nobody else in the batch suffers."""
    scene = place.scene
    first, bystander = scene.submission(), scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await ended(start(scene.store.submit([same, bystander])))
        assert verdicts == [
            Submitted(kind="busy", task=same.task),
            Submitted(kind="accepted", task=bystander.task),
        ]
        await other.commit()
    assert await scene.store.submit([same]) == [Submitted(kind="replayed", task=first.task)]


def _large(scene: Scene, first: Submission) -> list[Submission]:
    """Answer a batch with a twin of a submission, behind some that are put in before it is met."""
    batch = [scene.submission() for _ in range(24)]
    batch[17] = scene.submission(key=first.key, request_digest=first.request_digest)
    return batch


@blocked("submit", "key", "changed")
async def _(place: Place) -> None:
    """A twin of one in a large batch commits."""
    scene = place.scene
    first = scene.submission()
    batch = _large(scene, first)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await other.commits_first(scene.store.submit(batch))
    expected = [Submitted(kind="accepted", task=record.task) for record in batch]
    expected[17] = Submitted(kind="replayed", task=first.task)
    assert verdicts == expected
    assert len((await scene.store.dump())["tasks"]) == 24


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin of one in a large batch rolls back: all of it is accepted."""
    scene = place.scene
    first = scene.submission()
    batch = _large(scene, first)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await other.fails_first(scene.store.submit(batch))
    assert verdicts == [Submitted(kind="accepted", task=record.task) for record in batch]
    assert {row["id"] for row in (await scene.store.dump())["tasks"]} == {record.task for record in batch}


@blocked("submit", "task", "changed")
async def _(place: Place) -> None:
    """The very same record, sent again while its first sending has not committed yet."""
    scene = place.scene
    record = scene.submission(key=None)
    async with rival(place.url) as other:
        await scene.store.submit([record], connection=other.connection)
        answer = await other.commits_first(scene.store.submit([record]))
        assert answer == [Submitted(kind="accepted", task=record.task)]
    assert len(await scene.events(record)) == 1


@blocked("confirm_messages", "message", "changed")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit(announce=True)
    [message] = await scene.store.take_messages(9, now=scene.now)
    done = Publication(tenant=record.tenant, task=record.task, number=message.number)
    async with rival(place.url) as other:
        await other.run("delete from outlast.outbox where task = $1", record.task)
        await other.commits_first(scene.store.confirm_messages([replace(done, parked="late")]))
    assert await scene.rows("outbox", record) == []


@blocked("confirm_messages", "message", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit(announce=True)
    [message] = await scene.store.take_messages(9, now=scene.now)
    done = Publication(tenant=record.tenant, task=record.task, number=message.number)
    async with rival(place.url) as other:
        await other.hold("outbox", tenant=record.tenant, task=record.task)
        await other.commits_first(scene.store.confirm_messages([done]))
    assert await scene.rows("outbox", record) == []


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
