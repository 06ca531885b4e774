"""The marks of lanes: what was claimed is not walked over again, and what commits late is not passed by."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast.store.postgres import PostgresStore, adapter
from outlast.store.records import Claimed, Serves, Submission
from outlast.testing.store_suite.scene import Scene

LANE = {"agent": "agent-a", "pool": "pool-a"}
SERVES = [Serves(agent="agent-a", version="v")]


@pytest.fixture(autouse=True)
def worn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move a lane's mark at the claim after the first that took something."""
    monkeypatch.setattr(adapter, "WORN", 1)


async def claim(scene: Scene, session: str, limit: int = 1) -> list[str]:
    reply = await scene.claim(session, pools=["pool-a"], serves=SERVES, limit=limit)
    return [claimed.task for claimed in reply.claims]


async def mark(beside: Any) -> tuple[int, int]:
    row = await beside.fetchrow(
        "select mark_xid::text::bigint, mark_seq from lanes where agent = 'agent-a' and version = ''"
    )
    return tuple(row)


async def test_a_mark_moves_to_the_oldest_entry_that_is_left(scene: Scene, beside: Any) -> None:
    for _ in range(4):
        await scene.accept([scene.submission(**LANE)])
    session = await scene.session()
    assert await mark(beside) == (0, 0)
    assert len(await claim(scene, session)) == 1
    assert len(await claim(scene, session)) == 1
    oldest = await beside.fetchrow("select xid::text::bigint, seq from queue order by xid, seq limit 1")
    await beside.execute("select txid_current()")
    assert len(await claim(scene, session)) == 1
    assert await mark(beside) == tuple(oldest)


async def test_what_a_lane_served_is_counted_with_its_mark(scene: Scene, beside: Any) -> None:
    await scene.accept([scene.submission(**LANE) for _ in range(9)])
    session = await scene.session()
    for limit in (4, 3, 1):
        await claim(scene, session, limit)
    assert await beside.fetchval("select served from lanes where version = ''") == 7


async def test_a_task_that_commits_late_is_claimed(
    scene: Scene, store: PostgresStore, connect: Any, beside: Any
) -> None:
    """Its entry lies below others that were claimed before it could be seen; the mark has waited for it."""
    session = await scene.session()
    await scene.accept([scene.submission(**LANE)])
    late: Submission = scene.submission(**LANE)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await store.submit([late], connection=slow)
    xid = await slow.fetchval("select pg_current_xact_id()::text::bigint")
    for _ in range(5):
        await scene.accept([scene.submission(**LANE)])
    for _ in range(6):
        assert len(await claim(scene, session)) == 1
        assert (await mark(beside))[0] <= xid
    assert await claim(scene, session) == []
    assert (await mark(beside))[0] <= xid
    await transaction.commit()
    assert await claim(scene, session) == [late.task]


async def test_a_transaction_that_began_before_and_submits_later_is_not_passed_by(
    scene: Scene, store: PostgresStore, connect: Any, beside: Any
) -> None:
    """What counts is when its number was given out, not when it wrote the entry."""
    session = await scene.session()
    slow = await connect()
    async with slow.transaction():
        xid = await slow.fetchval("select pg_current_xact_id()::text::bigint")
        for _ in range(3):
            await scene.accept([scene.submission(**LANE)])
            assert len(await claim(scene, session)) == 1
            assert (await mark(beside))[0] <= xid
        assert await claim(scene, session) == []
        late = scene.submission(**LANE)
        await store.submit([late], connection=slow)
        assert (await mark(beside))[0] <= xid
    assert await claim(scene, session) == [late.task]


async def test_marks_go_on_after_the_slow_transaction_has_ended(
    scene: Scene, store: PostgresStore, connect: Any, beside: Any
) -> None:
    session = await scene.session()
    slow = await connect()
    async with slow.transaction():
        xid = await slow.fetchval("select pg_current_xact_id()::text::bigint")
        for _ in range(3):
            await scene.accept([scene.submission(**LANE)])
            await claim(scene, session)
    for _ in range(3):
        await scene.accept([scene.submission(**LANE)])
        await claim(scene, session)
    assert (await mark(beside))[0] > xid


async def test_a_mark_from_another_database_is_not_believed(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    """A dump that is restored elsewhere brings marks above every transaction number there."""
    session = await scene.session()
    record = scene.submission(**LANE)
    await scene.accept([record])
    await beside.execute("update lanes set mark_xid = '9000000000', mark_seq = 5")
    assert await claim(scene, session) == [record.task]
    await scene.accept([scene.submission(**LANE), scene.submission(**LANE)])
    assert len(await claim(scene, session)) == 1
    assert (await mark(beside))[0] < 9_000_000_000
    assert len(await claim(scene, session)) == 1


async def test_a_task_given_back_is_found_above_the_mark(scene: Scene) -> None:
    session = await scene.session()
    records = [scene.submission(**LANE) for _ in range(3)]
    await scene.accept(records)
    reply = await scene.claim(session, pools=["pool-a"], serves=SERVES, limit=1)
    first: Claimed = reply.claims[0]
    for _ in range(2):
        await claim(scene, session)
    await scene.write(first, scene.release())
    assert await claim(scene, session) == [first.task]


async def test_turns_are_kept_beside_a_long_transaction_and_late_commits(
    scene: Scene, store: PostgresStore, connect: Any, beside: Any
) -> None:
    """One tenant floods, its marks move at each claim; what the others commit late has its turn at once."""
    session = await scene.session()
    old = await connect()
    async with old.transaction(isolation="repeatable_read"):
        await old.fetchval("select count(*) from outlast.queue")
        slow = await connect()
        transaction = slow.transaction()
        await transaction.start()
        late = [scene.submission(tenant="tenant-late", **LANE) for _ in range(3)]
        await store.submit(late, connection=slow)
        await scene.accept([scene.submission(tenant="tenant-big", **LANE) for _ in range(60)])
        await scene.accept([scene.submission(tenant="tenant-small", **LANE) for _ in range(6)])

        async def turns(count: int) -> list[str]:
            claims = [
                await scene.claim(session, pools=["pool-a"], serves=SERVES, limit=1) for _ in range(count)
            ]
            return [claimed.tenant for reply in claims for claimed in reply.claims]

        first = await turns(6)
        assert sorted(first) == ["tenant-big"] * 3 + ["tenant-small"] * 3
        await transaction.commit()
        assert sorted(await turns(9)) == ["tenant-big"] * 3 + ["tenant-late"] * 3 + ["tenant-small"] * 3
        assert await turns(4) == ["tenant-big"] * 4


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_passed_by_whatever_the_order_of_commits(
    scene: Scene, store: PostgresStore, connect: Any, seed: int
) -> None:
    """Transactions submit, linger and end in a scrambled order, beside a claimer that moves marks."""
    import random

    order = random.Random(seed)
    session = await scene.session()
    records = [scene.submission(**LANE) for _ in range(60)]
    committed: set[str] = set()
    taken: list[str] = []
    working = True

    async def submit(own: list[Submission]) -> None:
        connection = await connect()
        for record in own:
            commits = order.random() < 0.8
            transaction = connection.transaction()
            await transaction.start()
            for _ in range(order.randrange(4)):
                await asyncio.sleep(0)
                await connection.execute("select pg_current_xact_id()")
            await store.submit([record], connection=connection)
            for _ in range(order.randrange(30)):
                await connection.execute("select 1")
            if commits:
                await transaction.commit()
                committed.add(record.task)
            else:
                await transaction.rollback()

    async def take() -> None:
        while working:
            taken.extend(await claim(scene, session, order.randrange(1, 4)))

    taking = asyncio.create_task(take())
    await asyncio.gather(*(submit(records[n::6]) for n in range(6)))
    working = False
    await taking
    while more := await claim(scene, session, 10):
        taken += more
    assert sorted(taken) == sorted(committed)
    assert (await store.dump())["queue"] == []
