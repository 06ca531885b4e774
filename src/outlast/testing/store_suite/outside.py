"""Outside sessions: one task holds each, and what happens in them reaches that task once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.changing import OutsideEvent, OutsidePosted, OutsideRow
from outlast.store.entries import AttachSession
from outlast.store.posting import MAX_INBOX
from outlast.store.records import Claimed, TaskRef
from outlast.testing.store_suite.scene import SECOND, Scene, changed

__all__ = ["TestAttachSession", "TestPostOutside"]

PROVIDER, SESSION = "provider-1", "session-7"


def attach(run: str = "", **changes: Any) -> AttachSession:
    """Make the wish to hold a session."""
    return replace(AttachSession(provider=PROVIDER, session=SESSION, run=run), **changes)


async def holding(scene: Scene, run: str = "", **changes: Any) -> Claimed:
    """Have a running task that holds the session."""
    claimed = await scene.running(**changes)
    await scene.write(claimed, attach(run))
    return claimed


def happened(scene: Scene, run: str = "", **changes: Any) -> OutsideEvent:
    """Make an event of the session."""
    record = OutsideEvent(
        tenant=scene.tenant,
        provider=PROVIDER,
        session=SESSION,
        run=run,
        event=f"event-{scene.number()}",
        data=scene.text("said"),
        digest=f"digest-{scene.number()}",
    )
    return replace(record, **changes)


def to(kind: Any, of: Any) -> OutsidePosted:
    """Answer that an event came to a task so."""
    return OutsidePosted(kind=kind, task=TaskRef(tenant=of.tenant, task=of.task))


async def post(scene: Scene, *events: OutsideEvent) -> list[OutsidePosted]:
    """Bring events."""
    return await scene.store.post_outside(events, now=scene.now)


class TestAttachSession:
    """The gate ``AttachSession``."""

    async def test_holds_sessions_and_runs(self, scene: Scene) -> None:
        claimed = await scene.running()
        last = (await scene.task(claimed)).last_event
        event = scene.event("session.attached")
        await scene.write(claimed, attach(events=(event,)), attach("run-3"), attach(provider="provider-2"))
        assert await scene.store.read_outside(claimed.tenant, claimed.task) == [
            OutsideRow(
                tenant=claimed.tenant,
                provider=provider,
                session=SESSION,
                run=run,
                task=claimed.task,
                attached_at=scene.now,
            )
            for provider, run in ((PROVIDER, ""), (PROVIDER, "run-3"), ("provider-2", ""))
        ]
        assert {row["epoch"] for row in await scene.rows("outside", claimed)} == {claimed.epoch}
        assert await scene.kinds(claimed, after=last) == ["session.attached"]

    async def test_a_repeat_changes_nothing(self, scene: Scene) -> None:
        claimed = await holding(scene)
        await post(scene, happened(scene))
        rows = await scene.store.read_outside(claimed.tenant, claimed.task)
        scene.pass_time(SECOND)
        await scene.write(claimed, attach(), attach())
        assert await scene.store.read_outside(claimed.tenant, claimed.task) == rows

    @pytest.mark.parametrize("state", ["running", "queued", "waiting"])
    async def test_what_another_live_task_holds_is_taken(self, scene: Scene, state: str) -> None:
        """Also by a task whose name holds whatever verdicts are divided by."""
        holder = await holding(scene, task="task,1:2|Ä")
        if state == "queued":
            await scene.write(holder, scene.release())
        elif state == "waiting":
            await scene.write(holder, scene.suspension("signal"))
        other = await scene.running()
        last = (await scene.task(other)).last_event
        before = await scene.store.read_outside(holder.tenant, holder.task)
        flushed = await scene.flush(
            other, scene.step(), attach(events=(scene.event("session.attached"),)), attach("run-9")
        )
        assert (flushed.kind, flushed.refusals) == ("accepted", ((1, "taken task,1:2|Ä"),))
        assert await scene.store.read_outside(holder.tenant, holder.task) == before
        assert [row.run for row in await scene.store.read_outside(other.tenant, other.task)] == ["run-9"]
        assert await scene.kinds(other, after=last) == []

    async def test_it_is_free_when_its_holder_has_ended(self, scene: Scene) -> None:
        holder = await holding(scene)
        await post(scene, happened(scene))
        await scene.write(holder, scene.failure())
        assert len(await scene.store.read_outside(holder.tenant, holder.task)) == 1
        scene.pass_time(SECOND)
        other = await holding(scene)
        assert await scene.store.read_outside(holder.tenant, holder.task) == []
        [row] = await scene.store.read_outside(other.tenant, other.task)
        # What its last holder heard is not this one's.
        assert (row.attached_at, row.last_event, row.last_event_at) == (scene.now, None, None)

    async def test_tenants_hold_their_own(self, scene: Scene) -> None:
        mine, theirs = await holding(scene), await holding(scene, tenant="tenant-red")
        assert len(await scene.store.read_outside(mine.tenant, mine.task)) == 1
        assert len(await scene.store.read_outside(theirs.tenant, theirs.task)) == 1
        assert await scene.store.read_outside(mine.tenant, theirs.task) == []

    async def test_two_in_one_batch_do_not_both_have_it(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running()
        batch = scene.batch(scene.writes(second, attach()), scene.writes(first, attach()))
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [verdict.refusals for verdict in verdicts] == [(), ((0, f"taken {second.task}"),)]

    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("end", ["success", "cancel", "release"])
    async def test_who_ends_before_in_the_same_batch_holds_nothing(
        self, scene: Scene, end: str, first: bool
    ) -> None:
        holder, other = await holding(scene), await scene.running()
        if end == "cancel":
            await scene.cancel(holder)
        ends = scene.writes(holder, scene.success() if end == "success" else scene.release())
        writes = [ends, scene.writes(other, attach())]
        batch = scene.batch(*writes if first else reversed(writes))
        verdicts = await scene.store.flush(batch, now=scene.now)
        free = first and end != "release"
        expected = () if free else ((0, f"taken {holder.task}"),)
        assert verdicts[1 if first else 0].refusals == expected
        assert len(await scene.store.read_outside(other.tenant, other.task)) == int(free)


class TestPostOutside:
    """The verb ``post_outside``."""

    async def test_brings_an_event_to_the_task_that_holds_the_session(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await holding(scene, "run-3", session=session)
        last = (await scene.task(claimed)).last_event
        scene.pass_time(2 * SECOND)
        one = happened(scene, "run-3")
        assert await post(scene, one) == [to("accepted", claimed)]
        [lies] = await scene.store.read_inbox(claimed.tenant, claimed.task)
        assert (lies.kind, lies.name, lies.data, lies.number) == (
            "signal",
            f"outside:{PROVIDER}",
            one.data,
            claimed.facts + 1,
        )
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, json.loads(event.data)) == (
            "signal.received",
            {"name": f"outside:{PROVIDER}", "number": claimed.facts + 1},
        )
        assert [news.facts for news in await scene.news(session)] == [claimed.facts + 1]
        [row] = await scene.store.read_outside(claimed.tenant, claimed.task)
        assert (row.last_event, row.last_event_at) == (one.event, scene.now)

    async def test_wakes_a_task_that_waits(self, scene: Scene) -> None:
        claimed = await holding(scene)
        await scene.write(claimed, scene.suspension("signal"))
        await post(scene, happened(scene))
        assert (await scene.task(claimed)).state == "queued"

    async def test_the_same_event_comes_once_whichever_way(self, scene: Scene) -> None:
        claimed = await holding(scene)
        one = happened(scene)
        other = replace(one, data=scene.text("other"), digest=f"digest-{scene.number()}")
        assert await post(scene, one, one, other) == [
            to("accepted", claimed),
            to("replayed", claimed),
            to("conflict", claimed),
        ]
        before = await scene.store.dump()
        assert await post(scene, one) == [to("replayed", claimed)]
        assert changed(before, await scene.store.dump()) == {}
        # The same id in another session is another event.
        await scene.write(claimed, attach(session="session-8"))
        assert await post(scene, replace(one, session="session-8")) == [to("accepted", claimed)]

    async def test_a_run_of_its_own_comes_before_the_session_as_a_whole(self, scene: Scene) -> None:
        whole, mine = await holding(scene), await holding(scene, "run-3")
        answers = await post(scene, happened(scene, "run-3"), happened(scene), happened(scene, "run-4"))
        assert answers == [to("accepted", mine), to("accepted", whole), to("accepted", whole)]
        assert len(await scene.store.read_inbox(whole.tenant, whole.task)) == 2

    async def test_each_event_is_answered_in_order(self, scene: Scene) -> None:
        first, second = await holding(scene, "run-1"), await holding(scene, "run-2")
        last = happened(scene, "run-2")
        answers = await post(
            scene, happened(scene, "run-2"), happened(scene, "run-1"), happened(scene, "run-9"), last
        )
        assert answers == [
            to("accepted", second),
            to("accepted", first),
            OutsidePosted(kind="not_found"),
            to("accepted", second),
        ]
        [row] = await scene.store.read_outside(second.tenant, second.task)
        assert row.last_event == last.event

    async def test_an_ended_holder_hears_nothing_new(self, scene: Scene) -> None:
        claimed = await holding(scene)
        heard = happened(scene)
        await post(scene, heard)
        await scene.write(claimed, scene.failure())
        before = await scene.store.dump()
        assert await post(scene, happened(scene), heard) == [to("ended", claimed), to("replayed", claimed)]
        assert changed(before, await scene.store.dump()) == {}

    async def test_another_tenants_session_is_not_found(self, scene: Scene) -> None:
        await holding(scene)
        assert await post(scene, happened(scene, tenant="tenant-red")) == [OutsidePosted(kind="not_found")]

    async def test_a_full_inbox_takes_no_more(self, scene: Scene) -> None:
        claimed = await holding(scene)
        for start in range(0, MAX_INBOX, 5_000):
            await post(scene, *(happened(scene, event=f"event-{start + n}") for n in range(5_000)))
        one = happened(scene)
        assert await post(scene, one) == [to("full", claimed)]
        [row] = await scene.store.read_outside(claimed.tenant, claimed.task)
        assert row.last_event != one.event
