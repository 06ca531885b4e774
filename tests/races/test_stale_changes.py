"""The stale twins of what changes tasks and their code, on every store: what they saw is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.races.test_stale_twins import nothing_changes

from outlast.store.changing import Accepted, Adopted, Forked, OutsidePosted, Retried
from outlast.store.entries import AttachSession
from outlast.store.posting import CancelReply
from outlast.store.records import TaskRef
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.changing import accept, adoption, retry
from outlast.testing.store_suite.forking import fork_of
from outlast.testing.store_suite.outside import happened, holding, post
from outlast.testing.store_suite.scene import ROUND, Scene

Twin = Callable[[Scene], Awaitable[None]]
STALE: dict[str, list[Twin]] = {}


def stale(verb: str) -> Callable[[Twin], Twin]:
    """Register a stale twin of a verb."""

    def register(twin: Twin) -> Twin:
        STALE.setdefault(verb, []).append(twin)
        return twin

    return register


def ref(of: Any) -> TaskRef:
    """Name a task."""
    return TaskRef(tenant=of.tenant, task=of.task)


@stale("retry")
async def _a_retry_of_what_is_tried_again(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.failure())
    await retry(scene, claimed)
    answer = await nothing_changes(scene, lambda: retry(scene, claimed))
    assert answer == Retried(kind="not_ended", state="queued", round=ROUND + 1)


@stale("retry")
async def _a_retry_of_what_has_succeeded_since(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.failure())
    await retry(scene, claimed)
    await scene.write(await scene.claim_task(claimed), scene.success())
    answer = await nothing_changes(scene, lambda: retry(scene, claimed))
    assert answer == Retried(kind="not_ended", state="succeeded", round=ROUND + 1)


@stale("fork")
async def _a_fork_that_was_made(scene: Scene) -> None:
    """Also once it has gone on, and its origin as well."""
    origin = await scene.submit()
    asked = fork_of(scene, origin)
    await scene.store.fork([asked], now=scene.now)
    mine = replace(origin, task=asked.new)
    scene.remember(mine)
    running = await scene.claim_task(origin)
    await scene.write(running, scene.intent())
    await scene.write(await scene.claim_task(mine), scene.step(), scene.success())
    answer = await nothing_changes(scene, lambda: scene.store.fork([asked], now=scene.now))
    assert answer == [Forked(kind="forked")]


@stale("adopt")
async def _an_adoption_of_what_was_adopted(scene: Scene) -> None:
    claimed = await scene.waiting("operator")
    asked = await adoption(scene, claimed, "version-2")
    assert await scene.store.adopt([asked], now=scene.now) == [Adopted(kind="adopted", state="queued")]
    answer = await nothing_changes(scene, lambda: scene.store.adopt([asked], now=scene.now))
    assert answer == [Adopted(kind="moved", state="queued")]


@stale("adopt")
async def _an_adoption_of_what_a_worker_took_and_gave_back(scene: Scene) -> None:
    claimed = await scene.waiting("operator")
    # The lane of the version is there, so that nothing changes at all.
    await scene.submit(
        agent=scene.record_of(claimed).agent, pool=scene.record_of(claimed).pool, version="version-2"
    )
    asked = await adoption(scene, claimed, "version-2")
    await scene.post(scene.signal(claimed))
    again = await scene.claim_task(claimed)
    answer = await nothing_changes(scene, lambda: scene.store.adopt([asked], now=scene.now))
    assert answer == [Adopted(kind="running", state="running")]
    await scene.write(again, scene.suspension("operator", facts=again.facts))
    answer = await nothing_changes(scene, lambda: scene.store.adopt([asked], now=scene.now))
    assert answer == [Adopted(kind="moved", state="waiting")]


@stale("wake")
async def _a_nudge_of_what_goes_on_already(scene: Scene) -> None:
    claimed = await scene.waiting("operator")
    await scene.store.wake(ref(claimed), "person:ann", "again", now=scene.now)

    async def again() -> bool:
        return await scene.store.wake(ref(claimed), "person:bob", "again", now=scene.now)

    assert await nothing_changes(scene, again) is False
    await scene.claim_task(claimed)
    assert await nothing_changes(scene, again) is False


@stale("accept")
async def _a_verdict_by_who_has_not_seen_the_last(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.success())
    await accept(scene, claimed)
    answer = await nothing_changes(scene, lambda: accept(scene, claimed, "rejected"))
    assert answer == Accepted(kind="conflict", number=1, state="succeeded")


@stale("post_outside")
async def _an_event_that_came_before(scene: Scene) -> None:
    claimed = await holding(scene)
    one = happened(scene)
    await post(scene, one, happened(scene))
    [answer] = await nothing_changes(scene, lambda: post(scene, one))  # type: ignore[misc]
    assert answer == OutsidePosted(kind="replayed", task=ref(claimed))


@stale("post_outside")
async def _an_event_for_who_has_ended(scene: Scene) -> None:
    claimed = await holding(scene)
    await scene.write(claimed, scene.failure())
    [answer] = await nothing_changes(scene, lambda: post(scene, happened(scene)))  # type: ignore[misc]
    assert answer == OutsidePosted(kind="ended", task=ref(claimed))


@stale("flush")
async def _a_session_that_another_task_took_over(scene: Scene) -> None:
    claimed = await holding(scene)
    await scene.write(claimed, scene.failure())
    holder = await holding(scene)
    await retry(scene, claimed)
    again = await scene.claim_task(claimed)
    wish = AttachSession(provider="provider-1", session="session-7")
    verdict = await nothing_changes(scene, lambda: scene.flush(again, wish))
    assert verdict.refusals == ((0, f"taken {holder.task}"),)  # type: ignore[attr-defined]


@stale("cancel")
async def _an_undo_of_what_is_being_cancelled(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.cancel(claimed)
    reply = await nothing_changes(scene, lambda: scene.cancel(claimed, undo=True))
    assert reply == CancelReply(kind="requested", state="running")


@pytest.mark.parametrize(
    "twin",
    [pytest.param(twin, id=f"{verb}-{twin.__name__.strip('_')}") for verb in STALE for twin in STALE[verb]],
)
async def test_a_stale_change_changes_nothing(scene: Scene, twin: Twin) -> None:
    await twin(scene)
    assert check_all(await scene.store.dump()) == []
