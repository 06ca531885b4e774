"""The blocked twins of what changes tasks and their code, on PostgreSQL.

Each began while another backend held what it needs, and is judged by what is there in the end: one round is
opened, a version is bound or a worker has the task, nobody overwrites a verdict that he has not seen, and one
task holds a session.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.races.blocking import (
    ON_POSTGRES,
    Blocked,
    Place,
    claim,
    deferred_then,
    flush,
    flushing,
    into,
    people,
    told,
)
from tests.races.holding import ended, rival, start

from outlast.store.changing import Accepted, Adopted, Forked, OutsidePosted, Retried
from outlast.store.entries import AttachSession
from outlast.store.posting import CancelReply
from outlast.store.records import Claimed, TaskRef
from outlast.testing.store_suite.changing import accept, adoption, retry, retry_of, verdict_on
from outlast.testing.store_suite.forking import fork_of
from outlast.testing.store_suite.outside import attach, happened, holding, post
from outlast.testing.store_suite.scene import HOUR, ROUND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


async def failed(scene: Scene) -> Claimed:
    """Have a task that has failed."""
    claimed = await scene.running()
    await scene.write(claimed, scene.failure())
    return claimed


async def succeeded(scene: Scene) -> Claimed:
    """Have a task that has succeeded."""
    claimed = await scene.running()
    await scene.write(claimed, scene.success())
    return claimed


# ── retry ────────────────────────────────────────────────────────────────────────────────────────


@blocked("retry", "head", "changed")
async def _(place: Place) -> None:
    """Another retries it first: one round is opened."""
    scene = place.scene
    claimed = await failed(scene)
    async with rival(place.url) as other:
        await (await people(other)).retry([retry_of(scene, claimed)], now=scene.now)
        answer = await other.commits_first(retry(scene, claimed))
        assert answer == Retried(kind="not_ended", state="queued", round=ROUND + 1)
    assert (await scene.task(claimed)).round == ROUND + 1
    assert len(await scene.rows("queue", claimed)) == 1


@blocked("retry", "head", "changed")
async def _(place: Place) -> None:
    """It fails first: what waited for that opens the next round."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.failure())
        assert (await other.commits_first(retry(scene, claimed))).kind == "retried"
    assert (await scene.claim_task(claimed)).round == ROUND + 1


@blocked("retry", "head", "changed")
async def _(place: Place) -> None:
    """Its undo succeeds with its end: what waited for that finds its effects gone."""
    scene = place.scene
    claimed = await scene.running()
    decision = json.dumps({"task": claimed.task, "round": ROUND})
    await scene.write(claimed, scene.step("undo!", kind="value", name="undo", result=decision))
    await scene.called(claimed, "succeeded", key="it")
    await scene.called(claimed, key="it/undo", kind="compensation")
    async with rival(place.url) as other:
        outcome = await scene.outcome(claimed, "it/undo", "succeeded")
        await flush(other, scene, claimed, outcome, scene.failure())
        answer = await other.commits_first(retry(scene, claimed))
        assert answer == Retried(kind="undone", state="failed", round=ROUND)


@blocked("retry", "head", "held")
async def _(place: Place) -> None:
    """The other retry fails after all."""
    scene = place.scene
    claimed = await failed(scene)
    async with rival(place.url) as other:
        await (await people(other)).retry([retry_of(scene, claimed)], now=scene.now)
        answer = await other.fails_first(retry(scene, claimed))
        assert answer == Retried(kind="retried", state="queued", round=ROUND + 1)


# ── fork ─────────────────────────────────────────────────────────────────────────────────────────


@blocked("fork", "head", "changed")
async def _(place: Place) -> None:
    """A call is under way first: it is kept for the fork, under the key that was sent."""
    scene = place.scene
    claimed = await scene.running()
    step, intent = scene.step(), scene.intent("it")
    await scene.write(claimed, step, scene.planned(intent))
    asked = fork_of(scene, claimed, "it")
    async with rival(place.url) as other:
        await flush(other, scene, claimed, intent)
        assert await other.commits_first(scene.store.fork([asked], now=scene.now)) == [Forked(kind="forked")]
    dump = await scene.store.dump()
    rows = [row for row in dump["issued"] if row["task"] == asked.new]
    assert [(row["key"], row["idempotency_key"]) for row in rows] == [("it", f"{claimed.task}:it")]


@blocked("fork", "head", "changed")
async def _(place: Place) -> None:
    """A call of the prefix is under way first: the fork is refused."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.intent("it"))
        answer = await other.commits_first(scene.store.fork([fork_of(scene, claimed)], now=scene.now))
        assert answer == [Forked(kind="unsettled", keys=("it",))]


@blocked("fork", "new", "changed")
async def _(place: Place) -> None:
    """The same fork is made first: there is one."""
    scene = place.scene
    asked = fork_of(scene, await scene.submit())
    async with rival(place.url) as other:
        await (await people(other)).fork([asked], now=scene.now)
        assert await other.commits_first(scene.store.fork([asked], now=scene.now)) == [Forked(kind="forked")]
    assert [row["task"] for row in (await scene.store.dump())["queue"]].count(asked.new) == 1


@blocked("fork", "key", "changed")
async def _(place: Place) -> None:
    """A twin under the same key commits first: this one is its replay, or in conflict with it."""
    scene = place.scene
    for digest, kind in (("digest-one", "replayed"), ("digest-two", "conflict")):
        key = {"key": f"key-{kind}", "digest": "digest-one"}
        first, second = [fork_of(scene, await scene.submit(), **key) for _ in range(2)]
        async with rival(place.url) as other:
            await (await people(other)).fork([first], now=scene.now)
            answer = await other.commits_first(
                scene.store.fork([replace(second, digest=digest)], now=scene.now)
            )
            assert answer == [Forked(kind=kind, task=first.new)]


@blocked("fork", "key", "held")
async def _(place: Place) -> None:
    """A twin under the same key rolls back: the key is free."""
    scene = place.scene
    first, second = [fork_of(scene, await scene.submit(), key="key-one", digest="d") for _ in range(2)]
    async with rival(place.url) as other:
        await (await people(other)).fork([first], now=scene.now)
        assert await other.fails_first(scene.store.fork([second], now=scene.now)) == [Forked(kind="forked")]


@blocked("fork", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=record.tenant, id=record.task)
        answer = await other.commits_first(scene.store.fork([fork_of(scene, record)], now=scene.now))
        assert answer == [Forked(kind="forked")]


# ── adopt, wake ──────────────────────────────────────────────────────────────────────────────────


@blocked("adopt", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task first: it has it, and its version stands."""
    scene = place.scene
    claimed = await scene.running()
    await scene.write(claimed, scene.release())
    record, session = scene.record_of(claimed), await scene.session()
    asked = await adoption(scene, claimed, "version-2")
    async with rival(place.url) as other:
        await claim(other, scene, session, record, claimed.version)
        answer = await other.commits_first(scene.store.adopt([asked], now=scene.now))
        assert answer == [Adopted(kind="running", state="running")]
    assert (await scene.task(claimed)).version == claimed.version


@blocked("adopt", "head", "changed")
async def _(place: Place) -> None:
    """The adoption comes first: a claim for the old version takes nothing, before its commit and after."""
    scene = place.scene
    claimed = await scene.running()
    await scene.write(claimed, scene.release())
    asked = await adoption(scene, claimed, "version-2")
    async with rival(place.url) as other:
        [adopted] = await (await people(other)).adopt([asked], now=scene.now)
        assert adopted.kind == "adopted"
        with pytest.raises(AssertionError):
            await scene.claim_task(claimed)
        await other.commit()
    with pytest.raises(AssertionError):
        await scene.claim_task(claimed)
    assert (await scene.claim_task(claimed, version="version-2")).version == "version-2"


@blocked("adopt", "head", "changed")
async def _(place: Place) -> None:
    """Two adoptions: the second has not seen the first."""
    scene = place.scene
    claimed = await scene.waiting("operator")
    first, second = [await adoption(scene, claimed, version) for version in ("version-2", "version-3")]
    async with rival(place.url) as other:
        await (await people(other)).adopt([first], now=scene.now)
        answer = await other.commits_first(scene.store.adopt([second], now=scene.now))
        assert answer == [Adopted(kind="moved", state="queued")]
    assert (await scene.task(claimed)).version == "version-2"


@blocked("adopt", "head", "held")
async def _(place: Place) -> None:
    """The other adoption fails after all."""
    scene = place.scene
    claimed = await scene.waiting("operator")
    first, second = [await adoption(scene, claimed, version) for version in ("version-2", "version-3")]
    async with rival(place.url) as other:
        await (await people(other)).adopt([first], now=scene.now)
        answer = await other.fails_first(scene.store.adopt([second], now=scene.now))
        assert answer == [Adopted(kind="adopted", state="queued")]
    assert (await scene.task(claimed)).version == "version-3"


def waking(scene: Scene, of: Any) -> Any:
    """Begin to wake a task."""
    ref = TaskRef(tenant=of.tenant, task=of.task)
    return start(scene.store.wake(ref, "person:wim", "again", now=scene.now))


@blocked("wake", "head", "changed")
async def _(place: Place) -> None:
    """Somebody else wakes it first: it is queued once."""
    scene = place.scene
    claimed = await scene.waiting("operator")
    async with rival(place.url) as other:
        ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
        assert await (await people(other)).wake(ref, "person:rival", "first", now=scene.now)
        assert await other.commits_first(waking(scene, claimed)) is False
    assert len(await scene.rows("queue", claimed)) == 1


@blocked("wake", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.waiting("operator")
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert await other.commits_first(waking(scene, claimed)) is True


# ── accept ───────────────────────────────────────────────────────────────────────────────────────


@blocked("accept", "head", "changed")
async def _(place: Place) -> None:
    """Another judges first: this one has not seen that."""
    scene = place.scene
    claimed = await succeeded(scene)
    async with rival(place.url) as other:
        await (await people(other)).accept([verdict_on(scene, claimed, "rejected")], now=scene.now)
        answer = await other.commits_first(accept(scene, claimed))
        assert answer == Accepted(kind="conflict", number=1, state="succeeded")
    assert (await scene.task(claimed)).accepted == "rejected"


@blocked("accept", "head", "changed")
async def _(place: Place) -> None:
    """The work ends first, with its checker's verdict, which this one has not seen."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        judged = ("rejected", "checker:totals", "wrong", "{}")
        await flush(other, scene, claimed, scene.success(judged=judged))
        answer = await other.commits_first(accept(scene, claimed))
        assert answer == Accepted(kind="conflict", number=1, state="succeeded")


@blocked("accept", "head", "held")
async def _(place: Place) -> None:
    """The other verdict fails after all."""
    scene = place.scene
    claimed = await succeeded(scene)
    async with rival(place.url) as other:
        await (await people(other)).accept([verdict_on(scene, claimed, "rejected")], now=scene.now)
        answer = await other.fails_first(accept(scene, claimed))
        assert answer == Accepted(kind="recorded", number=1, state="succeeded")
    assert (await scene.task(claimed)).accepted == "accepted"


# ── outside sessions ─────────────────────────────────────────────────────────────────────────────


@blocked("flush", "outside", "changed")
async def _(place: Place) -> None:
    """Two tasks want one session: the first that commits has it."""
    scene = place.scene
    first, second = await scene.running(), await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, first, attach())
        answer = await other.commits_first(flushing(scene, second, attach()))
        assert answer[0].refusals == ((0, f"taken {first.task}"),)
    assert await scene.store.read_outside(second.tenant, second.task) == []


@blocked("flush", "outside", "changed")
async def _(place: Place) -> None:
    """Two tasks want the session of one that has ended: the first that commits has it."""
    scene = place.scene
    holder = await holding(scene)
    await scene.write(holder, scene.failure())
    first, second = await scene.running(), await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, first, attach())
        answer = await other.commits_first(flushing(scene, second, attach()))
        assert answer[0].refusals == ((0, f"taken {first.task}"),)


@blocked("flush", "outside", "held")
async def _(place: Place) -> None:
    """The other does not get it after all; two batches want two sessions crosswise, and do not deadlock."""
    scene = place.scene
    first, second = await scene.running(), await scene.running()
    wishes = [AttachSession(provider="provider-1", session=name) for name in ("session-a", "session-b")]
    async with rival(place.url) as other:
        await flush(other, scene, first, *wishes)
        batch = scene.batch(scene.writes(second, *reversed(wishes)))
        assert (await other.fails_first(scene.store.flush(batch, now=scene.now)))[0].refusals == ()
    assert len(await scene.store.read_outside(second.tenant, second.task)) == 2


@blocked("post_outside", "head", "changed")
async def _(place: Place) -> None:
    """Its holder suspends first: the event wakes it."""
    scene = place.scene
    claimed = await holding(scene)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("signal"))
        assert [one.kind for one in await other.commits_first(post(scene, happened(scene)))] == ["accepted"]
    assert (await scene.task(claimed)).state == "queued"


@blocked("post_outside", "head", "changed")
async def _(place: Place) -> None:
    """The event comes first: the suspension has not seen it."""
    scene = place.scene
    claimed = await holding(scene)
    async with rival(place.url) as other:
        await (await people(other)).post_outside([happened(scene)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.suspension("signal"))
    assert (verdict.kind, verdict.state) == ("accepted", "queued")


@blocked("post_outside", "key", "changed")
async def _(place: Place) -> None:
    """The same event comes another way first: it is taken once."""
    scene = place.scene
    claimed = await holding(scene)
    one = happened(scene)
    async with rival(place.url) as other:
        await (await people(other)).post_outside([one], now=scene.now)
        twin = start(post(scene, one))
        assert await other.see_blocked(twin)
        await other.commit()
        ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
        assert await ended(twin) == [OutsidePosted(kind="replayed", task=ref)]
    assert len(await scene.store.read_inbox(claimed.tenant, claimed.task)) == 1


@blocked("post_outside", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await holding(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert [one.kind for one in await other.commits_first(post(scene, happened(scene)))] == ["accepted"]


# ── cancel with undo ─────────────────────────────────────────────────────────────────────────────


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: it goes back to a worker."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("signal"))
        answer = await other.commits_first(scene.cancel(claimed, undo=True))
        assert answer == CancelReply(kind="requested", state="queued")
    assert (await scene.claim_task(claimed)).cancelling


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first: a suspension is one, and a success is not."""
    scene = place.scene
    claimed = await scene.running(deadline_us=HOUR)
    async with rival(place.url) as other:
        theirs = await people(other)
        mine, scene.store = scene.store, theirs
        assert (await scene.cancel(claimed, undo=True)).kind == "requested"
        scene.store = mine
        verdict = await deferred_then(scene, other, claimed, scene.suspension("signal", facts=1))
    assert (verdict.kind, verdict.state) == ("accepted", "waiting")
    await scene.post(scene.signal(claimed))
    again = await scene.claim_task(claimed)
    assert (await scene.write(again, scene.success())).state == "cancelled"


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
