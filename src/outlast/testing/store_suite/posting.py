"""Facts from outside: signals into a task's inbox, what its worker hears of them, and what takes them out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.transitions import TASK, WAITING_REASONS
from outlast.store.posting import MAX_INBOX, News, Posted, Signal
from outlast.store.records import Claimed, InboxRow, TaskRef
from outlast.testing.store_suite.guards import literal
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor, Reopen, Scene, changed

__all__ = [
    "TestAnswersToOneWait",
    "TestInboxBound",
    "TestNews",
    "TestPost",
    "TestSuspensionsAndFacts",
    "TestTakes",
]


async def head(scene: Scene, of: Any) -> dict[str, Any]:
    """Read a task's head."""
    [row] = await scene.rows("tasks", of)
    return row


async def inbox(scene: Scene, of: Any, after: int = 0) -> list[InboxRow]:
    """Read what lies before a task."""
    return await scene.store.read_inbox(of.tenant, of.task, after)


async def session_of(scene: Scene, claimed: Claimed) -> str:
    """Answer the session that holds a task's lease."""
    [lease] = await scene.rows("leases", claimed)
    return str(lease["session"])


async def quiet(scene: Scene, topic: str) -> None:
    """Take the hints that are there already."""
    while await scene.store.wakes.wait(topic, 0.01):
        pass


async def end(scene: Scene, claimed: Claimed, state: str) -> None:
    """End a running task in a final state."""
    how = scene.success() if state == "succeeded" else scene.failure(attempt_end=state, task_state=state)
    await scene.write(claimed, how)


class TestPost:
    """The verb ``post``."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        claimed = await scene.running()
        scene.pass_time(3 * SECOND)
        signal = scene.signal(claimed, key="key-of-it")
        [posted] = await scene.post(signal)
        assert (posted.kind, posted.number) == ("accepted", 1)
        assert await scene.rows("inbox", claimed) == [
            {
                "tenant": signal.tenant,
                "task": signal.task,
                "number": 1,
                "kind": "signal",
                "name": signal.name,
                "key": signal.key,
                "digest": signal.digest,
                "data": signal.data,
                "at": scene.now,
                "taken_by": None,
            }
        ]
        row = InboxRow(
            tenant=signal.tenant,
            task=signal.task,
            number=1,
            kind="signal",
            name=signal.name,
            data=signal.data,
            at=scene.now,
        )
        assert await inbox(scene, claimed) == [row]
        assert await inbox(scene, claimed, after=1) == []
        [loaded] = await scene.store.load([claimed])
        assert loaded.inbox == (row,)

    async def test_says_so_in_the_stream_but_not_what_was_sent(self, scene: Scene) -> None:
        claimed = await scene.running()
        last = (await scene.task(claimed)).last_event
        scene.pass_time(3 * SECOND)
        first, second = scene.signal(claimed), scene.signal(claimed)
        await scene.post(first, second)
        events = await scene.events(claimed, after=last)
        assert [(event.number, event.kind, event.at) for event in events] == [
            (last + 1, "signal.received", scene.now),
            (last + 2, "signal.received", scene.now),
        ]
        assert [json.loads(event.data) for event in events] == [
            {"name": first.name, "number": 1},
            {"name": second.name, "number": 2},
        ]

    async def test_keeps_their_order(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        signals = [scene.signal(claimed, "same") for _ in range(5)]
        await scene.post(*signals[:3])
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.post(*signals[3:])
        rows = await inbox(scene, claimed)
        assert [row.data for row in rows] == [signal.data for signal in signals]
        # A number is the head's facts, and the settlement was one of them.
        assert [row.number for row in rows] == [1, 2, 3, 5, 6]
        assert (await head(scene, claimed))["facts"] == 6
        assert [row.number for row in await inbox(scene, claimed, after=3)] == [5, 6]

    async def test_answers_each_in_order(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        over = await scene.running()
        await scene.write(over, scene.success())
        signals = [
            scene.signal(two),
            scene.signal(one, "named", key="k"),
            scene.signal(scene.submission()),
            scene.signal(two),
            scene.signal(over),
            scene.signal(one, "named", key="k"),
            replace(scene.signal(one), tenant="tenant-blue"),
        ]
        verdicts = await scene.post(*signals)
        assert [(verdict.kind, verdict.number) for verdict in verdicts] == [
            ("accepted", 1),
            ("accepted", 1),
            ("not_found", 0),
            ("accepted", 2),
            ("ended", 0),
            ("conflict", 1),
            ("not_found", 0),
        ]
        assert [row.data for row in await inbox(scene, two)] == [signals[0].data, signals[3].data]
        assert [row.data for row in await inbox(scene, one)] == [signals[1].data]

    async def test_of_nothing_is_nothing(self, scene: Scene) -> None:
        assert await scene.post() == []

    # -- keys --------------------------------------------------------------------------------------------

    async def test_a_repeat_is_told_and_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.post(scene.signal(claimed))
        signal = scene.signal(claimed, key="k")
        await scene.post(signal)
        before = await scene.store.dump()
        scene.pass_time(3 * SECOND)
        assert [(one.kind, one.number) for one in await scene.post(signal, signal)] == [("replayed", 2)] * 2
        assert changed(before, await scene.store.dump()) == {}

    async def test_other_data_under_a_key_is_a_conflict(self, scene: Scene) -> None:
        claimed = await scene.running()
        signal = scene.signal(claimed, key="k")
        await scene.post(scene.signal(claimed), signal)
        before = await scene.store.dump()
        other = scene.signal(claimed, signal.name, key="k")
        assert [(one.kind, one.number) for one in await scene.post(other)] == [("conflict", 2)]
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_key_is_one_tasks_under_one_name(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        twin = replace(scene.submission(tenant="tenant-blue"), task=one.task)
        await scene.accept([twin])
        first = scene.signal(one, "first", key="k")
        others = [scene.signal(one, "second", key="k"), scene.signal(two, "first", key="k")]
        verdicts = await scene.post(first, *others, replace(first, tenant="tenant-blue"))
        assert [verdict.kind for verdict in verdicts] == ["accepted"] * 4
        assert [verdict.number for verdict in verdicts] == [1, 2, 1, 1]

    async def test_without_a_key_nothing_is_a_repeat(self, scene: Scene) -> None:
        claimed = await scene.running()
        signal = scene.signal(claimed)
        assert [one.number for one in await scene.post(signal, signal)] == [1, 2]

    async def test_a_key_lasts_beyond_the_taking_and_the_end(self, scene: Scene) -> None:
        claimed = await scene.running()
        signal = scene.signal(claimed, key="k")
        await scene.post(signal)
        await scene.write(claimed, scene.step(takes=(1,)))
        assert [(one.kind, one.number) for one in await scene.post(signal)] == [("replayed", 1)]
        await scene.write(claimed, scene.success())
        before = await scene.store.dump()
        assert [(one.kind, one.number) for one in await scene.post(signal)] == [("replayed", 1)]
        other = scene.signal(claimed, signal.name, key="k")
        assert [one.kind for one in await scene.post(other)] == ["conflict"]
        assert changed(before, await scene.store.dump()) == {}

    async def test_lasts_beyond_a_restart(self, scene: Scene, reopen: Reopen) -> None:
        claimed = await scene.running()
        signal = scene.signal(claimed, key="k")
        await scene.post(signal, scene.signal(claimed))
        again = replace(scene, store=await reopen())
        assert await inbox(again, claimed) == await inbox(scene, claimed)
        assert [(one.kind, one.number) for one in await again.post(signal)] == [("replayed", 1)]

    # -- states ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_wakes_a_task_whatever_it_waits_for(self, scene: Scene, reason: str) -> None:
        claimed = await scene.waiting(reason, deadline_us=9 * HOUR)
        last = (await scene.task(claimed)).last_event
        scene.pass_time(3 * SECOND)
        await scene.post(scene.signal(claimed))
        task = await scene.task(claimed)
        assert (task.state, task.reason) == ("queued", None)
        events = await scene.events(claimed, after=last)
        assert [event.kind for event in events] == ["signal.received", "task.woken"]
        assert json.loads(events[1].data) == {"reason": reason}
        assert len(await scene.rows("queue", claimed)) == 1
        assert [row["kind"] for row in await scene.rows("timers", claimed)] == ["deadline"]
        again = await scene.claim_task(claimed)
        assert (again.epoch, again.facts) == (claimed.epoch + 1, 1)

    async def test_several_at_once_wake_it_once_behind_them(self, scene: Scene) -> None:
        waiting, other = await scene.waiting("signal"), await scene.waiting("signal")
        before = (await scene.task(waiting)).last_event
        await scene.post(scene.signal(waiting), scene.signal(other), scene.signal(waiting))
        assert await scene.kinds(waiting, before) == ["signal.received", "signal.received", "task.woken"]
        assert (await scene.kinds(other))[-2:] == ["signal.received", "task.woken"]

    async def test_a_queued_task_stays_where_it_stands(self, scene: Scene) -> None:
        record = await scene.submit()
        queue = await scene.rows("queue", record)
        await scene.post(scene.signal(record), scene.signal(record))
        assert await scene.rows("queue", record) == queue
        assert (await scene.kinds(record)) == ["task.submitted", "signal.received", "signal.received"]
        claimed = await scene.claim_task(record)
        assert claimed.facts == 2
        # What was there before the claim is no news to the worker.
        assert await scene.news(await session_of(scene, claimed)) == []

    async def test_a_task_whose_time_lies_ahead_is_not_begun(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now + 2 * HOUR)
        timers = await scene.rows("timers", record)
        [posted] = await scene.post(scene.signal(record))
        assert posted.kind == "accepted"
        task = await scene.task(record)
        assert (task.state, task.reason) == ("waiting", "timer")
        assert await scene.rows("timers", record) == timers
        assert await scene.rows("queue", record) == []
        scene.pass_time(2 * HOUR)
        await scene.sweep()
        assert (await scene.claim_task(record)).facts == 1

    async def test_a_running_task_has_news(self, scene: Scene) -> None:
        claimed = await scene.running()
        [lease] = await scene.rows("leases", claimed)
        assert lease["news"] == 0
        await quiet(scene, "facts")
        waiting = asyncio.ensure_future(scene.store.wakes.wait("facts", 30))
        await asyncio.sleep(0)
        await scene.post(scene.signal(claimed), scene.signal(claimed))
        assert await asyncio.wait_for(waiting, 20)
        [lease] = await scene.rows("leases", claimed)
        assert lease["news"] == 2
        assert (await head(scene, claimed))["state"] == "running"

    @pytest.mark.parametrize("state", sorted(TASK.final))
    async def test_an_ended_task_takes_none(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        await end(scene, claimed, state)
        before = await scene.store.dump()
        [posted] = await scene.post(scene.signal(claimed, key="k"))
        assert posted == Posted(kind="ended", number=0, state=state)
        assert changed(before, await scene.store.dump()) == {}

    async def test_of_nobodys_task_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        before = await scene.store.dump()
        wrong = [replace(scene.signal(claimed), tenant="tenant-blue"), scene.signal(scene.submission())]
        assert [one.kind for one in await scene.post(*wrong)] == ["not_found"] * 2
        assert changed(before, await scene.store.dump()) == {}

    async def test_belongs_to_its_tenant(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.post(scene.signal(claimed))
        assert await inbox(scene, replace(claimed, tenant="tenant-blue")) == []


class TestInboxBound:
    """How many signals may lie before a task."""

    async def fill(self, scene: Scene, backdoor: Backdoor, claimed: Claimed, count: int) -> None:
        """Have that many signals there."""
        tenant, task = literal(claimed.tenant), literal(claimed.task)
        await backdoor.run(
            "insert into inbox (tenant, task, number, kind, name, digest, data, at)"
            f" with recursive n (i) as (select 1 union all select i + 1 from n where i < {count})"
            f" select {tenant}, {task}, i, 'signal', 'many', 'digest', '{{}}', 5 from n"
        )
        await backdoor.run(f"update tasks set facts = {count} where tenant = {tenant} and id = {task}")

    async def test_one_below_it_one_more_is_accepted(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        await self.fill(scene, backdoor, claimed, MAX_INBOX - 1)
        verdicts = await scene.post(*(scene.signal(claimed) for _ in range(3)))
        assert [verdict.kind for verdict in verdicts] == ["accepted", "full", "full"]
        assert verdicts[0].number == (await head(scene, claimed))["facts"] == MAX_INBOX

    async def test_what_is_taken_makes_room(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed, neighbour = await scene.running(), await scene.running()
        await self.fill(scene, backdoor, claimed, MAX_INBOX)
        signal = scene.signal(claimed, key="k")
        before = await scene.store.dump()
        assert [one.kind for one in await scene.post(signal)] == ["full"]
        assert changed(before, await scene.store.dump()) == {}
        await scene.write(claimed, scene.step(takes=(7,)))
        verdicts = await scene.post(signal, signal, scene.signal(claimed), scene.signal(neighbour))
        assert [verdict.kind for verdict in verdicts] == ["accepted", "replayed", "full", "accepted"]

    async def test_children_that_end_are_heard_all_the_same(self, scene: Scene, backdoor: Backdoor) -> None:
        parent = await scene.running()
        child = await scene.child(parent, "kid")
        await self.fill(scene, backdoor, parent, MAX_INBOX)
        await scene.write(await scene.claim_task(child), scene.success())
        await scene.deliver_all()
        assert [row.kind for row in await inbox(scene, parent, after=MAX_INBOX)] == ["child"]


class TestNews:
    """The verb ``news``: what a worker has not heard of the tasks that it runs."""

    async def test_nothing_was_posted(self, scene: Scene) -> None:
        session = await scene.session()
        assert await scene.news(session) == []
        claimed = await scene.running(session=session)
        assert await scene.news(session) == []
        before = await scene.store.dump()
        assert await scene.news(session, (claimed, 5), (claimed, 0)) == []
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_told_until_it_is_heard(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.running(session=session)
        await scene.post(scene.signal(claimed), scene.signal(claimed))
        told = News(tenant=claimed.tenant, task=claimed.task, facts=2, cancelling=False)
        assert await scene.news(session) == [told]
        assert await scene.news(session) == [told]
        assert await scene.news(session, (claimed, 2)) == []
        assert await scene.news(session) == []

    async def test_what_is_posted_in_between_is_not_lost(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.post(scene.signal(claimed))
        [first] = await scene.news(session)
        await scene.post(scene.signal(claimed))
        [second] = await scene.news(session, (claimed, first.facts))
        assert (first.facts, second.facts) == (1, 2)
        # Having heard of the first twice does not count for the second.
        assert await scene.news(session, (claimed, 1)) == [second]
        assert await scene.news(session, (claimed, 2)) == []

    async def test_is_told_of_every_task_of_the_session(self, scene: Scene) -> None:
        session, other = await scene.session(), await scene.session()
        mine = [await scene.running(session=session) for _ in range(3)]
        theirs = await scene.running(session=other)
        await scene.post(*(scene.signal(one) for one in (mine[2], theirs, mine[0], mine[2])))
        assert {(one.task, one.facts) for one in await scene.news(session)} == {
            (mine[2].task, 2),
            (mine[0].task, 1),
        }
        assert [one.task for one in await scene.news(other)] == [theirs.task]
        # Nobody hears for somebody else.
        assert len(await scene.news(session, (theirs, 1), (mine[0], 1))) == 1
        assert [one.task for one in await scene.news(other)] == [theirs.task]

    @pytest.mark.parametrize("how", ["success", "release", "suspension", "loss"])
    async def test_goes_with_the_lease(self, scene: Scene, how: str) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.post(scene.signal(claimed))
        if how == "loss":
            await scene.lose(claimed)
        elif how == "suspension":
            await scene.write(claimed, scene.suspension("signal", facts=1))
        else:
            await scene.write(claimed, scene.success() if how == "success" else scene.release())
        assert await scene.news(session) == []

    async def test_a_settlement_is_news(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert [one.facts for one in await scene.news(session)] == [1]

    async def test_a_cancel_is_news(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.cancel(claimed)
        told = News(tenant=claimed.tenant, task=claimed.task, facts=1, cancelling=True)
        assert await scene.news(session) == [told]
        await scene.post(scene.signal(claimed))
        assert await scene.news(session, (claimed, 1)) == [replace(told, facts=2)]


class TestAnswersToOneWait:
    """Signals that can answer one wait only: callbacks."""

    @staticmethod
    def answer(scene: Scene, claimed: Claimed, key: str = "answer", operation: str = "wait-1") -> Signal:
        return scene.signal(claimed, "callback", key=key, operation=operation)

    async def opened(self, scene: Scene, state: str = "running", due_in_us: int | None = SECOND) -> Claimed:
        """Have a task whose wait is on record."""
        claimed = await scene.running(ttl_us=HOUR)
        await scene.write(
            claimed, scene.step("wait-1", kind="signal", state=state, due_in_us=due_in_us, result=None)
        )
        return claimed

    @pytest.mark.parametrize("early_us", [SECOND, 1, 0])
    async def test_until_its_time_is_over(self, scene: Scene, early_us: int) -> None:
        claimed = await self.opened(scene)
        scene.pass_time(SECOND - early_us)
        assert [one.kind for one in await scene.post(self.answer(scene, claimed))] == ["accepted"]

    @pytest.mark.parametrize("late_us", [1, SECOND])
    async def test_not_after_that(self, scene: Scene, late_us: int) -> None:
        claimed = await self.opened(scene)
        scene.pass_time(SECOND + late_us)
        before = await scene.store.dump()
        assert await scene.post(self.answer(scene, claimed)) == [Posted(kind="over", state="running")]
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["succeeded", "failed"])
    async def test_not_once_the_wait_has_ended(self, scene: Scene, state: str) -> None:
        claimed = await self.opened(scene, state, None)
        before = await scene.store.dump()
        assert await scene.post(self.answer(scene, claimed)) == [Posted(kind="over", state=state)]
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("recorded", [False, True])
    async def test_before_the_wait_and_without_a_time(self, scene: Scene, recorded: bool) -> None:
        claimed = await (self.opened(scene, due_in_us=None) if recorded else scene.running(ttl_us=HOUR))
        scene.pass_time(60 * SECOND)
        assert [one.kind for one in await scene.post(self.answer(scene, claimed))] == ["accepted"]

    async def test_a_repeat_is_one_however_late(self, scene: Scene) -> None:
        claimed = await self.opened(scene)
        one = self.answer(scene, claimed)
        await scene.post(one)
        scene.pass_time(2 * SECOND)
        assert await scene.post(one) == [Posted(kind="replayed", number=1)]
        assert await scene.post(replace(one, digest="another")) == [Posted(kind="conflict", number=1)]
        await scene.write(claimed, scene.step("wait-1", kind="signal", takes=(1,)))
        assert await scene.post(one) == [Posted(kind="replayed", number=1)]

    async def test_says_first_that_the_task_has_ended(self, scene: Scene) -> None:
        claimed = await self.opened(scene)
        await scene.write(claimed, scene.success())
        scene.pass_time(2 * SECOND)
        assert [one.kind for one in await scene.post(self.answer(scene, claimed))] == ["ended"]

    async def test_others_of_one_batch_are_judged_by_themselves(self, scene: Scene) -> None:
        claimed = await self.opened(scene)
        scene.pass_time(2 * SECOND)
        posted = await scene.post(
            self.answer(scene, claimed, "one"),
            scene.signal(claimed),
            self.answer(scene, claimed, "two", "wait-2"),
        )
        assert [(one.kind, one.number) for one in posted] == [("over", 0), ("accepted", 1), ("accepted", 2)]

    async def test_by_the_databases_own_clock(self, scene: Scene) -> None:
        """Who asks does not say how late it is."""
        claimed = await scene.running(ttl_us=HOUR)
        wait = scene.step("wait-1", kind="signal", state="running", due_at=1, result=None)
        await scene.store.flush(scene.batch(scene.writes(claimed, wait)))
        assert [one.kind for one in await scene.store.post([self.answer(scene, claimed)])] == ["over"]


class TestTakes:
    """Records that take something out of the inbox."""

    async def test_takes_what_it_names(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        for one in (claimed, other):
            await scene.post(*(scene.signal(one) for _ in range(4)))
        before = await scene.rows("inbox", claimed)
        await scene.write(
            claimed,
            scene.step("first", kind="signal", takes=(2,)),
            scene.step("second", kind="signal", takes=(1, 4)),
        )
        rows = await scene.rows("inbox", claimed)
        taken = {row["number"]: row["taken_by"] for row in rows}
        assert taken == {1: "second", 2: "first", 3: None, 4: "second"}
        assert [{**row, "taken_by": None} for row in rows] == before
        assert [row.number for row in await inbox(scene, claimed)] == [3]
        assert [row.number for row in await inbox(scene, other)] == [1, 2, 3, 4]
        [loaded] = await scene.store.load([claimed])
        assert [row.number for row in loaded.inbox] == [3]

    async def test_takes_no_fact_away(self, scene: Scene) -> None:
        """The number of facts is what tells a suspension from one that has missed something."""
        claimed = await scene.running()
        await scene.post(scene.signal(claimed))
        await scene.write(claimed, scene.step(takes=(1,)))
        assert (await head(scene, claimed))["facts"] == 1
        await scene.post(scene.signal(claimed))
        assert [row.number for row in await inbox(scene, claimed)] == [2]

    async def test_what_is_taken_stays_its_takers(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.post(scene.signal(claimed))
        await scene.write(claimed, scene.step("first", takes=(1,)))
        await scene.write(claimed, scene.step("second", takes=(1,)))
        [row] = await scene.rows("inbox", claimed)
        assert row["taken_by"] == "first"

    async def test_of_several_tasks_in_one_batch(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        for claimed in (one, two):
            await scene.post(scene.signal(claimed), scene.signal(claimed))
        batch = scene.batch(
            scene.writes(one, scene.step("k1", takes=(2,)), scene.step("k2")),
            scene.writes(two, scene.step("k3"), scene.step("k4", takes=(1,))),
        )
        await scene.store.flush(batch, now=scene.now)
        assert [row.number for row in await inbox(scene, one)] == [1]
        assert [row.number for row in await inbox(scene, two)] == [2]

    async def test_comes_back_to_nobody_after_a_loss(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.post(scene.signal(claimed), scene.signal(claimed))
        await scene.write(claimed, scene.step(takes=(1,)))
        await scene.lose(claimed)
        [loaded] = await scene.store.load([await scene.claim_task(claimed)])
        assert [row.number for row in loaded.inbox] == [2]


class TestSuspensionsAndFacts:
    """No wake-up is lost between what a worker knew and its suspension."""

    @pytest.mark.parametrize("reason", WAITING_REASONS)
    async def test_a_signal_that_it_has_not_seen_queues_it_at_once(self, scene: Scene, reason: str) -> None:
        claimed = await scene.running()
        if reason == "reconciliation":
            await scene.called(claimed, "unknown")
        await scene.post(scene.signal(claimed), scene.signal(claimed))
        wake_in_us = 2 * HOUR if reason == "timer" else None
        verdict = await scene.write(claimed, scene.suspension(reason, facts=1, wake_in_us=wake_in_us))
        assert (verdict.state, (await scene.task(claimed)).state) == ("queued", "queued")
        assert await scene.rows("timers", claimed) == []
        assert (await scene.claim_task(claimed)).facts == 2

    async def test_those_that_it_has_seen_do_not(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.post(scene.signal(claimed), scene.signal(claimed))
        verdict = await scene.write(claimed, scene.suspension("signal", facts=2))
        assert verdict.state == "waiting"
        ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
        assert [row.end for row in await scene.store.read_attempts(ref)] == ["suspended"]
