"""A flush whose answer is lost, and other ways for a connection to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests import warm
from tests.contract.postgres_only.conftest import Wire, end_backends, until, until_blocked

from outlast.errors import StoreUnavailable
from outlast.store.entries import Note
from outlast.store.postgres import PostgresStore, adapter
from outlast.store.records import TaskRef
from outlast.testing.store_suite.scene import Scene


def a_note(scene: Scene) -> Note:
    return Note(key="k", attempt=1, source="answered", data=scene.text("note"))


async def test_a_commit_whose_answer_is_lost_is_answered_by_its_verdicts(
    scene: Scene, wired: PostgresStore, wire: Wire, beside: Any
) -> None:
    claimed = await scene.running()
    await wired.health()
    scene.store = wired
    first = scene.intent()
    await scene.write(claimed, scene.step())
    wire.mute = True
    batch = scene.batch(scene.writes(claimed, scene.step(events=(scene.event(),)), first, first))
    flushing = asyncio.create_task(wired.flush(batch, now=scene.now))
    await until(beside, "select max(number) = $1 from writers", batch.number)
    wire.mute = False
    wire.hang_up()
    [verdict] = await flushing
    assert (verdict.kind, verdict.refusals) == ("accepted", ((2, "not_planned"),))
    assert (await scene.operation(claimed, first.key)).attempt == 1
    assert [event.number for event in await scene.events(claimed)] == [1, 2, 3]


async def test_the_repeat_waits_for_a_backend_that_is_still_at_it(
    scene: Scene, wired: PostgresStore, wire: Wire, beside: Any
) -> None:
    """Absence proves nothing while the old backend may still commit."""
    claimed = await scene.running()
    scene.store = wired
    await scene.write(claimed, scene.step())
    held = beside.transaction()
    await held.start()
    await beside.execute("lock table evidence in exclusive mode")
    flushing = asyncio.create_task(
        wired.flush(scene.batch(scene.writes(claimed, a_note(scene))), now=scene.now)
    )
    await until_blocked(beside, "flush")
    wire.hang_up()
    await until(
        beside,
        "select count(*) = 2 from pg_stat_activity where application_name = 'outlast flush'"
        " and datname = current_database() and wait_event_type = 'Lock'",
    )
    await held.commit()
    [verdict] = await flushing
    assert verdict.kind == "accepted"
    assert len(await wired.read_evidence(claimed.tenant, claimed.task, "k")) == 1


async def test_a_backend_that_was_ended_in_the_middle_has_written_nothing(
    scene: Scene, store: PostgresStore, beside: Any, connect: Any
) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.step())
    held = beside.transaction()
    await held.start()
    await beside.execute("lock table evidence in exclusive mode")
    flushing = asyncio.create_task(
        store.flush(scene.batch(scene.writes(claimed, scene.step("twice"), a_note(scene))), now=scene.now)
    )
    await until_blocked(beside, "flush")
    await end_backends(await connect(), "flush")
    await held.commit()
    [verdict] = await flushing
    assert verdict.kind == "accepted"
    assert len(await store.read_evidence(claimed.tenant, claimed.task, "k")) == 1


async def test_gives_the_batch_back_when_the_server_stays_away(
    scene: Scene, wired: PostgresStore, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "DOUBT_SECONDS", 0.1)
    claimed = await scene.running()
    scene.store = wired
    batch = scene.batch(scene.writes(claimed, scene.step("one")))
    wire.refuse = True
    wire.hang_up()
    with pytest.raises(StoreUnavailable) as raised:
        await wired.flush(batch, now=scene.now)
    assert "\n" not in str(raised.value)
    wire.refuse = False
    [verdict] = await wired.flush(batch, now=scene.now)
    assert verdict.kind == "accepted"


async def test_a_submission_whose_answer_is_lost_is_accepted_once(
    scene: Scene, wired: PostgresStore, wire: Wire, beside: Any
) -> None:
    first = scene.submission()
    await wired.submit([first])
    # The same lane, so that one round trip is all there is.
    record = scene.submission(agent=first.agent, pool=first.pool)
    wire.mute = True
    submitting = asyncio.create_task(wired.submit([record]))
    await until(beside, "select count(*) = 1 from tasks where id = $1", record.task)
    wire.mute = False
    wire.hang_up()
    [verdict] = await submitting
    assert (verdict.kind, verdict.task) == ("accepted", record.task)
    assert await beside.fetchval("select count(*) from tasks where id = $1", record.task) == 1


@pytest.mark.parametrize("duty", ["claim", "flush", "control", "submit", "view", "load", "sweep"])
async def test_a_lost_connection_is_replaced(
    scene: Scene, store: PostgresStore, beside: Any, duty: str
) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.step())
    await store.load([claimed])
    await scene.sweep()
    await end_backends(beside, duty)
    await until(
        beside,
        "select count(*) = 0 from pg_stat_activity"
        " where application_name = $1 and datname = current_database()",
        f"outlast {duty}",
    )

    async def use() -> None:
        again = await scene.running()
        await scene.write(again, scene.step())
        await store.load([again])
        await scene.sweep()
        await store.settle([scene.settlement(again, "missing")], now=scene.now)

    try:
        await use()
    except StoreUnavailable:
        # It may have been in the middle of finding out.
        await use()


async def test_hints_come_back_with_the_connection(store: PostgresStore, another: Any, beside: Any) -> None:
    other = await another()
    await until(
        beside,
        "select count(*) = 2 from pg_stat_activity where application_name = 'outlast listen'"
        " and datname = current_database() and query like 'LISTEN%'",
    )
    while await store.wakes.wait("queue", 0.05):
        pass
    waiting = asyncio.create_task(store.wakes.wait("queue", 30))
    await end_backends(beside, "listen")
    assert await waiting
    await until(
        beside,
        "select count(*) = 2 from pg_stat_activity where application_name = 'outlast listen'"
        " and datname = current_database() and query like 'LISTEN%'",
    )
    while await store.wakes.wait("queue", 0.05):
        pass
    waiting = asyncio.create_task(store.wakes.wait("queue", 30))
    other.wakes.hint("queue")
    assert await waiting


async def test_a_cancelled_caller_leaves_the_connection_usable(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.step())
    held = beside.transaction()
    await held.start()
    await beside.execute("lock table evidence in exclusive mode")
    batch = scene.batch(scene.writes(claimed, a_note(scene)))
    flushing = asyncio.create_task(store.flush(batch, now=scene.now))
    await until_blocked(beside, "flush")
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    await held.commit()
    # The call went on to its end; the very same batch answers what it decided.
    [verdict] = await store.flush(batch, now=scene.now)
    assert verdict.kind == "accepted"
    assert len(await store.read_evidence(claimed.tenant, claimed.task, "k")) == 1


async def test_a_read_only_server_is_unavailable(
    scene: Scene, store: PostgresStore, beside: Any, another: Any
) -> None:
    """A standby, or a primary that was demoted under us."""
    database = await beside.fetchval("select current_database()")
    await beside.execute(f'alter database "{database}" set default_transaction_read_only = on')
    warm.cool()
    try:
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await another()
        # On a connection that is made for it, since the setting is for new ones.
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await store.submit([scene.submission()])
    finally:
        await beside.execute("set default_transaction_read_only = off")
        await beside.execute(f'alter database "{database}" reset default_transaction_read_only')
    assert [v.kind for v in await store.submit([scene.submission()])] == ["accepted"]
    assert (await store.health()).reachable


async def test_an_unreachable_database_is_told_in_one_line_without_the_password() -> None:
    store = PostgresStore("postgresql://somebody:hush-hush@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert "127.0.0.1:1" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value) + store.url
    assert not (await store.health()).reachable
    await store.close()


async def test_a_wrong_password_is_told_without_it(database_url: str) -> None:
    url = database_url.replace("outlast:", "outlast:hush-hush", 1)
    store = PostgresStore(url)
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert "password authentication failed" in str(raised.value)
    assert "hush" not in str(raised.value)
    await store.close()


async def test_reads_of_one_store_do_not_wait_for_each_other(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    """A slow view stands in front of no other."""
    record = await scene.submit()
    held = beside.transaction()
    await held.start()
    await beside.execute("lock table evidence in access exclusive mode")
    slow = asyncio.create_task(store.read_evidence(record.tenant, record.task, "k"))
    await until_blocked(beside, "view")
    assert len(await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)])) == 1
    await held.commit()
    assert await slow == []
