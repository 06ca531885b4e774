"""Plans that were made while a table was small still look rows up one by one when it has grown."""

from __future__ import annotations

from outlast.store.postgres import PostgresStore
from outlast.testing.store_suite.scene import Scene

GROWN = 400
READ = (
    "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
    "  from pg_stat_xact_user_tables where schemaname = 'outlast' and relname = 'operations'"
)
"""How many rows of the ledger this transaction has read, by whatever way."""


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
