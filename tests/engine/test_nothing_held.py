"""No lock and no transaction is held across a call to the outside, whichever of an application's functions
makes it: while each runs, another connection looks, on PostgreSQL for what is held, on SQLite by writing."""

from __future__ import annotations

import asyncio
from typing import Any

import apsw
from tests.engine.house import PATIENCE_S, House

from outlast import Allow, TaskContext, ToolCall, Uncertain
from outlast.testing.store_suite.scene import Backdoor

OUTSIDE = {"step", "policy", "target", "requires", "tool", "find", "check", "list_effects"}
HELD = """
select coalesce(string_agg(a.application_name || ' ' || a.state || ' ' || left(a.query, 60), '; '), '')
  from pg_stat_activity a
 where a.datname = current_database() and a.application_name like 'outlast%'
   and a.state like 'idle in transaction%'
"""
LOCKS = """
select coalesce(string_agg(a.application_name || ' ' || l.locktype || ' ' || l.mode, '; '), '')
  from pg_locks l
  join pg_stat_activity a on a.pid = l.pid
 where a.datname = current_database() and a.application_name like 'outlast%' and a.state <> 'active'
   and l.locktype in ('advisory', 'transactionid', 'tuple')
"""
LOOKS = 5
PATIENCE_LOOKS = 2_000
"""What is seen so often in a row is held, and not on its way."""


async def held(backdoor: Backdoor) -> str:
    """Answer what is held, or nothing."""
    if backdoor.dialect == "sqlite":
        # Whoever held the file would let nobody write, however often it is tried.
        for _ in range(PATIENCE_LOOKS):
            try:
                async with backdoor.transaction():
                    return ""
            except apsw.BusyError:
                await asyncio.sleep(0)
        return "the file"
    seen: list[str] = []
    for _ in range(LOOKS):
        now = [str(row[0]) for question in (HELD, LOCKS) for row in await backdoor.run(question)]
        if not any(now):
            return ""
        seen += now
    return "; ".join(seen)


async def test_nothing_is_held_while_a_function_of_the_application_runs(
    house: House, backdoor: Backdoor
) -> None:
    found: dict[str, str] = {}

    async def look(where: str) -> None:
        found[where] = found.get(where, "") + await held(backdoor)

    async def policy(invoice: str) -> Any:
        await look("policy")
        return Allow()

    async def target(invoice: str) -> Any:
        await look("target")
        return {"version": 1}

    async def requires(invoice: str) -> bool:
        await look("requires")
        return True

    async def find(call: ToolCall, invoice: str) -> Any:
        await look("find")
        return {"id": "R-1"}

    async def list_effects(call: ToolCall, since: Any) -> list[str]:
        await look("list_effects")
        return []

    @house.app.tool(
        effect="queryable",
        approval=policy,
        target=target,
        requires=requires,
        find=find,
        list_effects=list_effects,
        visible_within=0,
        business_key="{invoice}",
        once="1h",
        timeout=10,
    )
    async def create(call: ToolCall, invoice: str) -> Any:
        await look("tool")
        raise Uncertain("nobody knows")

    async def read() -> int:
        await look("step")
        return 1

    async def check(result: Any) -> bool:
        await look("check")
        return True

    @house.app.agent(check=check)
    async def files(task: TaskContext, invoice: str) -> Any:
        await task.step(read)
        return await task.call(create, invoice=invoice)

    # Others of the same worker write meanwhile.
    @house.app.agent
    async def busy(task: TaskContext) -> None:
        for number in range(20):
            await task.emit("progress", {"number": number})

    house.start()
    async with asyncio.timeout(PATIENCE_S):
        handles = [await house.submit(files, invoice=f"INV-{number}") for number in range(3)]
        others = [await house.submit(busy) for _ in range(3)]
        for handle in (*handles, *others):
            assert (await house.ended(handle)).state == "succeeded"
        await house.app.operations.sweep_other_side("create", since=(await handles[0].get()).submitted_at)
    assert set(found) == OUTSIDE
    assert {where: said for where, said in found.items() if said} == {}
