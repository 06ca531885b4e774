"""A schema that changes while a store is open: what is prepared on its connections is prepared anew."""

from __future__ import annotations

from typing import Any

from outlast.store.postgres import PostgresStore


async def test_a_column_more_costs_nobody_an_answer(store: PostgresStore, beside: Any) -> None:
    await beside.execute("create table noted as select 1 as n")
    try:
        # What is prepared, and asked inside a transaction, is what a new column makes invalid.
        async def ask(connection: Any) -> list[str]:
            async with connection.transaction():
                return list((await connection.fetch("select * from outlast.noted"))[0].keys())

        assert await store._views.run(ask) == ["n"]
        await beside.execute("alter table noted add column a_note text")
        assert await store._views.run(ask) == ["n", "a_note"]
    finally:
        await beside.execute("drop table noted")
