"""Whoever holds a lock holds up nobody else: what each verb does with what is in other hands.

Each case comes twice where it can: the holder changes what it holds before it lets go, or only held it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.contract.postgres_only.conftest import until_blocked

from outlast.errors import Busy, StoreUnavailable
from outlast.store.contract import BatchRejected
from outlast.store.entries import Batch
from outlast.store.postgres import PostgresStore, failures
from outlast.store.postgres.adapter import WORN
from outlast.store.records import Evidence, Serves, SessionRenewal, TaskRef
from outlast.testing.store_suite.claiming_along import asks, like
from outlast.testing.store_suite.scene import SECOND, Scene, changed


async def hold(connection: Any, of: Any) -> Any:
    """Lock a task's head in an open transaction; answer that transaction."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch("select from tasks where tenant = $1 and id = $2 for update", of.tenant, of.task)
    return transaction


# ── flush ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_held_head_is_deferred_and_its_neighbours_are_not(scene: Scene, beside: Any) -> None:
    held, free = await scene.running(), await scene.running()
    transaction = await hold(beside, held)
    step, other = scene.step(events=(scene.event(),)), scene.step(events=(scene.event(),))
    batch = scene.batch(scene.writes(held, step), scene.writes(free, other))
    deferred, accepted = await scene.store.flush(batch, now=scene.now)
    assert (deferred.kind, accepted.kind) == ("deferred", "accepted")
    assert len(await scene.events(held)) == 2
    await transaction.rollback()
    await scene.write(held, step)
    assert len(await scene.events(held)) == 3


async def test_a_head_whose_holder_raises_the_epoch_is_stale_afterwards(scene: Scene, beside: Any) -> None:
    held = await scene.running()
    transaction = await hold(beside, held)
    assert (await scene.flush(held, scene.step())).kind == "deferred"
    await beside.execute("update tasks set epoch = epoch + 1, state = 'queued' where id = $1", held.task)
    assert (await scene.flush(held, scene.step())).kind == "deferred"
    await transaction.commit()
    assert (await scene.flush(held, scene.step())).kind == "stale"


async def test_a_stale_task_is_stale_whoever_holds_it(scene: Scene, beside: Any) -> None:
    held = await scene.running()
    await beside.execute("update tasks set epoch = epoch + 1, state = 'queued' where id = $1", held.task)
    await hold(beside, held)
    assert (await scene.flush(held, scene.step())).kind == "stale"


async def test_refusals_name_their_own_heads_among_deferred_ones(scene: Scene, beside: Any) -> None:
    held, free = await scene.running(), await scene.running()
    await hold(beside, held)
    intent = scene.intent()
    await scene.write(free, intent)
    batch = scene.batch(
        scene.writes(held, scene.step(), scene.intent()), scene.writes(free, scene.step(), intent)
    )
    deferred, accepted = await scene.store.flush(batch, now=scene.now)
    assert (deferred.kind, deferred.refusals) == ("deferred", ())
    assert (accepted.kind, accepted.refusals) == ("accepted", ((1, "not_planned"),))


async def test_a_batch_that_does_not_follow_is_an_error_of_its_own(
    scene: Scene, store: PostgresStore
) -> None:
    """Neither unavailable nor a fault of its entries: two writers share an id."""
    claimed = await scene.running()
    await scene.write(claimed, scene.step())
    batch = Batch(writer=scene.writer, number=7, writes=(scene.writes(claimed, scene.step("never")),))
    with pytest.raises(failures.OutOfOrder):
        await store.flush(batch, now=scene.now)
    assert len(await scene.rows("operations", claimed)) == 1


async def test_a_batch_that_cannot_be_stored_says_nothing_of_its_values(
    scene: Scene, store: PostgresStore
) -> None:
    claimed = await scene.running()
    for value in ("secret\ud800", "secret\x00"):
        batch = scene.batch(scene.writes(claimed, scene.step(result=value)))
        with pytest.raises(BatchRejected) as raised:
            await store.flush(batch, now=scene.now)
        assert "secret" not in str(raised.value)
        scene._batches[scene.writer] -= 1
    await scene.write(claimed, scene.step())


# ── claim ────────────────────────────────────────────────────────────────────────────────────────


async def test_held_heads_hide_nobody_behind_them(scene: Scene, beside: Any, connect: Any) -> None:
    records = [scene.submission(agent="agent-a", pool="pool-a") for _ in range(5)]
    await scene.accept(records)
    await hold(beside, records[0])
    await hold(await connect(), records[1])
    await hold(await connect(), records[2])
    session = await scene.session()
    serves = [Serves(agent="agent-a", version="v")]
    reply = await scene.claim(session, pools=["pool-a"], serves=serves, limit=1)
    assert [claimed.task for claimed in reply.claims] == [records[3].task]
    reply = await scene.claim(session, pools=["pool-a"], serves=serves, limit=5)
    assert [claimed.task for claimed in reply.claims] == [records[4].task]
    reply = await scene.claim(session, pools=["pool-a"], serves=serves, limit=5)
    assert reply.claims == ()


async def test_a_head_that_its_holder_took_away_is_not_claimed(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    record = await scene.submit()
    transaction = await hold(beside, record)
    await beside.execute("update tasks set state = 'cancelled' where id = $1", record.task)
    session = await scene.session()
    serves = [Serves(agent=record.agent, version="v")]
    assert (await scene.claim(session, pools=[record.pool], serves=serves)).claims == ()
    await transaction.commit()
    assert (await scene.claim(session, pools=[record.pool], serves=serves)).claims == ()
    assert await scene.rows("queue", record) == []


async def test_many_stale_entries_hide_nobody_behind_them(scene: Scene, beside: Any) -> None:
    records = [scene.submission(agent="agent-a", pool="pool-a") for _ in range(60)]
    await scene.accept(records)
    await beside.execute("update tasks set state = 'cancelled' where id <> $1", records[-1].task)
    session = await scene.session()
    reply = await scene.claim(
        session, pools=["pool-a"], serves=[Serves(agent="agent-a", version="v")], limit=4
    )
    assert [claimed.task for claimed in reply.claims] == [records[-1].task]
    assert (await scene.store.dump())["queue"] == []


async def test_who_submits_waits_for_no_claimer(scene: Scene, store: PostgresStore, beside: Any) -> None:
    record = await like(scene)
    request = asks(await scene.session(), record)
    async with beside.transaction():
        await beside.execute("select pg_advisory_xact_lock(hashtextextended('outlast.claim', 0))")
        worn = dict.fromkeys(store._taken, WORN)
        assert worn
        store._taken.update(worn)
        verdicts, reply = await scene.store.submit_and_claim([record], request, now=scene.now)
        assert ([verdict.kind for verdict in verdicts], reply.claims) == (["accepted"], ())
        assert (reply.now, reply.refused) == (scene.now, False)
        # No lane's mark was moved, so that what was taken from it still counts.
        assert store._taken == worn
    assert [claimed.task for claimed in (await scene.store.claim(request, now=scene.now)).claims] == [
        record.task
    ]


async def test_a_claim_does_not_go_along_where_a_twin_is_open(scene: Scene, beside: Any) -> None:
    record = await like(scene)
    request = asks(await scene.session(), record)
    twin = replace(scene.submission(), key=record.key, request_digest=record.request_digest)
    transaction = beside.transaction()
    await transaction.start()
    [verdict] = await scene.store.submit([twin], connection=beside)
    assert verdict.kind == "accepted"
    before = await scene.store.dump()
    assert await scene.store.submit_and_claim([record], request, now=scene.now) is None
    assert changed(before, await scene.store.dump()) == {}
    [busy] = await scene.store.submit([record])
    assert busy.kind == "busy"
    await transaction.commit()
    verdicts, reply = await scene.store.submit_and_claim([record], request, now=scene.now)
    assert [(one.kind, one.task) for one in verdicts] == [("replayed", twin.task)]
    assert reply.claims == ()


async def test_what_cannot_be_stored_does_not_go_along(scene: Scene) -> None:
    record = await like(scene)
    request = asks(await scene.session(), record)
    before = await scene.store.dump()
    spoilt = replace(record, input='{"a": "\x00"}')
    assert await scene.store.submit_and_claim([spoilt], request, now=scene.now) is None
    assert changed(before, await scene.store.dump()) == {}


async def test_claimers_of_many_processes_take_each_task_once(
    scene: Scene, store: PostgresStore, another: Any
) -> None:
    records = [scene.submission(agent="agent-a", pool="pool-a") for _ in range(400)]
    await scene.accept(records)
    stores = [store, await another(), await another()]
    sessions = [await scene.session() for _ in stores]

    async def drain(scene_of_one: Scene, session: str) -> list[str]:
        taken: list[str] = []
        while True:
            reply = await scene_of_one.claim(
                session, pools=["pool-a"], serves=[Serves(agent="agent-a", version="v")], limit=7
            )
            if not reply.claims:
                return taken
            taken += [claimed.task for claimed in reply.claims]

    scenes = [replace(scene, store=one) for one in stores]
    parts = await asyncio.gather(*(drain(s, session) for s, session in zip(scenes, sessions, strict=True)))
    assert sorted(task for part in parts for task in part) == sorted(record.task for record in records)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_renewal_that_waited_for_the_sweeper_is_not_alive(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    session = await scene.session()
    async with beside.transaction():
        await beside.fetch("select from sessions where id = $1 for update", session)
        await beside.execute("update sessions set lost_at = 1 where id = $1", session)
        renewing = asyncio.create_task(
            store.renew(SessionRenewal(session=session, name="n", ttl_us=SECOND), now=scene.now)
        )
        await until_blocked(beside, "control")
    assert not (await renewing).alive


async def test_a_renewal_that_waited_for_nothing_is_alive(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    session = await scene.session()
    async with beside.transaction():
        await beside.fetch("select from sessions where id = $1 for update", session)
        renewing = asyncio.create_task(
            store.renew(SessionRenewal(session=session, name="n", ttl_us=SECOND), now=scene.now)
        )
        await until_blocked(beside, "control")
    renewed = await renewing
    assert (renewed.alive, renewed.expires_at) == (True, scene.now + SECOND)


async def test_the_sweeper_passes_by_a_session_that_is_being_renewed(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    claimed = await scene.running(ttl_us=60 * SECOND)
    [lease] = await scene.rows("leases", claimed)
    scene.pass_time(61 * SECOND)
    async with beside.transaction():
        await beside.execute(
            "update sessions set expires_at = $2 where id = $1", lease["session"], scene.now + 60 * SECOND
        )
        assert (await scene.sweep()).sessions == ()
    assert (await scene.sweep()).sessions == ()
    assert (await scene.task(claimed)).state == "running"


async def test_the_sweeper_comes_back_for_a_head_that_was_held(scene: Scene, beside: Any) -> None:
    claimed = await scene.running()
    transaction = await hold(beside, claimed)
    swept = await scene.lose(claimed)
    assert (len(swept.sessions), swept.lost) == (1, ())
    await transaction.rollback()
    swept = await scene.sweep()
    assert swept.lost == (TaskRef(tenant=claimed.tenant, task=claimed.task),)


async def test_one_sweeper_at_a_time(scene: Scene, store: PostgresStore, beside: Any) -> None:
    claimed = await scene.running()
    async with beside.transaction():
        await beside.fetch("select pg_advisory_xact_lock(hashtextextended('outlast.sweep', 0))")
        assert (await scene.lose(claimed)).sessions == ()
    assert len((await scene.sweep()).sessions) == 1


async def test_no_lease_is_made_for_a_session_while_it_is_ended(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    record = await scene.submit()
    session = await scene.session()
    async with beside.transaction():
        await beside.execute("select from sessions where id = $1 for update", session)
        await beside.execute("update sessions set lost_at = 1 where id = $1", session)
        claiming = asyncio.create_task(
            scene.claim(session, pools=[record.pool], serves=[Serves(agent=record.agent, version="v")])
        )
        await until_blocked(beside, "claim")
    reply = await claiming
    assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


# ── settle, note ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("changes", [True, False])
async def test_a_settlement_judges_by_what_it_finds_after_its_wait(
    scene: Scene, store: PostgresStore, beside: Any, changes: bool
) -> None:
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    transaction = await hold(beside, claimed)
    if changes:
        await beside.execute("update operations set state = 'succeeded', turn = 3 where key = $1", key)
        await beside.execute("delete from unsettled where key = $1", key)
    settling = asyncio.create_task(store.settle([scene.settlement(claimed, key)], now=scene.now))
    await until_blocked(beside, "control")
    await transaction.commit()
    [settled] = await settling
    assert (settled.kind, settled.state) == ("conflict" if changes else "settled", "succeeded")


async def test_a_settlement_counts_events_on_after_its_wait(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    transaction = await hold(beside, claimed)
    await beside.execute(
        "insert into events select tenant, id, last_event + 1, 'progress', epoch, '{}', 1"
        " from tasks where id = $1",
        claimed.task,
    )
    await beside.execute("update tasks set last_event = last_event + 1 where id = $1", claimed.task)
    settling = asyncio.create_task(store.settle([scene.settlement(claimed, key)], now=scene.now))
    await until_blocked(beside, "control")
    await transaction.commit()
    await settling
    assert [event.number for event in await scene.events(claimed)] == [1, 2, 3, 4]


async def test_evidence_of_two_at_once_is_numbered_one_after_the_other(
    scene: Scene, store: PostgresStore, another: Any
) -> None:
    claimed = await scene.running()
    stores = [store, await another(), await another()]

    def piece() -> Evidence:
        return Evidence(
            tenant=claimed.tenant, task=claimed.task, key="k", attempt=1, source="late", data=scene.text("x")
        )

    await asyncio.gather(*(stores[n % 3].note([piece(), piece()], now=scene.now) for n in range(12)))
    rows = await store.read_evidence(claimed.tenant, claimed.task, "k")
    assert [row.number for row in rows] == list(range(1, 25))


# ── submit ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False])
async def test_a_twin_in_an_open_transaction_is_waited_for(
    scene: Scene, store: PostgresStore, beside: Any, commits: bool
) -> None:
    first = scene.submission()
    transaction = beside.transaction()
    await transaction.start()
    await store.submit([first], connection=beside)
    twin = scene.submission(key=first.key, request_digest=first.request_digest)
    submitting = asyncio.create_task(store.submit([twin]))
    await until_blocked(beside, "submit")
    await (transaction.commit() if commits else transaction.rollback())
    [verdict] = await submitting
    assert (verdict.kind, verdict.task) == (("replayed", first.task) if commits else ("accepted", twin.task))
    assert len((await store.dump())["tasks"]) == 1


async def test_only_the_item_whose_twin_stays_open_is_busy(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    first = scene.submission()
    transaction = beside.transaction()
    await transaction.start()
    await store.submit([first], connection=beside)
    before, after = scene.submission(), scene.submission()
    twin = scene.submission(key=first.key)
    verdicts = await store.submit([before, twin, after])
    assert [verdict.kind for verdict in verdicts] == ["accepted", "busy", "accepted"]
    await transaction.rollback()
    assert [verdict.kind for verdict in await store.submit([twin])] == ["accepted"]


async def test_a_busy_item_leaves_the_callers_transaction_as_it_was(
    scene: Scene, store: PostgresStore, beside: Any, connect: Any
) -> None:
    first, own, last = scene.submission(), scene.submission(), scene.submission()
    transaction = beside.transaction()
    await transaction.start()
    await store.submit([first], connection=beside)
    mine = await connect()
    async with mine.transaction():
        assert [v.kind for v in await store.submit([own], connection=mine)] == ["accepted"]
        twin = scene.submission(key=first.key)
        assert [v.kind for v in await store.submit([twin, last], connection=mine)] == ["busy", "accepted"]
        assert await mine.fetchval("show lock_timeout") == "0"
    await transaction.rollback()
    assert {row["id"] for row in (await store.dump())["tasks"]} == {own.task, last.task}


async def test_crossed_keys_of_two_transactions_end_as_busy_not_as_an_error(
    scene: Scene, store: PostgresStore, beside: Any, connect: Any
) -> None:
    """The database breaks the deadlock; whoever was chosen keeps its transaction."""
    one, two = scene.submission(), scene.submission()
    mine, yours = beside, await connect()
    async with mine.transaction(), yours.transaction():
        await store.submit([one], connection=mine)
        await store.submit([two], connection=yours)
        verdicts = await asyncio.gather(
            store.submit([scene.submission(key=two.key)], connection=mine),
            store.submit([scene.submission(key=one.key)], connection=yours),
        )
        assert "busy" in {verdict.kind for [verdict] in verdicts}
        await mine.fetchval("select 1")
        await yours.fetchval("select 1")


async def test_a_transaction_under_repeatable_read_may_submit_into_a_new_lane(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    record = scene.submission()
    async with beside.transaction(isolation="repeatable_read"):
        await beside.fetchval("select count(*) from tasks")
        assert [v.kind for v in await store.submit([record], connection=beside)] == ["accepted"]
    scene.remember(record)
    assert (await scene.claim_task(record)).epoch == 1


async def test_a_winner_that_the_callers_snapshot_cannot_see_is_busy(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    """Under repeatable read there is nothing to read the winner from; the transaction has to begin again."""
    first = scene.submission()
    transaction = beside.transaction(isolation="repeatable_read")
    await transaction.start()
    await beside.fetchval("select count(*) from tasks")
    await store.submit([first])
    with pytest.raises(Busy):
        await store.submit([scene.submission(key=first.key)], connection=beside)
    await transaction.rollback()


async def test_an_open_transaction_holds_up_nobody_in_its_lane(
    scene: Scene, store: PostgresStore, beside: Any, another: Any
) -> None:
    """The lane is made outside of it, or others who need the lane would wait for its row."""
    first = scene.submission(agent="agent-new", pool="pool-new")
    async with beside.transaction():
        await store.submit([first], connection=beside)
        other = await another()
        record = scene.submission(agent="agent-new", pool="pool-new")
        async with asyncio.timeout(20):
            assert [v.kind for v in await other.submit([record])] == ["accepted"]
        scene.remember(record)
        assert (await scene.claim_task(record)).epoch == 1


async def test_a_lane_wanted_by_many_at_once_is_made_once(
    scene: Scene, store: PostgresStore, another: Any
) -> None:
    stores = [store, *[await another() for _ in range(3)]]
    records = [scene.submission(agent="agent-new", pool="pool-new") for _ in range(40)]
    verdicts = await asyncio.gather(*(stores[n % 4].submit([record]) for n, record in enumerate(records)))
    assert {verdict.kind for [verdict] in verdicts} == {"accepted"}
    dump = await store.dump()
    assert (len(dump["lanes"]), len(dump["queue"])) == (1, 40)


async def test_one_callers_bad_key_refuses_no_other_caller(scene: Scene, store: PostgresStore) -> None:
    """Calls that arrive together go in one transaction; that is nobody's business but ours."""
    records = [scene.submission(key="" if n == 5 else f"key-{n}") for n in range(20)]
    answers = await asyncio.gather(*(store.submit([record]) for record in records), return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [5]
    assert isinstance(answers[5], BatchRejected)
    assert len((await store.dump())["tasks"]) == 19


async def test_a_connection_outside_of_a_transaction_is_refused(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    with pytest.raises(ValueError, match="transaction"):
        await store.submit([scene.submission()], connection=beside)
    with pytest.raises(TypeError):
        await store.submit([scene.submission()], connection=object())


async def test_a_task_of_the_callers_transaction_wakes_others_when_it_commits(
    scene: Scene, store: PostgresStore, beside: Any, another: Any
) -> None:
    other = await another()
    while await other.wakes.wait("queue", 0.1):
        pass
    async with beside.transaction():
        await store.submit([scene.submission()], connection=beside)
        assert not await other.wakes.wait("queue", 0.1)
        waiting = asyncio.create_task(other.wakes.wait("queue", 30))
    assert await waiting


async def test_a_closed_store_is_unavailable(scene: Scene, another: Any) -> None:
    store = await another()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.submit([scene.submission()])
    await store.close()
