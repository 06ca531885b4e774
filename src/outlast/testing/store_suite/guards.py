"""The second guard: what the database itself refuses, whatever code comes to it."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.core.operation import EFFECTS, OPERATION_KINDS
from outlast.core.transitions import ATTEMPT, OPERATION, TASK
from outlast.testing.store_suite.scene import Backdoor, Dump, Refused, Scene, changed
from outlast.testing.store_suite.submitting import BAD_KEYS


def literal(value: object) -> str:
    """Write a value as an SQL literal that both databases read alike."""
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(int(value))
    return "'" + str(value).replace("'", "''") + "'"


def where(row: dict[str, Any], *columns: str) -> str:
    """Name a row by these columns."""
    return " and ".join(f"{column} = {literal(row[column])}" for column in columns)


async def refuses(scene: Scene, backdoor: Backdoor, *statements: str) -> None:
    """Demand that each statement is refused with a text, and that none has changed anything."""
    before: Dump = await scene.store.dump()
    for statement in statements:
        async with Refused(statement):
            await backdoor.run(statement)
    assert changed(before, await scene.store.dump(), ignoring=()) == {}


class TestTaskGuards:
    """Heads."""

    @pytest.mark.parametrize("state", sorted(TASK.final))
    async def test_a_final_state_stands_within_its_round(
        self, scene: Scene, backdoor: Backdoor, state: str
    ) -> None:
        claimed = await scene.running()
        end = scene.success() if state == "succeeded" else scene.failure(attempt_end=state, task_state=state)
        await scene.write(claimed, end)
        [head] = await scene.rows("tasks", claimed)
        here = where(head, "tenant", "id")
        others = [other for other in TASK.states if other != state]
        await refuses(
            scene,
            backdoor,
            *(
                f"update tasks set state = '{other}',"
                f" reason = {literal('operator' if other == 'waiting' else None)} where {here}"
                for other in others
            ),
            *(
                f"update tasks set state = '{other}', round = round + 1,"
                f" reason = {literal('operator' if other == 'waiting' else None)} where {here}"
                for other in others
                if other != "queued"
            ),
            f"update tasks set state = 'queued', round = round + 2 where {here}",
        )
        await backdoor.run(f"update tasks set state = 'queued', round = round + 1 where {here}")
        task = await scene.task(claimed)
        # What the round before came to is history, and not what the task has come to.
        assert (task.state, task.result, task.error, task.ended_at) == ("queued", None, None, None)

    async def test_numbers_never_fall(self, scene: Scene, backdoor: Backdoor) -> None:
        record = await scene.submit()
        await scene.write(await scene.claim_task(record), scene.success())
        [head] = await scene.rows("tasks", record)
        here = where(head, "tenant", "id")
        await backdoor.run(f"update tasks set state = 'queued', round = round + 1 where {here}")
        await refuses(
            scene,
            backdoor,
            *(
                f"update tasks set {column} = {column} - 1 where {here}"
                for column in ("epoch", "round", "last_event")
            ),
        )

    async def test_states_and_reasons_are_those_of_the_tables(self, scene: Scene, backdoor: Backdoor) -> None:
        record = await scene.submit()
        [head] = await scene.rows("tasks", record)
        here = where(head, "tenant", "id")
        await refuses(
            scene,
            backdoor,
            f"update tasks set state = 'paused' where {here}",
            f"update tasks set state = '' where {here}",
            f"update tasks set state = null where {here}",
            f"update tasks set state = 'waiting', reason = 'boredom' where {here}",
        )

    async def test_a_task_has_one_head(self, scene: Scene, backdoor: Backdoor) -> None:
        record = await scene.submit()
        [head] = await scene.rows("tasks", record)
        columns = ", ".join(head)
        await refuses(
            scene,
            backdoor,
            f"insert into tasks ({columns}) values ({', '.join(literal(value) for value in head.values())})",
        )


class TestInputGuards:
    """Idempotency keys, by whatever entrance."""

    def insert(self, row: dict[str, Any], task: str, key: str | None) -> str:
        """Write an insert of an input row."""
        values = {**row, "task": task, "key": key}
        written = ", ".join(
            str(bool(value)).lower() if name in ("announce", "detached") else literal(value)
            for name, value in values.items()
        )
        return f"insert into inputs ({', '.join(values)}) values ({written})"

    @pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS.keys())
    async def test_a_key_that_breaks_the_rules_is_refused(
        self, scene: Scene, backdoor: Backdoor, key: str
    ) -> None:
        [row] = await scene.rows("inputs", await scene.submit())
        await refuses(scene, backdoor, self.insert(row, "task_other", key))

    async def test_a_key_of_255_characters_is_not(self, scene: Scene, backdoor: Backdoor) -> None:
        [row] = await scene.rows("inputs", await scene.submit())
        await backdoor.run(self.insert(row, "task_other", "é" * 255))

    async def test_one_task_a_tenant_and_key(self, scene: Scene, backdoor: Backdoor) -> None:
        [row] = await scene.rows("inputs", await scene.submit())
        await refuses(
            scene,
            backdoor,
            self.insert(row, "task_other", row["key"]),
            self.insert(row, row["task"], "key-other"),
        )
        await backdoor.run(self.insert({**row, "tenant": "tenant-other"}, "task_other", row["key"]))
        await backdoor.run(self.insert(row, "task_one", None))
        await backdoor.run(self.insert(row, "task_two", None))


class TestOperationGuards:
    """Recorded outcomes."""

    @pytest.mark.parametrize("state", ["succeeded", "failed"])
    async def test_a_recorded_outcome_does_not_change(
        self, scene: Scene, backdoor: Backdoor, state: str
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)  # type: ignore[arg-type]
        [row] = await scene.rows("operations", claimed)
        assert row["key"] == key
        here = where(row, "tenant", "task", "key")
        allowed = {"unknown", "planned"} if state == "failed" else {"unknown"}
        await refuses(
            scene,
            backdoor,
            f"update operations set result = 'other' where {here}",
            f"update operations set error = 'other' where {here}",
            # Evidence against it takes nothing of the record away.
            f"update operations set state = 'unknown', result = 'other' where {here}",
            f"update operations set state = 'unknown', error = 'other' where {here}",
            *(
                f"update operations set state = '{other}' where {here}"
                for other in OPERATION.states
                if other not in allowed | {state}
            ),
        )

    async def test_late_evidence_may_contradict_it(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        for state in ("succeeded", "failed"):
            key = await scene.called(claimed, state)
            await backdoor.run(f"update operations set state = 'unknown' where key = {literal(key)}")
            assert (await scene.operation(claimed, key)).state == "unknown"

    async def test_a_failed_one_may_be_opened_again(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "failed")
        await backdoor.run(
            f"update operations set state = 'planned', error = null where key = {literal(key)}"
        )
        assert (await scene.operation(claimed, key)).state == "planned"

    async def test_states_kinds_and_effects_are_those_of_the_tables(
        self, scene: Scene, backdoor: Backdoor
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        for column, values in (("state", OPERATION.states), ("kind", OPERATION_KINDS), ("effect", EFFECTS)):
            assert "job" not in values
            await refuses(
                scene,
                backdoor,
                f"update operations set {column} = 'job' where key = {literal(key)}",
                f"update operations set {column} = '' where key = {literal(key)}",
            )
        for kind in OPERATION_KINDS:
            await backdoor.run(f"update operations set kind = '{kind}' where key = {literal(key)}")
        for effect in EFFECTS:
            await backdoor.run(f"update operations set effect = '{effect}' where key = {literal(key)}")
        for state in ("planned", "approved", "unknown", "running"):
            await backdoor.run(f"update operations set state = '{state}' where key = {literal(key)}")


class TestHistoryGuards:
    """Tables that are only ever added to."""

    async def history(self, scene: Scene) -> dict[str, dict[str, Any]]:
        """Answer a row of each."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        await scene.write(claimed, scene.success())
        return {
            table: (await scene.rows(table, claimed))[0]
            for table in ("events", "evidence", "attempts", "results")
        }

    async def test_history_is_not_changed(self, scene: Scene, backdoor: Backdoor) -> None:
        for table, row in (await self.history(scene)).items():
            here = where(row, "tenant", "task")
            columns = {
                "events": "data",
                "evidence": "data",
                "attempts": "worker",
                "results": "result",
            }
            await refuses(
                scene,
                backdoor,
                f"update {table} set {columns[table]} = 'other' where {here}",
                f"update {table} set tenant = 'tenant-other' where {here}",
            )

    async def test_history_is_not_taken_away(self, scene: Scene, backdoor: Backdoor) -> None:
        if backdoor.dialect == "postgres":
            pytest.skip("retention deletes old history there; who may is a matter of roles")
        for table, row in (await self.history(scene)).items():
            await refuses(scene, backdoor, f"delete from {table} where {where(row, 'tenant', 'task')}")

    async def test_ends_are_those_of_the_tables(self, scene: Scene, backdoor: Backdoor) -> None:
        history = await self.history(scene)
        for table, column, values in (
            ("attempts", '"end"', [state for state in ATTEMPT.states if state != "running"]),
            ("results", "state", sorted(TASK.final)),
        ):
            row = dict(history[table])
            counter = "epoch" if table == "attempts" else "round"
            names = ", ".join('"end"' if name == "end" else name for name in row)
            for wrong in ("running", "done", ""):
                assert wrong not in values
                values_of = {**row, counter: 977, column.strip('"'): wrong}
                await refuses(
                    scene,
                    backdoor,
                    f"insert into {table} ({names})"
                    f" values ({', '.join(literal(value) for value in values_of.values())})",
                )
            for place, right in enumerate(values):
                values_of = {**row, counter: 500 + place, column.strip('"'): right}
                await backdoor.run(
                    f"insert into {table} ({names})"
                    f" values ({', '.join(literal(value) for value in values_of.values())})"
                )

    async def test_an_event_number_is_used_once(self, scene: Scene, backdoor: Backdoor) -> None:
        row = (await self.history(scene))["events"]
        await refuses(
            scene,
            backdoor,
            f"insert into events ({', '.join(row)})"
            f" values ({', '.join(literal(value) for value in {**row, 'data': '[]'}.values())})",
        )
