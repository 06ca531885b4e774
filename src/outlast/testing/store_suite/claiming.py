"""Claims, and what a claimed task is loaded with."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.records import (
    Claimed,
    Serves,
    SessionRenewal,
    TaskRef,
)
from outlast.store.rows import AttemptRow
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Backdoor, Scene, changed


class TestClaim:
    """The verb ``claim``."""

    async def test_answers_a_lease(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=977 * SECOND)
        session = await scene.session()
        scene.pass_time(3 * SECOND)
        reply = await scene.claim(
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="version-5")]
        )
        assert (reply.now, reply.refused) == (scene.now, False)
        assert reply.claims == (
            Claimed(
                tenant=record.tenant,
                task=record.task,
                epoch=1,
                round=ROUND,
                agent=record.agent,
                version="version-5",
                facts=0,
                deadline_at=(await scene.task(record)).deadline_at,
            ),
        )

    async def test_stores_the_lease_and_takes_the_queue_entry(self, scene: Scene) -> None:
        record = await scene.submit()
        session = await scene.session()
        scene.pass_time(3 * SECOND)
        await scene.claim(
            session,
            pools=[record.pool],
            serves=[Serves(agent=record.agent, version="version-5")],
            config="config-9",
        )
        assert await scene.rows("leases", record) == [
            {
                "tenant": record.tenant,
                "task": record.task,
                "epoch": 1,
                "round": ROUND,
                "session": session,
                "version": "version-5",
                "config": "config-9",
                "started_at": scene.now,
                "news": 0,
            }
        ]
        assert await scene.rows("queue", record) == []
        task = await scene.task(record)
        assert (task.state, task.epoch, task.version, task.attempts) == ("running", 1, "version-5", 1)

    async def test_shows_the_running_attempt_and_its_event(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.store.renew(
            SessionRenewal(session="ses_red", name="worker-red", ttl_us=31 * SECOND), now=scene.now
        )
        scene.pass_time(3 * SECOND)
        serves = [Serves(agent=record.agent, version="version-5")]
        await scene.claim("ses_red", pools=[record.pool], serves=serves, config="config-9")
        assert await scene.store.read_attempts(record_ref(record)) == [
            AttemptRow(
                epoch=1,
                round=ROUND,
                session="ses_red",
                worker="worker-red",
                version="version-5",
                config="config-9",
                started_at=scene.now,
                ended_at=None,
                end=None,
            )
        ]
        [event] = await scene.events(record, after=1)
        assert (event.number, event.kind, event.epoch, event.at) == (2, "attempt.started", 1, scene.now)
        assert json.loads(event.data) == {"worker": "worker-red", "version": "version-5"}

    async def test_each_task_is_claimed_once(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.claim_task(record)
        again = await scene.claim(
            await scene.session(),
            pools=[record.pool],
            serves=[Serves(agent=record.agent, version="version-77")],
            limit=10,
        )
        assert (again.claims, again.refused) == ((), False)

    async def test_every_claim_has_a_higher_epoch(self, scene: Scene) -> None:
        record = await scene.submit()
        epochs = []
        for _ in range(3):
            claimed = await scene.claim_task(record)
            await scene.write(claimed, scene.release())
            epochs.append(claimed.epoch)
        assert epochs == sorted(set(epochs))
        assert [a.epoch for a in await scene.store.read_attempts(record_ref(record))] == epochs

    async def test_is_refused_to_a_session_that_was_swept(self, scene: Scene) -> None:
        record = await scene.submit()
        session = await scene.session(ttl_us=31 * SECOND)
        scene.pass_time(32 * SECOND)
        await scene.sweep()
        before = await scene.store.dump()
        reply = await scene.claim(
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="v")]
        )
        assert (reply.refused, reply.claims) == (True, ())
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_refused_to_a_session_that_was_never_opened_or_has_retired(self, scene: Scene) -> None:
        record = await scene.submit()
        retired = await scene.session()
        await scene.store.retire(retired)
        for session in ("ses_never", retired):
            reply = await scene.claim(
                session, pools=[record.pool], serves=[Serves(agent=record.agent, version="v")]
            )
            assert (reply.refused, reply.claims) == (True, ())
        assert (await scene.task(record)).state == "queued"

    async def test_takes_at_most_its_limit_oldest_first(self, scene: Scene) -> None:
        records = [scene.submission(agent="agent-x", pool="pool-x") for _ in range(5)]
        for record in records:
            await scene.accept([record])
        session = await scene.session()
        serves = [Serves(agent="agent-x", version="version-5")]
        got = [
            [c.task for c in (await scene.claim(session, pools=["pool-x"], serves=serves, limit=n)).claims]
            for n in (2, 0, 2, 7, 7)
        ]
        names = [record.task for record in records]
        assert got == [names[:2], [], names[2:4], names[4:], []]

    async def test_a_batch_is_claimed_in_its_order(self, scene: Scene) -> None:
        records = [scene.submission(agent="agent-x", pool="pool-x") for _ in range(9)]
        await scene.accept(records)
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves, limit=9)
        assert [claimed.task for claimed in reply.claims] == [record.task for record in records]

    async def test_higher_priority_goes_first_within_a_tenant(self, scene: Scene) -> None:
        records = [scene.submission(agent="agent-x", pool="pool-x", priority=p) for p in (5, -2, 9, 0, 9)]
        await scene.accept(records)
        session = await scene.session()
        serves = [Serves(agent="agent-x", version="version-5")]
        order = []
        for _ in records:
            [claimed] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
            order.append(claimed.task)
        assert order == [records[i].task for i in (2, 4, 0, 3, 1)]

    async def test_tenants_take_turns_whatever_their_backlogs(self, scene: Scene) -> None:
        for tenant, count in (("tenant-big", 30), ("tenant-small", 3), ("tenant-late", 3)):
            await scene.accept(
                [scene.submission(tenant=tenant, agent="agent-x", pool="pool-x") for _ in range(count)]
            )
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves, limit=9)
        assert Counter(claimed.tenant for claimed in reply.claims) == {
            "tenant-big": 3,
            "tenant-small": 3,
            "tenant-late": 3,
        }

    async def test_tenants_take_turns_across_claims(self, scene: Scene) -> None:
        for tenant, count in (("tenant-big", 30), ("tenant-small", 4)):
            await scene.accept(
                [scene.submission(tenant=tenant, agent="agent-x", pool="pool-x") for _ in range(count)]
            )
        session, serves = await scene.session(), [Serves(agent="agent-x", version="version-5")]
        taken: Counter[str] = Counter()
        for _ in range(8):
            [claimed] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
            taken[claimed.tenant] += 1
        assert taken == {"tenant-big": 4, "tenant-small": 4}

    async def test_a_tenant_with_more_lanes_gets_no_more_turns(self, scene: Scene) -> None:
        """Turns are by tenant: splitting a backlog over agents and priorities buys nothing."""
        await scene.accept(
            [
                scene.submission(tenant="tenant-big", agent=f"agent-{i % 4}", pool="pool-x", priority=i % 3)
                for i in range(24)
            ]
        )
        await scene.accept(
            [scene.submission(tenant="tenant-small", agent="agent-0", pool="pool-x") for _ in range(6)]
        )
        serves = [Serves(agent=f"agent-{i}", version="version-5") for i in range(4)]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves, limit=8)
        assert Counter(c.tenant for c in reply.claims) == {"tenant-big": 4, "tenant-small": 4}

    async def test_a_tenant_with_a_task_in_each_of_many_lanes_gets_no_more_turns(self, scene: Scene) -> None:
        """Nor does it across claims, though the lane that it was served from is empty at the next."""
        names = [(f"agent-{i % 3}", i % 2) for i in range(6)]
        serves = [Serves(agent=f"agent-{i}", version="version-5") for i in range(3)]

        async def refill() -> None:
            await scene.accept(
                [scene.submission(tenant="tenant-big", agent=a, pool="pool-x", priority=p) for a, p in names]
            )

        await scene.accept(
            [scene.submission(tenant="tenant-small", agent="agent-0", pool="pool-x") for _ in range(24)]
        )
        session = await scene.session()
        taken: Counter[str] = Counter()
        for number in range(24):
            if number % 6 == 0:
                await refill()
            [claimed] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
            taken[claimed.tenant] += 1
        assert taken == {"tenant-big": 12, "tenant-small": 12}

    @pytest.mark.parametrize("ahead", [1, 40])
    async def test_a_tenant_that_comes_late_takes_its_turn_and_no_more(
        self, scene: Scene, ahead: int
    ) -> None:
        """However much the others had before: it has no rights to collect, and they have no debts."""
        session, serves = await scene.session(), [Serves(agent="agent-x", version="version-5")]

        async def accept(tenant: str) -> None:
            await scene.accept(
                [scene.submission(tenant=tenant, agent="agent-x", pool="pool-x") for _ in range(ahead + 10)]
            )

        await accept("tenant-early")
        assert len((await scene.claim(session, pools=["pool-x"], serves=serves, limit=ahead)).claims) == ahead
        await accept("tenant-late")
        taken = []
        for _ in range(8):
            [claimed] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
            taken.append(claimed.tenant)
        assert "tenant-late" in taken[:2]
        for place in range(1, 7):
            assert len(set(taken[place : place + 2])) == 2, taken

    async def test_one_tenants_high_priority_does_not_pass_another_tenants_turn(self, scene: Scene) -> None:
        await scene.accept(
            [
                scene.submission(tenant="tenant-loud", agent="agent-x", pool="pool-x", priority=99)
                for _ in range(9)
            ]
        )
        await scene.accept(
            [
                scene.submission(tenant="tenant-meek", agent="agent-x", pool="pool-x", priority=1)
                for _ in range(3)
            ]
        )
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves, limit=6)
        assert Counter(c.tenant for c in reply.claims) == {"tenant-loud": 3, "tenant-meek": 3}

    async def test_no_slot_idles_while_something_is_runnable(self, scene: Scene) -> None:
        """A tenant alone takes every slot."""
        await scene.accept([scene.submission(agent="agent-x", pool="pool-x") for _ in range(120)])
        await scene.accept([scene.submission(tenant="tenant-b", agent="agent-x", pool="pool-x")])
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves, limit=100)
        assert len(reply.claims) == 100

    async def test_looks_only_into_its_pools_and_agents(self, scene: Scene) -> None:
        record = await scene.submit()
        other = await scene.submit()
        session = await scene.session()
        serves = [Serves(agent=record.agent, version="version-5")]
        for pools, served in (
            ([other.pool], serves),
            ([], serves),
            ([record.pool], []),
            ([record.pool], [Serves(agent=other.agent, version="version-5")]),
        ):
            assert (await scene.claim(session, pools=pools, serves=served, limit=9)).claims == ()
        for row in (record, other):
            assert ((await scene.task(row)).state, (await scene.task(row)).attempts) == ("queued", 0)
        reply = await scene.claim(session, pools=[other.pool, record.pool], serves=serves, limit=9)
        assert [claimed.task for claimed in reply.claims] == [record.task]

    async def test_binds_an_unbound_task_to_the_default_version(self, scene: Scene) -> None:
        record = await scene.submit()
        serves = [
            Serves(agent=record.agent, version="version-8", default=False),
            Serves(agent=record.agent, version="version-7", default=True),
            Serves(agent=record.agent, version="version-9", default=False),
        ]
        reply = await scene.claim(await scene.session(), pools=[record.pool], serves=serves)
        assert [claimed.version for claimed in reply.claims] == ["version-7"]
        assert (await scene.task(record)).version == "version-7"

    async def test_leaves_an_unbound_task_where_no_default_is_served(self, scene: Scene) -> None:
        record = await scene.submit()
        serves = [Serves(agent=record.agent, version="version-8", default=False)]
        reply = await scene.claim(await scene.session(), pools=[record.pool], serves=serves)
        assert reply.claims == ()
        assert ((await scene.task(record)).version, (await scene.task(record)).attempts) == ("", 0)

    async def test_a_version_asked_for_is_kept_to(self, scene: Scene) -> None:
        record = await scene.submit(version="version-8")
        session = await scene.session()
        other = await scene.claim(
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="version-7")]
        )
        assert other.claims == ()
        assert (await scene.task(record)).attempts == 0
        right = await scene.claim(
            session,
            pools=[record.pool],
            serves=[Serves(agent=record.agent, version="version-8", default=False)],
        )
        assert [claimed.version for claimed in right.claims] == ["version-8"]

    async def test_a_task_stays_with_the_version_that_first_claimed_it(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-7")
        await scene.write(claimed, scene.release())
        session = await scene.session()
        newer = [Serves(agent=record.agent, version="version-8")]
        older = [Serves(agent=record.agent, version="version-7", default=False)]
        assert (await scene.claim(session, pools=[record.pool], serves=newer)).claims == ()
        assert (await scene.task(record)).version == "version-7"
        assert len((await scene.claim(session, pools=[record.pool], serves=older)).claims) == 1

    async def test_a_bound_task_stays_bound_when_its_worker_is_lost(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-7")
        await scene.lose(claimed)
        session = await scene.session()
        newer = [Serves(agent=record.agent, version="version-8")]
        older = [Serves(agent=record.agent, version="version-7", default=False)]
        assert (await scene.claim(session, pools=[record.pool], serves=newer)).claims == ()
        assert len((await scene.claim(session, pools=[record.pool], serves=older)).claims) == 1

    async def test_tasks_of_a_version_that_nobody_serves_stand_before_nobody(self, scene: Scene) -> None:
        await scene.accept(
            [scene.submission(agent="agent-x", pool="pool-x", version="gone") for _ in range(200)]
        )
        record = await scene.submit(agent="agent-x", pool="pool-x")
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves)
        assert [claimed.task for claimed in reply.claims] == [record.task]

    @pytest.mark.parametrize("count", [3, 150])
    async def test_tasks_that_ended_in_the_queue_stand_before_nobody(self, scene: Scene, count: int) -> None:
        """What a deadline leaves behind in a lane is passed over in the same claim."""
        dead = [
            scene.submission(agent="agent-x", pool="pool-x", deadline_us=97 * SECOND) for _ in range(count)
        ]
        await scene.accept(dead)
        record = await scene.submit(agent="agent-x", pool="pool-x")
        scene.now = ((await scene.task(dead[0])).deadline_at or 0) + 1
        assert len((await scene.sweep(limit=count)).expired) == count
        serves = [Serves(agent="agent-x", version="version-5")]
        reply = await scene.claim(await scene.session(), pools=["pool-x"], serves=serves)
        assert [claimed.task for claimed in reply.claims] == [record.task]

    async def test_stale_entries_claim_nothing(self, scene: Scene, backdoor: Backdoor) -> None:
        """An entry may stand twice in its lane, or outlive what it was for."""
        session = await scene.session()
        agent, pool = "agent-x", "pool-x"
        queued = await scene.submit(agent=agent, pool=pool, version="v")
        serves = [Serves(agent=agent, version="v")]
        claims = []
        for end in (None, scene.suspension("operator"), scene.success()):
            record = await scene.submit(agent=agent, pool=pool, version="v", priority=9)
            [claimed] = (await scene.claim(session, pools=[pool], serves=serves)).claims
            assert claimed.task == record.task
            claims.append(claimed)
            if end is not None:
                await scene.write(claimed, end)
        entries: list[Any] = [queued, *claims, queued]
        for number, of in enumerate(entries):
            [head] = await scene.rows("tasks", of)
            names, values = "lane, tenant, task", f"{head['lane']}, '{of.tenant}', '{of.task}'"
            if backdoor.dialect == "sqlite":  # where places are given by the store
                names, values = f"seq, {names}", f"{-1 - number}, {values}"
            await backdoor.run(f"insert into queue ({names}) values ({values})")
        before = [await scene.task(claimed) for claimed in claims]
        reply = await scene.claim(session, pools=[pool], serves=serves, limit=9)
        assert [claimed.task for claimed in reply.claims] == [queued.task]
        assert [await scene.task(claimed) for claimed in claims] == before
        assert (await scene.claim(session, pools=[pool], serves=serves, limit=9)).claims == ()
        assert (await scene.store.dump())["queue"] == []

    @pytest.mark.parametrize("count", [30, 700])
    async def test_stale_entries_stand_before_nobody(
        self, scene: Scene, backdoor: Backdoor, count: int
    ) -> None:
        """Whatever became of the tasks at the head of a lane, one claim finds what is behind them."""
        session, serves = await scene.session(), [Serves(agent="agent-x", version="v")]
        gone = await scene.submit(agent="agent-x", pool="pool-x", version="v")
        [claimed] = (await scene.claim(session, pools=["pool-x"], serves=serves)).claims
        await scene.write(claimed, scene.success())
        [head] = await scene.rows("tasks", gone)
        for number in range(count):
            names, values = "lane, tenant, task", f"{head['lane']}, '{gone.tenant}', '{gone.task}'"
            if backdoor.dialect == "sqlite":  # where places are given by the store
                names, values = f"seq, {names}", f"{-1 - number}, {values}"
            await backdoor.run(f"insert into queue ({names}) values ({values})")
        behind = await scene.submit(agent="agent-x", pool="pool-x", version="v")
        reply = await scene.claim(session, pools=["pool-x"], serves=serves)
        assert [claimed.task for claimed in reply.claims] == [behind.task]
        assert (await scene.store.dump())["queue"] == []

    async def test_one_task_id_in_two_tenants_is_two_tasks(self, scene: Scene) -> None:
        first = await scene.submit(tenant="tenant-blue")
        second = replace(scene.submission(tenant="tenant-red"), task=first.task, agent=first.agent)
        await scene.accept([second])
        claimed = await scene.claim_task(second)
        assert (claimed.tenant, claimed.task) == ("tenant-red", first.task)
        assert (await scene.task(first)).state == "queued"
        assert (await scene.task(second)).state == "running"

    async def test_is_by_the_databases_clock_in_production(self, scene: Scene) -> None:
        record = await scene.submit()
        session = await scene.session(ttl_us=HOUR)
        request_at = (await scene.store.health()).now
        reply = await Scene(store=scene.store, now=None).claim(  # type: ignore[arg-type]
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="version-5")]
        )
        assert request_at <= reply.now <= request_at + 60 * SECOND
        assert len(reply.claims) == 1


class TestLoad:
    """The verb ``load``."""

    async def test_answers_input_and_journal_in_the_order_asked(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running()
        await scene.write(first, scene.step("b", position=8), scene.step("a", position=9))
        await scene.write(first, scene.step("c", position=5))
        loaded = await scene.store.load([second, first])
        assert [(one.tenant, one.task) for one in loaded] == [
            (second.tenant, second.task),
            (first.tenant, first.task),
        ]
        assert loaded[0].operations == ()
        assert [row.key for row in loaded[1].operations] == ["c", "b", "a"]
        for claimed, one in ((second, loaded[0]), (first, loaded[1])):
            [inputs] = await scene.rows("inputs", claimed)
            assert (one.input, one.user, one.trace) == (
                inputs["input"],
                inputs["user_name"],
                inputs["trace"],
            )
            assert one.submitted_at == inputs["submitted_at"]
            assert (one.failures, one.attempts) == (0, 0)

    async def test_operations_are_those_that_views_show(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=977 * SECOND)
        key = await scene.called(claimed, "succeeded")
        await scene.write(claimed, scene.timer(due_in_us=13 * SECOND))
        [loaded] = await scene.store.load([claimed])
        assert loaded.operations[0] == await scene.operation(claimed, key)
        assert len(loaded.operations) == 2

    async def test_counts_attempts_that_ended_and_those_that_failed(self, scene: Scene) -> None:
        for end in (scene.release(), scene.failure()):
            await scene.write(await scene.running(), end)
        record = await scene.submit()
        await scene.write(await scene.claim_task(record), scene.release())
        claimed = await scene.claim_task(record)
        await scene.write(claimed, scene.failure(task_state="queued", error=None))
        claimed = await scene.claim_task(record)
        await scene.lose(claimed)
        claimed = await scene.claim_task(record)
        [loaded] = await scene.store.load([claimed])
        assert (loaded.failures, loaded.attempts) == (1, 3)

    async def test_does_not_find_a_task_under_another_tenant(self, scene: Scene) -> None:
        """What it does instead is open: an error, or nothing there; never the other tenant's input."""
        claimed = await scene.running()
        foreign = replace(claimed, tenant="tenant-other")
        try:
            loaded = await scene.store.load([foreign])
        except Exception:
            return  # of whatever class
        assert loaded == []

    async def test_of_nothing_is_nothing(self, scene: Scene) -> None:
        assert await scene.store.load([]) == []


def record_ref(of: object) -> TaskRef:
    """Name the task of anything that has a tenant and a task."""
    return TaskRef(tenant=of.tenant, task=of.task)  # type: ignore[attr-defined]
