"""Sweep: sessions that ran out, timers that are due, deadlines that passed."""

from __future__ import annotations

import json

import pytest

from outlast.store.records import (
    Claimed,
    Serves,
    SweepRequest,
    Swept,
    TaskRef,
)
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Scene, changed


def ref(of: object) -> TaskRef:
    """Name the task of anything that has a tenant and a task."""
    return TaskRef(tenant=of.tenant, task=of.task)  # type: ignore[attr-defined]


class TestLostSessions:
    """The loss of workers."""

    async def test_hands_on_the_tasks_of_a_session_that_ran_out(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=9777 * SECOND)
        session = await scene.session(ttl_us=31 * SECOND)
        claimed = await scene.claim_task(record, session=session)
        began = scene.now
        [lease] = await scene.rows("leases", record)
        scene.pass_time(31 * SECOND + 1)
        swept = await scene.sweep()
        assert (swept.sessions, swept.lost, swept.parked) == ((session,), (ref(record),), ())
        assert (swept.woken, swept.expired) == ((), ())
        task = await scene.task(record)
        assert (task.state, task.reason, task.round) == ("queued", None, ROUND)
        assert task.epoch > claimed.epoch
        assert await scene.rows("leases", record) == []
        assert len(await scene.rows("queue", record)) == 1
        [attempt] = await scene.store.read_attempts(ref(record))
        assert (attempt.epoch, attempt.session, attempt.end) == (claimed.epoch, session, "lost")
        assert (attempt.started_at, attempt.ended_at) == (began, scene.now)
        assert (attempt.version, attempt.config) == (lease["version"], lease["config"])
        assert attempt.worker.startswith("worker-")
        [row] = [row for row in (await scene.store.dump())["sessions"] if row["id"] == session]
        assert row["lost_at"] == scene.now

    async def test_says_so_in_the_tasks_events(self, scene: Scene) -> None:
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.lose(claimed)
        lost, queued = (await scene.events(claimed))[2:]
        assert (lost.kind, lost.epoch, lost.at) == ("attempt.lost", claimed.epoch, scene.now)
        assert json.loads(lost.data) == {"session": session}
        assert (queued.number, queued.kind, queued.at) == (4, "task.queued", scene.now)

    async def test_leaves_sessions_that_live(self, scene: Scene) -> None:
        dead, alive = await scene.session(ttl_us=31 * SECOND), await scene.session(ttl_us=HOUR)
        one, two = await scene.running(session=dead), await scene.running(session=alive)
        scene.pass_time(32 * SECOND)
        swept = await scene.sweep()
        assert (swept.sessions, swept.lost) == ((dead,), (ref(one),))
        assert (await scene.task(two)).state == "running"
        assert (await scene.flush(two, scene.step())).kind == "accepted"

    async def test_leaves_a_session_up_to_its_end(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=31 * SECOND)
        scene.pass_time(31 * SECOND - 1)
        assert (await scene.sweep()).sessions == ()
        assert (await scene.task(claimed)).state == "running"
        scene.pass_time(1)
        assert (await scene.sweep()).lost == (ref(claimed),)

    async def test_a_renewal_counts(self, scene: Scene) -> None:
        session = await scene.session(ttl_us=31 * SECOND)
        claimed = await scene.running(session=session)
        scene.pass_time(30 * SECOND)
        await scene.session(ttl_us=31 * SECOND, session=session)
        scene.pass_time(30 * SECOND)
        assert (await scene.sweep()).lost == ()
        assert (await scene.task(claimed)).state == "running"

    async def test_twice_is_once(self, scene: Scene) -> None:
        claimed = await scene.running()
        assert len((await scene.lose(claimed)).lost) == 1
        before = await scene.store.dump()
        again = await scene.sweep()
        assert (again.sessions, again.lost, again.parked) == ((), (), ())
        assert changed(before, await scene.store.dump()) == {}

    async def test_keeps_the_journal_and_what_is_running_in_it(self, scene: Scene) -> None:
        """Whether a call happened is for the successor to find out; the sweeper only takes the task away."""
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, scene.step())
        before = await scene.rows("operations", claimed)
        await scene.lose(claimed)
        assert await scene.rows("operations", claimed) == before
        assert (await scene.operation(claimed, key)).state == "running"

    async def test_parks_a_task_that_ends_its_workers(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=9777 * SECOND, announce=True)
        for death in range(3):
            claimed = await scene.claim_task(record)
            if death == 2:
                await scene.called(claimed, key="open")
                await scene.write(claimed, scene.timer("nap", due_in_us=SECOND))
            swept = await scene.lose(claimed, max_deaths=3)
            assert swept.parked == ((ref(record),) if death == 2 else ())
        task = await scene.task(record)
        assert (task.state, task.reason, task.ended_at, task.attempts) == ("failed", None, scene.now, 3)
        assert task.error is not None
        assert json.loads(task.error)["code"] == "crash_loop"
        assert json.loads(task.error)["message"]
        assert [a.end for a in await scene.store.read_attempts(ref(record))] == ["lost"] * 3
        for table in ("leases", "queue", "timers"):
            assert await scene.rows(table, record) == [], table
        lost, failed = (await scene.events(record))[-2:]
        assert (lost.kind, failed.kind) == ("attempt.lost", "task.failed")
        assert json.loads(failed.data)["code"] == "crash_loop"
        assert json.loads(failed.data)["effects_open"] == 1
        # A task's end moves running effects to unknown, whoever ends it.
        assert (await scene.operation(record, "open")).state == "unknown"
        assert (await scene.operation(record, "nap")).state == "running"
        [result] = await scene.rows("results", record)
        assert (result["state"], result["round"], result["effects_open"]) == ("failed", ROUND, 1)
        assert (result["error"], task.effects_open) == (task.error, 1)
        assert [row["topic"] for row in await scene.rows("outbox", record)] == [
            "task.submitted",
            "task.failed",
        ]

    @pytest.mark.parametrize("max_deaths", [1, 2])
    async def test_parks_after_as_many_deaths_as_asked(self, scene: Scene, max_deaths: int) -> None:
        record = await scene.submit()
        for death in range(1, max_deaths + 1):
            swept = await scene.lose(await scene.claim_task(record), max_deaths=max_deaths)
            assert (len(swept.parked) == 1) == (death == max_deaths)

    async def test_only_consecutive_deaths_count(self, scene: Scene) -> None:
        record = await scene.submit()
        for _ in range(2):
            await scene.lose(await scene.claim_task(record), max_deaths=3)
        await scene.write(await scene.claim_task(record), scene.release())
        for _ in range(2):
            swept = await scene.lose(await scene.claim_task(record), max_deaths=3)
            assert swept.parked == ()
        swept = await scene.lose(await scene.claim_task(record), max_deaths=3)
        assert swept.parked == (ref(record),)

    async def test_ends_the_session_first_that_ran_out_first(self, scene: Scene) -> None:
        later, first = await scene.session(ttl_us=32 * SECOND), await scene.session(ttl_us=31 * SECOND)
        scene.pass_time(33 * SECOND)
        assert (await scene.sweep(limit=1)).sessions == (first,)
        assert (await scene.sweep(limit=1)).sessions == (later,)

    async def test_ends_many_sessions_bit_by_bit(self, scene: Scene) -> None:
        sessions = [await scene.session(ttl_us=31 * SECOND) for _ in range(5)]
        claims = [await scene.running(session=session) for session in sessions]
        scene.pass_time(32 * SECOND)
        ended: list[str] = []
        rounds = []
        for _ in range(12):
            swept = await scene.sweep(limit=2)
            assert len(swept.sessions) <= 2
            ended += swept.sessions
            rounds.append(swept.more)
            if not swept.more:
                break
        assert rounds[0]
        assert not rounds[-1]
        assert sorted(ended) == sorted(sessions)
        for claimed in claims:
            assert (await scene.task(claimed)).state == "queued"

    async def test_of_a_session_with_more_tasks_than_the_limit_takes_them_all_in_the_end(
        self, scene: Scene
    ) -> None:
        """A session that is lost must not keep what a first bite has left."""
        await scene.accept([scene.submission(agent="agent-x", pool="pool-x") for _ in range(7)])
        session = await scene.session(ttl_us=31 * SECOND)
        reply = await scene.claim(
            session, pools=["pool-x"], serves=[Serves(agent="agent-x", version="v")], limit=7
        )
        scene.pass_time(32 * SECOND)
        lost: list[TaskRef] = []
        for _ in range(12):
            swept = await scene.sweep(limit=3)
            lost += swept.lost
            if not swept.more:
                break
        assert sorted(one.task for one in lost) == sorted(claimed.task for claimed in reply.claims)

    async def test_hands_tasks_on_in_every_tenant(self, scene: Scene) -> None:
        session = await scene.session(ttl_us=31 * SECOND)
        one = await scene.running(session=session, tenant="tenant-blue")
        two = await scene.running(session=session, tenant="tenant-red")
        scene.pass_time(32 * SECOND)
        assert set((await scene.sweep()).lost) == {ref(one), ref(two)}


class TestTimers:
    """Wakes that are due."""

    async def test_wakes_a_task_whose_timer_is_due(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=9777 * SECOND)
        claimed = await scene.claim_task(record)
        await scene.write(claimed, scene.suspension("timer", wake_in_us=29 * SECOND))
        scene.pass_time(29 * SECOND)
        swept = await scene.sweep()
        assert (swept.woken, swept.lost, swept.expired) == ((ref(record),), (), ())
        task = await scene.task(record)
        assert (task.state, task.reason, task.epoch) == ("queued", None, claimed.epoch)
        assert [timer["kind"] for timer in await scene.rows("timers", record)] == ["deadline"]
        event = (await scene.events(record))[-1]
        assert (event.kind, event.at) == ("task.woken", scene.now)
        assert json.loads(event.data) == {"reason": "timer"}
        assert (await scene.claim_task(record)).epoch == 2

    async def test_lets_it_wait_until_then(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=HOUR)
        await scene.write(claimed, scene.suspension("timer", wake_in_us=29 * SECOND))
        scene.pass_time(28 * SECOND)
        before = await scene.store.dump()
        swept = await scene.sweep()
        assert (swept.woken, swept.more, swept.next_due_us) == ((), False, SECOND)
        assert changed(before, await scene.store.dump()) == {}

    async def test_starts_a_task_at_its_instant(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now + HOUR)
        scene.pass_time(HOUR - 1)
        assert (await scene.sweep()).woken == ()
        assert (await scene.task(record)).state == "waiting"
        scene.pass_time(1)
        assert (await scene.sweep()).woken == (ref(record),)
        assert (await scene.claim_task(record)).epoch == 1

    async def test_twice_is_once(self, scene: Scene) -> None:
        await scene.submit(run_at=scene.now + HOUR)
        scene.pass_time(HOUR)
        assert len((await scene.sweep()).woken) == 1
        before = await scene.store.dump()
        assert (await scene.sweep()).woken == ()
        assert changed(before, await scene.store.dump()) == {}

    async def test_wakes_many_bit_by_bit_the_earliest_first(self, scene: Scene) -> None:
        records = [await scene.submit(run_at=scene.now + HOUR - i * SECOND) for i in range(5)]
        scene.pass_time(HOUR)
        first = await scene.sweep(limit=2)
        assert set(first.woken) == {ref(records[4]), ref(records[3])}
        assert first.more
        second = await scene.sweep(limit=3)
        assert set(second.woken) == {ref(record) for record in records[:3]}
        assert (await scene.sweep()).more is False

    async def test_tells_the_time_to_the_next_timer(self, scene: Scene) -> None:
        assert (await scene.sweep()).next_due_us is None
        await scene.submit(run_at=scene.now + HOUR)
        await scene.submit(run_at=scene.now + 1000 * SECOND)
        assert (await scene.sweep()).next_due_us == 1000 * SECOND

    async def test_a_timer_of_a_task_woken_otherwise_does_no_harm(self, scene: Scene) -> None:
        """A wake timer goes when the task is queued, so that it cannot wake a later wait."""
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.write(claimed, scene.suspension("timer", wake_in_us=5 * SECOND, facts=0))
        claimed = await scene.claim_task(record, ttl_us=HOUR)
        await scene.write(claimed, scene.suspension("operator", facts=claimed.facts))
        scene.pass_time(6 * SECOND)
        assert (await scene.sweep()).woken == ()
        assert (await scene.task(record)).state == "waiting"


class TestDeadlines:
    """Tasks whose time is over."""

    async def expired(self, scene: Scene, record: object, swept: Swept) -> None:
        """Demand that this task ended by its deadline, whole."""
        assert swept.expired == (ref(record),)
        task = await scene.task(record)
        assert (task.state, task.reason, task.ended_at) == ("failed", None, scene.now)
        assert task.error is not None
        assert json.loads(task.error)["code"] == "deadline_exceeded"
        assert json.loads(task.error)["message"]
        [result] = await scene.rows("results", record)
        assert (result["state"], result["error"], result["round"]) == ("failed", task.error, ROUND)
        # A queue entry may stay behind; whoever claims in that lane passes over it and takes it away.
        for table in ("leases", "timers"):
            assert await scene.rows(table, record) == [], table
        event = (await scene.events(record))[-1]
        assert (event.kind, event.at) == ("task.failed", scene.now)
        assert json.loads(event.data)["code"] == "deadline_exceeded"
        assert json.loads(event.data)["effects_open"] == task.effects_open == result["effects_open"]

    async def test_fails_a_queued_task(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=97 * SECOND, announce=True)
        scene.now = (await scene.task(record)).deadline_at or 0
        scene.pass_time(1)
        await self.expired(scene, record, await scene.sweep())
        assert [row["topic"] for row in await scene.rows("outbox", record)] == [
            "task.submitted",
            "task.failed",
        ]
        reply = await scene.claim(
            await scene.session(), pools=[record.pool], serves=[Serves(agent=record.agent, version="v")]
        )
        assert reply.claims == ()
        assert await scene.rows("queue", record) == []

    @pytest.mark.parametrize("reason", ["timer", "operator", "reconciliation"])
    async def test_fails_a_waiting_task(self, scene: Scene, reason: str) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND)
        await scene.called(claimed, "unknown")
        wake = {"wake_in_us": HOUR} if reason == "timer" else {}
        await scene.write(claimed, scene.suspension(reason, **wake))
        scene.now = (claimed.deadline_at or 0) + 1
        await self.expired(scene, claimed, await scene.sweep())
        assert (await scene.task(claimed)).effects_open == 1

    async def test_fails_a_task_before_its_first_start(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=97 * SECOND, run_at=scene.now + HOUR)
        scene.now = ((await scene.task(record)).deadline_at or 0) + 1
        await self.expired(scene, record, await scene.sweep())

    async def test_leaves_a_task_up_to_its_deadline(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=97 * SECOND)
        scene.now = ((await scene.task(record)).deadline_at or 0) - 1
        assert (await scene.sweep()).expired == ()
        assert (await scene.task(record)).state == "queued"
        scene.pass_time(1)
        await self.expired(scene, record, await scene.sweep())

    async def test_leaves_a_running_task_to_its_worker_for_the_grace_time(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND, ttl_us=HOUR)
        scene.now = (claimed.deadline_at or 0) + 5 * SECOND - 1
        assert (await scene.sweep(grace_us=5 * SECOND)).expired == ()
        assert (await scene.flush(claimed, scene.step())).kind == "accepted"
        await scene.write(claimed, scene.success())
        assert (await scene.task(claimed)).state == "succeeded"

    async def test_ends_a_running_task_after_the_grace_time(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND, ttl_us=HOUR)
        await scene.called(claimed, key="open")
        await scene.called(claimed, "unknown", key="lost")
        await scene.called(claimed, "succeeded", key="done")
        scene.now = (claimed.deadline_at or 0) + 5 * SECOND
        await self.expired(scene, claimed, await scene.sweep(grace_us=5 * SECOND))
        assert (await scene.operation(claimed, "open")).state == "unknown"
        assert (await scene.operation(claimed, "done")).state == "succeeded"
        assert (await scene.task(claimed)).effects_open == 2
        [attempt] = await scene.store.read_attempts(ref(claimed))
        assert (attempt.epoch, attempt.ended_at) == (claimed.epoch, scene.now)
        assert attempt.end in ("lost", "failed")
        before = await scene.store.dump()
        assert (await scene.flush(claimed, scene.success())).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_task_that_suspends_within_the_grace_time_has_none_left(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=97 * SECOND, ttl_us=HOUR)
        scene.now = (claimed.deadline_at or 0) + 2 * SECOND
        await scene.sweep(grace_us=5 * SECOND)
        await scene.write(claimed, scene.suspension("operator"))
        await self.expired(scene, claimed, await scene.sweep(grace_us=5 * SECOND))

    async def test_running_tasks_in_their_grace_do_not_stand_before_others(self, scene: Scene) -> None:
        """A limit counts what is done, not what is left to its worker."""
        session = await scene.session(ttl_us=HOUR)
        graced = [await scene.running(session=session, deadline_us=97 * SECOND) for _ in range(3)]
        record = await scene.submit(deadline_us=98 * SECOND)
        scene.now = ((await scene.task(record)).deadline_at or 0) + 1
        expired: list[TaskRef] = []
        for _ in range(5):
            swept = await scene.sweep(limit=1, grace_us=30 * SECOND)
            expired += swept.expired
        assert expired == [ref(record)]
        for claimed in graced:
            assert (await scene.task(claimed)).state == "running"

    async def test_expires_the_task_first_whose_time_ended_first(self, scene: Scene) -> None:
        later = await scene.submit(deadline_us=98 * SECOND)
        first = await scene.submit(deadline_us=90 * SECOND)
        scene.now = ((await scene.task(later)).deadline_at or 0) + 1
        assert (await scene.sweep(limit=1)).expired == (ref(first),)
        assert (await scene.sweep(limit=1)).expired == (ref(later),)

    async def test_expires_many_bit_by_bit(self, scene: Scene) -> None:
        records = [await scene.submit(deadline_us=97 * SECOND) for _ in range(5)]
        scene.now = ((await scene.task(records[-1])).deadline_at or 0) + 1
        seen: list[TaskRef] = []
        for _ in range(12):
            swept = await scene.sweep(limit=2)
            seen += swept.expired
            if not swept.more:
                break
        assert sorted(one.task for one in seen) == sorted(record.task for record in records)

    async def test_a_task_whose_worker_died_ends_by_its_deadline(self, scene: Scene) -> None:
        """Both are due in one sweep: whichever comes first, the next sweep leaves it failed and no lease."""
        claimed: Claimed = await scene.running(deadline_us=97 * SECOND)
        scene.pass_time(HOUR)
        for _ in range(2):
            await scene.sweep()
        task = await scene.task(claimed)
        assert task.state == "failed"
        assert task.error is not None
        assert json.loads(task.error)["code"] == "deadline_exceeded"

    async def test_sweeping_is_by_the_databases_clock_in_production(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=HOUR, deadline_us=HOUR)
        due = await scene.submit(run_at=scene.now + HOUR)
        swept = await scene.store.sweep(SweepRequest())
        assert (swept.sessions, swept.woken, swept.expired) == ((), (), ())
        assert (await scene.task(claimed)).state == "running"
        assert (await scene.task(due)).state == "waiting"
