"""Plans that were made while a table was small still look rows up one by one when it has grown."""

from __future__ import annotations

from typing import Any

from outlast.store.postgres import PostgresStore
from outlast.store.records import Serves, TaskRef
from outlast.store.rows import EventCursor
from outlast.testing.store_suite.scene import Scene

GROWN = 400
READ = (
    "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
    "  from pg_stat_xact_user_tables where schemaname = 'outlast' and relname = 'operations'"
)
"""How many rows of the ledger this transaction has read, by whatever way."""
READ_ALL = (
    "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint"
    "  from pg_stat_xact_user_tables where schemaname = 'outlast'"
)
"""How many rows of all tables this transaction has read."""


async def test_what_takes_from_an_inbox_does_not_read_the_ledger(scene: Scene, store: PostgresStore) -> None:
    claimed, other = await scene.running(), await scene.running()
    await scene.post(scene.signal(claimed), scene.signal(claimed))
    # The plan of the statement is made now, and stands until the table is analysed.
    await scene.write(claimed, scene.step(takes=(1,)))
    await scene.write(other, *(scene.step() for _ in range(GROWN)))
    line = store._flush_line
    await line.run(lambda connection: connection.execute("begin"))
    await scene.write(claimed, scene.step(takes=(2,)))
    read = await line.run(lambda connection: connection.fetchval(READ))
    await line.run(lambda connection: connection.execute("commit"))
    assert read < GROWN // 4


async def test_what_is_asked_at_every_hint_looks_only_at_what_it_is_asked_for(
    scene: Scene, store: PostgresStore
) -> None:
    """The plans are made while the tables are as good as empty."""
    first = await scene.submit()
    ref = TaskRef(tenant=first.tenant, task=first.task)
    cursor = EventCursor(tenant=first.tenant, task=first.task)
    await store.read_ends([ref])
    await store.read_events([cursor])
    await scene.accept([scene.submission(agent=first.agent, pool=first.pool) for _ in range(GROWN)])
    for line in store._follows._lines:
        await line.run(lambda connection: connection.execute("begin"))
    assert len(await store.read_ends([ref])) == len(await store.read_events([cursor])) == 1
    read = 0
    for line in store._follows._lines:
        read += await line.run(lambda connection: connection.fetchval(READ_ALL))
        await line.run(lambda connection: connection.execute("commit"))
    assert 0 < read < GROWN // 4


async def test_what_a_task_is_loaded_with_is_looked_up_task_by_task(
    scene: Scene, store: PostgresStore
) -> None:
    """By a claim as by a load, whose plans are made while the tables are as good as empty."""
    await store.load([await scene.running()])
    told = await scene.submit()
    await scene.post(*(scene.signal(told) for _ in range(GROWN)))
    await scene.write(await scene.running(), *(scene.step() for _ in range(GROWN)))
    for line in (store._claim_line, store._load_line):
        await line.run(lambda connection: connection.execute("begin"))
        before = await line.run(lambda connection: connection.fetchval(READ_ALL))
        await store.load([await scene.running()])
        read = await line.run(lambda connection: connection.fetchval(READ_ALL)) - before
        await line.run(lambda connection: connection.execute("commit"))
        assert 0 < read < GROWN // 4


LOOKED = (
    "select coalesce(idx_scan, 0) from pg_stat_xact_user_tables"
    " where schemaname = 'outlast' and relname = 'posts'"
)
"""How often this transaction has looked into an index of what is left for other tasks."""


async def test_an_end_is_taken_by_one_look_however_many_lie_there(scene: Scene, store: PostgresStore) -> None:
    parent = await scene.running()
    for number in range(12):
        kid = await scene.claim_task(await scene.child(parent, f"kid-{number}"))
        await scene.write(kid, scene.success(heard=True, result="1"))
    line = store._flush_line
    await line.run(lambda connection: connection.execute("select pg_stat_force_next_flush()"))
    await line.run(lambda connection: connection.execute("begin"))
    records = [scene.step(f"kid-{number}", kind="child", result="1", takes_end=True) for number in (3, 7, 11)]
    await scene.write(parent, *records)
    looks = await line.run(lambda connection: connection.fetchval(LOOKED))
    await line.run(lambda connection: connection.execute("commit"))
    assert looks == len(records)
    assert len((await store.dump())["posts"]) == 9


LANE_LOOKS = LOOKED.replace("posts", "lanes")
"""How often this transaction has looked into an index of the lanes."""


async def test_where_claimed_tasks_stand_is_looked_up_once_for_all(
    scene: Scene, store: PostgresStore
) -> None:
    first = await scene.submit()
    await scene.claim_task(first, version="version-9")
    await scene.accept([scene.submission(agent=first.agent, pool=first.pool) for _ in range(40)])
    session, line = await scene.session(), store._claim_line
    # What was looked at before is not counted.
    await line.run(lambda connection: connection.execute("select pg_stat_force_next_flush()"))
    await line.run(lambda connection: connection.execute("begin"))
    serves = [Serves(agent=first.agent, version="version-9")]
    reply = await scene.claim(session, pools=[first.pool], serves=serves, limit=40)
    looks = await line.run(lambda connection: connection.fetchval(LANE_LOOKS))
    await line.run(lambda connection: connection.execute("commit"))
    assert len(reply.claims) == 40
    assert 0 < looks < 20


TASKS_READ = READ_ALL + " and relname = 'tasks'"


async def test_whether_an_entry_is_stale_is_asked_of_its_task_alone(
    scene: Scene, store: PostgresStore, beside: Any
) -> None:
    session, line = await scene.session(), store._claim_line
    claim = {"pools": ["pool-a"], "serves": [Serves(agent="agent-a", version="v")], "limit": 5}
    for grown in (0, GROWN):
        await scene.accept([scene.submission(agent="other") for _ in range(grown)])
        gone = await scene.submit(agent="agent-a", pool="pool-a")
        await beside.execute("update tasks set state = 'cancelled' where id = $1", gone.task)
        await line.run(lambda connection: connection.execute("select pg_stat_force_next_flush()"))
        await line.run(lambda connection: connection.execute("begin"))
        assert (await scene.claim(session, **claim)).claims == ()
        read = await line.run(lambda connection: connection.fetchval(TASKS_READ))
        await line.run(lambda connection: connection.execute("commit"))
        assert await scene.rows("queue", gone) == []
        assert read < 10
