"""The blocked twins of tasks that are claimed in the transaction that accepts them, on PostgreSQL."""

from dataclasses import replace
from typing import Any

from tests.races.blocking import ON_POSTGRES, Blocked, Place, into, told
from tests.races.holding import long_waits, rival, start

from outlast.store.records import ClaimRequest, Submission, Submitted
from outlast.testing.store_suite.claiming_along import asks, like
from outlast.testing.store_suite.scene import SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)
VERB = "submit_and_claim"


def going(scene: Scene, record: Submission, request: ClaimRequest) -> Any:
    """Begin to submit and claim."""
    return start(scene.store.submit_and_claim([record], request, now=scene.now))


@blocked(VERB, "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: the task is accepted, and no lease is made."""
    scene = place.scene
    record, session = await like(scene), await scene.session()
    async with long_waits(place.url, VERB), rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        verdicts, reply = await other.commits_first(going(scene, record, asks(session, record)))
        assert [verdict.kind for verdict in verdicts] == ["accepted"]
        assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


@blocked(VERB, "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record, session = await like(scene), await scene.session()
    async with long_waits(place.url, VERB), rival(place.url) as other:
        await other.hold("sessions", id=session)
        _, reply = await other.commits_first(going(scene, record, asks(session, record)))
        assert [claimed.task for claimed in reply.claims] == [record.task]


@blocked(VERB, "session", "held")
async def _(place: Place) -> None:
    """It waits no longer than a worker can: then nothing was done."""
    scene = place.scene
    record, session = await like(scene), await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        assert await going(scene, record, asks(session, record)) is None
    assert (await scene.store.submit([record]))[0].kind == "accepted"


@blocked(VERB, "key", "changed")
async def _(place: Place) -> None:
    """A twin commits: this one is its replay, and there is nothing of its own to claim."""
    scene = place.scene
    record, session = await like(scene), await scene.session()
    first = scene.submission(key=record.key, request_digest=record.request_digest)
    async with long_waits(place.url, VERB), rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts, reply = await other.commits_first(going(scene, record, asks(session, record)))
        assert verdicts == [Submitted(kind="replayed", task=first.task)]
        assert reply.claims == ()


@blocked(VERB, "key", "held")
async def _(place: Place) -> None:
    """A twin rolls back: the key is free, and the task is claimed."""
    scene = place.scene
    record, session = await like(scene), await scene.session()
    first = scene.submission(key=record.key, request_digest=record.request_digest)
    async with long_waits(place.url, VERB), rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts, reply = await other.fails_first(going(scene, record, asks(session, record)))
        assert verdicts == [Submitted(kind="accepted", task=record.task)]
        assert [claimed.task for claimed in reply.claims] == [record.task]


@blocked(VERB, "head", "held")
async def _(place: Place) -> None:
    """An older task that somebody holds is left for later, and stands before nobody."""
    scene = place.scene
    record, session = await like(scene), await scene.session()
    older = replace(scene.submission(), agent=record.agent, pool=record.pool, priority=0)
    await scene.accept([older])
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=older.tenant, id=older.task)
        _, reply = await going(scene, record, asks(session, record))
        assert [claimed.task for claimed in reply.claims] == [record.task]


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
