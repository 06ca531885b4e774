"""Views, tenants, health, the schema and the dump."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.core.ids import operation_id
from outlast.errors import SchemaMismatch, SchemaTooNew
from outlast.store.contract import SCHEMA_VERSION
from outlast.store.entries import BusinessKey, NewEvent
from outlast.store.records import Evidence, TaskRef
from outlast.store.rows import NO_VALUE, EndRow, EventCursor, OperationFilter, TaskFilter
from outlast.testing.store_suite.changing import retry
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor, Reopen, Scene, changed

TABLES: dict[str, set[str]] = {
    name: set(columns.split())
    for name, columns in {
        "tasks": "tenant id state reason epoch round facts last_event lane deadline_at",
        "inputs": "tenant task key request_digest agent version_asked pool priority input user_name trace"
        " announce submitted_at",
        "lanes": "id pool agent version tenant priority weight served",
        "queue": "lane seq tenant task",
        "leases": "tenant task epoch round session version config started_at",
        "attempts": "tenant task epoch round session worker version config started_at ended_at end",
        "sessions": "id name serves started_at expires_at lost_at",
        "writers": "id number verdicts updated_at",
        "operations": "tenant task key position kind name state request decision effect attempt turn epoch"
        " arguments result error created_at intent_at first_intent_at deadline_at due_at ended_at settled_by",
        "unsettled": "tenant task key since",
        "evidence": "tenant task key number attempt source data at",
        "events": "tenant task number kind epoch data at",
        "timers": "tenant task kind due_at",
        "results": "tenant task round state result error effects_open ended_at",
        "outbox": "tenant task number topic data created_at parked",
        "migrations": "number name checksum applied_at",
    }.items()
}
"""Every table that a dump holds, and the columns that its rows have at least."""


class TestTaskViews:
    """``read_tasks``, ``list_tasks`` and ``read_attempts``."""

    async def test_reads_the_tasks_that_exist(self, scene: Scene) -> None:
        one, two = await scene.submit(), await scene.submit(tenant="tenant-blue")
        refs = [
            TaskRef(tenant=two.tenant, task=two.task),
            TaskRef(tenant=one.tenant, task=scene.submission().task),
            TaskRef(tenant=one.tenant, task=one.task),
        ]
        rows = await scene.store.read_tasks(refs)
        assert {(row.tenant, row.task) for row in rows} == {
            (one.tenant, one.task),
            (two.tenant, two.task),
        }
        assert len(rows) == 2
        assert await scene.store.read_tasks([]) == []

    async def test_shows_each_task_what_is_its_own(self, scene: Scene) -> None:
        """Tasks of one tenant, each with all that can be told from another's."""
        claims = [await scene.running(priority=n, deadline_us=n * HOUR) for n in (3, 1, 2)]
        for count, claimed in enumerate(claims):
            for _ in range(count):
                await scene.called(claimed, "unknown")
            await scene.write(claimed, scene.success() if count == 1 else scene.failure())
        rows = {
            row.task: row
            for row in await scene.store.read_tasks(
                [TaskRef(tenant=claimed.tenant, task=claimed.task) for claimed in claims]
            )
        }
        for count, claimed in enumerate(claims):
            [inputs], [result] = await scene.rows("inputs", claimed), await scene.rows("results", claimed)
            row = rows[claimed.task]
            assert (
                row.agent,
                row.pool,
                row.priority,
                row.key,
                row.user,
                row.input,
                row.submitted_at,
            ) == tuple(
                inputs[name]
                for name in ("agent", "pool", "priority", "key", "user_name", "input", "submitted_at")
            )
            assert (row.result, row.error, row.ended_at) == (
                result["result"],
                result["error"],
                result["ended_at"],
            )
            assert (row.effects_open, row.attempts, row.deadline_at) == (count, 1, claimed.deadline_at)
            [attempt] = await scene.store.read_attempts(TaskRef(tenant=row.tenant, task=row.task))
            [stored] = await scene.rows("attempts", claimed)
            assert (attempt.session, attempt.config) == (stored["session"], stored["config"])

    async def test_reads_how_tasks_have_ended_in_their_latest_round(self, scene: Scene) -> None:
        lives, done, failed, again = [await scene.running() for _ in range(4)]
        await scene.write(done, scene.success())
        await scene.write(failed, scene.failure())
        await scene.write(again, scene.failure())
        await retry(scene, again)
        refs = [TaskRef(tenant=one.tenant, task=one.task) for one in (lives, done, failed, again)]
        strangers = [
            TaskRef(tenant="tenant-other", task=done.task),
            TaskRef(tenant=done.tenant, task=scene.submission().task),
        ]
        found = {row.task: row for row in await scene.store.read_ends([*refs, *strangers])}
        tasks = {row.task: row for row in await scene.store.read_tasks(refs)}
        assert found == {
            name: EndRow(
                tenant=row.tenant,
                task=name,
                agent=row.agent,
                version=row.version,
                state=row.state,
                result=row.result,
                error=row.error,
            )
            for name, row in tasks.items()
        }
        assert [found[one.task].state for one in (lives, done, failed, again)] == [
            "running",
            "succeeded",
            "failed",
            "queued",
        ]
        assert (found[again.task].error, found[failed.task].error is None) == (None, False)
        assert await scene.store.read_ends([]) == []

    async def test_lists_newest_first(self, scene: Scene) -> None:
        records = [await scene.submit() for _ in range(5)]
        await scene.submit(tenant="tenant-blue")
        rows = await scene.store.list_tasks(TaskFilter(tenant=scene.tenant))
        assert [row.task for row in rows] == [record.task for record in reversed(records)]

    @pytest.mark.parametrize("parent", [False, True])
    async def test_lists_all_that_is_told_of_a_task_but_its_values(self, scene: Scene, parent: bool) -> None:
        """Those may be a megabyte each, and a page would be read in full for nothing."""
        claimed = await scene.running()
        kid = await scene.child(claimed)
        await scene.write(await scene.claim_task(kid), scene.success())
        query = TaskFilter(tenant=scene.tenant, parent=claimed.task if parent else None)
        rows = await scene.store.list_tasks(query)
        assert [row.task for row in rows] == [kid.task, *(() if parent else (claimed.task,))]
        by_name = await scene.store.read_tasks([TaskRef(tenant=row.tenant, task=row.task) for row in rows])
        assert all(row.input != NO_VALUE for row in by_name)
        assert any(row.result is not None for row in by_name)
        assert {row.task: replace(row, input=NO_VALUE, result=None) for row in by_name} == {
            row.task: row for row in rows
        }

    async def test_lists_in_pages(self, scene: Scene) -> None:
        records = [await scene.submit() for _ in range(5)]
        seen: list[str] = []
        for _ in range(4):
            rows = await scene.store.list_tasks(
                TaskFilter(tenant=scene.tenant, before=seen[-1] if seen else None, limit=2)
            )
            assert len(rows) <= 2
            seen += [row.task for row in rows]
        assert seen == [record.task for record in reversed(records)]

    async def test_lists_by_state_and_agent(self, scene: Scene) -> None:
        queued = await scene.submit()
        running = await scene.running()
        ended = await scene.running()
        await scene.write(ended, scene.success())
        for state, task in (("queued", queued), ("running", running), ("succeeded", ended)):
            rows = await scene.store.list_tasks(TaskFilter(tenant=scene.tenant, state=state))
            assert [row.task for row in rows] == [task.task]
        by_agent = TaskFilter(tenant=scene.tenant, agent=running.agent)
        assert [row.task for row in await scene.store.list_tasks(by_agent)] == [running.task]
        assert await scene.store.list_tasks(replace(by_agent, state="failed")) == []
        assert await scene.store.list_tasks(replace(by_agent, tenant="tenant-other")) == []

    async def test_reads_attempts_oldest_first_with_the_running_one(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.lose(await scene.claim_task(record))
        await scene.write(await scene.claim_task(record), scene.release())
        await scene.claim_task(record)
        ref = TaskRef(tenant=record.tenant, task=record.task)
        attempts = await scene.store.read_attempts(ref)
        assert [attempt.end for attempt in attempts] == ["lost", "released", None]
        assert [attempt.epoch for attempt in attempts] == sorted({a.epoch for a in attempts})
        assert (await scene.task(record)).attempts == 3


class TestEventViews:
    """``read_events``."""

    async def test_reads_above_each_cursor(self, scene: Scene) -> None:
        one, two, three = await scene.running(), await scene.running(), await scene.running()
        for claimed in (one, two, three):
            await scene.write(claimed, scene.step(events=(scene.event(), scene.event())))
        cursors = [
            EventCursor(tenant=two.tenant, task=two.task, after=3),
            EventCursor(tenant=one.tenant, task=one.task, after=1),
            EventCursor(tenant=three.tenant, task=three.task, after=9),
        ]
        events = await scene.store.read_events(cursors)
        assert [(event.task, event.number) for event in events] == [
            (one.task, 2),
            (one.task, 3),
            (one.task, 4),
            (two.task, 4),
        ]
        assert await scene.store.read_events([]) == []

    async def test_reads_at_most_the_limit_in_all(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        cursors = [EventCursor(tenant=c.tenant, task=c.task) for c in (two, one)]
        events = await scene.store.read_events(cursors, 3)
        assert [(event.task, event.number) for event in events] == [
            (one.task, 1),
            (one.task, 2),
            (two.task, 1),
        ]

    async def test_reads_until_the_room_is_full(self, scene: Scene) -> None:
        """It is counted in bytes; the event that fills it is the last one, however large it is."""
        one, two = await scene.running(), await scene.running()
        short = NewEvent(kind="progress", data='"éé"')
        for claimed in (one, two):
            await scene.write(claimed, scene.step(events=(scene.event(), short)))
        cursors = [EventCursor(tenant=c.tenant, task=c.task) for c in (two, one)]
        events = await scene.store.read_events(cursors)
        assert [event.data for event in events].count('"éé"') == 2
        filled = 0
        for count, event in enumerate(events, start=1):
            # Just not full before its last byte is there.
            for room in (filled + 1, filled + len(event.data.encode())):
                assert await scene.store.read_events(cursors, room=room) == events[:count]
            filled += len(event.data.encode())
        assert await scene.store.read_events(cursors, room=filled + 1) == events
        assert await scene.store.read_events(cursors, 3, room=filled) == events[:3]


class TestOperationViews:
    """``list_operations`` and ``read_evidence``."""

    async def test_lists_a_ledger_by_position(self, scene: Scene) -> None:
        claimed = await scene.running()
        for key, position in (("a", 30), ("b", 10), ("c", 20)):
            await scene.write(claimed, scene.step(key, position=position))
        await scene.called(claimed, "unknown", key="d", position=5)
        query = OperationFilter(tenant=claimed.tenant, task=claimed.task)
        rows = await scene.store.list_operations(query)
        assert [row.key for row in rows] == ["d", "b", "c", "a"]
        assert [row.key for row in await scene.store.list_operations(replace(query, limit=2))] == ["d", "b"]
        assert [r.key for r in await scene.store.list_operations(replace(query, state="unknown"))] == ["d"]
        assert [r.key for r in await scene.store.list_operations(replace(query, key="c"))] == ["c"]
        assert await scene.store.list_operations(replace(query, key="c", state="unknown")) == []

    async def test_lists_a_ledger_in_pages(self, scene: Scene) -> None:
        """``after`` is the key of the last one seen; the order stays that of positions."""
        claimed, other = await scene.running(), await scene.running()
        for key, position in (("a", 30), ("b", 10), ("c", 20), ("d", 20), ("e", 5)):
            await scene.write(claimed, scene.step(key, position=position))
            await scene.write(other, scene.step(key, position=100 - position))
        seen: list[str] = []
        for _ in range(4):
            query = OperationFilter(
                tenant=claimed.tenant, task=claimed.task, after=seen[-1] if seen else None, limit=2
            )
            page = await scene.store.list_operations(query)
            assert len(page) <= 2
            seen += [row.key for row in page]
        assert seen == ["e", "b", "c", "d", "a"]

    async def test_lists_a_ledger_behind_an_operations_id_as_behind_its_key(self, scene: Scene) -> None:
        claimed = await scene.running()
        for key, position in (("a", 30), ("b", 10), ("c", 20)):
            await scene.write(claimed, scene.step(key, position=position))
        query = OperationFilter(tenant=claimed.tenant, task=claimed.task)
        for after in ("b", operation_id(claimed.task, "b")):
            assert [row.key for row in await scene.store.list_operations(replace(query, after=after))] == [
                "c",
                "a",
            ]

    async def test_leaves_values_out_for_those_who_do_not_want_them(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "unknown", key="open", arguments='{"to":"ann"}')
        await scene.called(claimed, "succeeded", key="done", arguments='{"to":"bob"}')
        for query in (
            OperationFilter(tenant=claimed.tenant, task=claimed.task),
            OperationFilter(tenant=claimed.tenant, state="unknown"),
        ):
            whole = await scene.store.list_operations(query)
            assert all(row.arguments is not None for row in whole)
            assert any(row.result is not None for row in whole) == (query.task is not None)
            bare = await scene.store.list_operations(replace(query, values=False))
            assert bare == [replace(row, arguments=None, result=None) for row in whole]

    async def test_lists_the_reconciliation_queue_by_operation_id(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        for claimed, key in ((two, "b"), (two, "a"), (one, "z"), (one, "y")):
            await scene.called(claimed, "unknown", key=key)
        await scene.called(one, "succeeded", key="done")
        await scene.called(one, key="open")
        foreign = await scene.running(tenant="tenant-blue")
        await scene.called(foreign, "unknown", key="theirs")
        query = OperationFilter(tenant=scene.tenant, state="unknown")
        rows = await scene.store.list_operations(query)
        assert [(row.task, row.key) for row in rows] == [
            (one.task, "y"),
            (one.task, "z"),
            (two.task, "a"),
            (two.task, "b"),
        ]
        await scene.called(two, "unknown", key="y")
        same = await scene.store.list_operations(replace(query, key="y"))
        assert [(row.task, row.key, row.name) for row in same] == [
            (one.task, "y", (await scene.operation(one, "y")).name),
            (two.task, "y", (await scene.operation(two, "y")).name),
        ]
        rows = await scene.store.list_operations(query)
        seen: list[tuple[str, str]] = []
        for _ in range(4):
            after = operation_id(*seen[-1]) if seen else None
            page = await scene.store.list_operations(replace(query, after=after, limit=2))
            assert len(page) <= 2
            seen += [(row.task, row.key) for row in page]
        assert seen == [(row.task, row.key) for row in rows]


class TestTenants:
    """Nothing crosses from one tenant to another, even where every other part of a name is the same."""

    async def twins(self, scene: Scene, tenants: tuple[str, str]) -> tuple[Any, Any]:
        """Make two running tasks with one id, one operation key and one business key in two tenants."""
        one = await scene.running(tenant=tenants[0])
        [inputs] = await scene.rows("inputs", one)
        record = replace(
            scene.submission(tenant=tenants[1]), task=one.task, key=inputs["key"], agent=inputs["agent"]
        )
        await scene.accept([record])
        two = await scene.claim_task(record)
        for claimed in (one, two):
            business = BusinessKey(tool="pay", value="invoice-7", mode="lock")
            await scene.called(claimed, "unknown", key="same", business=business)
        return one, two

    @pytest.mark.parametrize(
        "tenants",
        [
            ("tenant-blue", "tenant-red"),
            ("tenant-blue", "Tenant-Blue"),
            ("tenant-blue", "tenant-blue "),
            ("tenant-bl\u00fc", "tenant-blu\u0308"),
            ("tenant-K", "tenant-\u212a"),
            ("t" * 119, "t" * 120),
            ("tenant_blue", "tenant%blue"),
        ],
        ids=["other", "case", "space", "normalisation", "compatibility", "length", "wildcard"],
    )
    async def test_twins_have_rows_of_their_own(self, scene: Scene, tenants: tuple[str, str]) -> None:
        """However much their names look alike: they are compared character by character."""
        one, two = await self.twins(scene, tenants)
        assert one.task == two.task
        before = {
            table: rows
            for table in TABLES
            if table not in ("lanes", "sessions", "writers", "migrations")
            and (rows := await scene.rows(table, two))
        }
        assert {"tasks", "inputs", "leases", "operations", "unsettled", "events"} <= set(before)
        await scene.store.settle([scene.settlement(one, "same")], now=scene.now)
        note = Evidence(
            tenant=one.tenant, task=one.task, key="same", attempt=1, source="late", data=scene.text("late")
        )
        await scene.store.note([note], now=scene.now)
        await scene.write(one, scene.step("mine", events=(scene.event(),)))
        await scene.write(one, scene.success())
        for table, rows in before.items():
            assert await scene.rows(table, two) == rows, table
        assert (await scene.flush(two, scene.step())).kind == "accepted"

    async def test_reads_evidence_from_the_newest_until_the_room_is_full(self, scene: Scene) -> None:
        """It is counted in bytes; the piece that fills it is the earliest one, however large it is."""
        claimed = await scene.running()
        key, other = await scene.called(claimed, "unknown"), await scene.called(claimed, "unknown")
        name = (claimed.tenant, claimed.task, key)
        texts = ['"a"', '"éé"', '"a little longer"', "{}", '"é"', "1"]
        for text in texts:
            notes = [
                Evidence(
                    tenant=claimed.tenant, task=claimed.task, key=of, attempt=1, source="late", data=data
                )
                for of, data in ((key, text), (other, '"of another"'))
            ]
            await scene.store.note(notes, now=scene.now)
        read = scene.store.read_evidence
        rows = await read(*name)
        assert [(row.number, row.data) for row in rows] == list(enumerate(texts, start=1))
        filled = 0
        for count in range(1, len(rows) + 1):
            # Just not full before its first byte is there.
            for room in (filled + 1, filled + len(rows[-count].data.encode())):
                assert await read(*name, room=room) == rows[-count:]
            filled += len(rows[-count].data.encode())
        assert await read(*name, room=filled + 1) == rows
        assert await read(*name, limit=2, room=filled) == rows[-2:]
        assert await read(*name, limit=9) == rows
        assert await read(*name, before=5, limit=3) == rows[1:4]
        assert await read(*name, before=3, room=1) == rows[1:2]
        assert await read(*name, before=1) == []
        assert await read(*name, before=9) == rows

    async def test_views_of_a_foreign_tenant_are_empty(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        late = Evidence(
            tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="late", data="{}"
        )
        await scene.store.note([late], now=scene.now)
        store, task = scene.store, claimed.task
        assert await store.read_tasks([TaskRef(tenant="tenant-other", task=task)]) == []
        assert await store.list_tasks(TaskFilter(tenant="tenant-other")) == []
        assert await store.read_events([EventCursor(tenant="tenant-other", task=task)]) == []
        assert await store.read_attempts(TaskRef(tenant="tenant-other", task=task)) == []
        for query in (
            OperationFilter(tenant="tenant-other", task=task),
            OperationFilter(tenant="tenant-other", task=task, key=key),
            OperationFilter(tenant="tenant-other", state="unknown"),
        ):
            assert await store.list_operations(query) == []
        assert await store.read_evidence("tenant-other", task, key) == []
        assert len(await store.read_evidence(claimed.tenant, task, key)) == 1


class TestHealth:
    """``health`` and the ends of a store's life."""

    async def test_answers(self, scene: Scene) -> None:
        for _ in range(3):
            await scene.submit()
        await scene.running()
        health = await scene.store.health()
        assert (health.reachable, health.schema_version, health.queued) == (True, SCHEMA_VERSION, 3)
        assert scene.now <= health.now <= scene.now + 600 * SECOND

    async def test_never_raises(self, scene: Scene) -> None:
        await scene.store.close()
        assert (await scene.store.health()).reachable is False
        await scene.store.close()

    async def test_two_stores_see_one_database(self, scene: Scene, reopen: Reopen) -> None:
        record = await scene.submit()
        other = replace(scene, store=await reopen())
        assert (await other.task(record)).state == "queued"
        claimed = await other.claim_task(record)
        assert (await scene.task(record)).state == "running"
        await scene.write(claimed, scene.success())
        assert (await other.task(record)).state == "succeeded"


class TestSchema:
    """``migrate``, ``open`` and ``dump``."""

    async def test_migrating_again_does_nothing(self, scene: Scene) -> None:
        await scene.submit()
        before = await scene.store.dump()
        assert await scene.store.migrate() == []
        assert changed(before, await scene.store.dump()) == {}

    async def test_migrations_are_on_record(self, scene: Scene) -> None:
        rows = (await scene.store.dump())["migrations"]
        assert [row["number"] for row in rows] == list(range(1, SCHEMA_VERSION + 1))
        for row in rows:
            assert row["name"]
            assert row["checksum"]
            assert 0 < row["applied_at"] <= scene.now

    async def test_a_newer_schema_is_left_alone(
        self, scene: Scene, backdoor: Backdoor, reopen: Reopen
    ) -> None:
        await backdoor.run(
            f"insert into migrations (number, name, checksum, applied_at)"
            f" values ({SCHEMA_VERSION + 1}, 'from the future', 'abc', 1)"
        )
        with pytest.raises(SchemaTooNew):
            await reopen()
        with pytest.raises(SchemaTooNew):
            await scene.store.migrate()

    async def test_a_migration_that_was_edited_is_noticed(self, scene: Scene, backdoor: Backdoor) -> None:
        await backdoor.run("update migrations set checksum = 'edited' where number = 1")
        with pytest.raises(SchemaMismatch):
            await scene.store.migrate()

    async def test_a_dump_holds_every_table_and_column(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=HOUR, announce=True)
        await scene.submit()
        await scene.write(await scene.claim_task(record), scene.release())
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.called(claimed, "unknown")
        ended = await scene.running()
        await scene.write(ended, scene.success())
        dump = await scene.store.dump()
        assert set(TABLES) <= set(dump)
        for table, columns in TABLES.items():
            assert dump[table], table
            assert columns <= set(dump[table][0]), table
