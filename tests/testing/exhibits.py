"""A dump to be shown to the checkers, whole or broken."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.stores import MEMORY, new_store

from outlast.store.reconciling import EVERY_TENANT, Pause, Postponement
from outlast.testing.checkers import Call, check_all
from outlast.testing.store_suite.effects import lock, once
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene


@dataclass
class Exhibit:
    """A dump with one task of each fate, and all that goes with it."""

    dump: dict[str, list[dict[str, Any]]]
    tasks: dict[str, str]
    accepted: list[tuple[str, str]]
    calls: list[Call]
    earlier: dict[str, list[dict[str, Any]]] | None = None
    published: list[tuple[str, str, str]] | None = None
    quiet: bool = False
    tools: list[str] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def rows(self, table: str, fate: str) -> list[dict[str, Any]]:
        """Answer the rows of one task."""
        name = "id" if table == "tasks" else "task"
        return [row for row in self.dump[table] if row[name] == self.tasks[fate]]

    def call(self, key: str) -> dict[str, Any]:
        """Answer the row of one call in the ledger."""
        [row] = [row for row in self.dump["operations"] if row["key"] == self.keys[key]]
        return row

    def check(self) -> list[Any]:
        return check_all(
            self.dump,
            accepted=self.accepted,
            recorder=self.calls,
            tools=self.tools,
            published=self.published,
            earlier=self.earlier,
            quiet=self.quiet,
        )


Break = Callable[[Exhibit], object]
Broken = list[tuple[str, str, Break]]
Sound = list[tuple[str, Break]]


def into(broken: Broken) -> Callable[[str, str], Callable[[Break], Break]]:
    """Make the decorator that registers a way to break a dump, the checker that must see it, and words of
    what it says."""

    def breaks(checker: str, text: str) -> Callable[[Break], Break]:
        def register(how: Break) -> Break:
            broken.append((checker, text, how))
            return how

        return register

    return breaks


def shown(broken: Broken) -> Callable[[Exhibit, str, str, Break], Coroutine[Any, Any, None]]:
    """Make the test that breaks the module's own exhibit in every way, and demands that each is seen."""
    names = [how.__name__.strip("_") for _, _, how in broken]

    @pytest.mark.parametrize(("checker", "text", "how"), broken, ids=names)
    async def is_seen(exhibit: Exhibit, checker: str, text: str, how: Break) -> None:
        how(exhibit)
        found = seen_by(exhibit, checker)
        assert any(text in one for one in found), found

    return is_seen


def beside(sound: Sound) -> Callable[[str], Callable[[Break], Break]]:
    """Make the decorator that registers a way to change a dump, and the checker that has nothing to say
    to it: what looks like a violation, and is none."""

    def spares(checker: str) -> Callable[[Break], Break]:
        def register(how: Break) -> Break:
            sound.append((checker, how))
            return how

        return register

    return spares


def unseen(sound: Sound) -> Callable[[Exhibit, str, Break], Coroutine[Any, Any, None]]:
    """Make the test that changes the module's own exhibit in every such way, and demands silence."""

    @pytest.mark.parametrize(("checker", "how"), sound, ids=[how.__name__.strip("_") for _, how in sound])
    async def is_spared(exhibit: Exhibit, checker: str, how: Break) -> None:
        how(exhibit)
        found = seen_by(exhibit, checker)
        assert found == [], found

    return is_spared


def turn_round(exhibit: Exhibit) -> None:
    """Put the rows of every table into another order: it says nothing, the numbers in the rows do."""
    exhibit.dump = {table: rows[::-1] for table, rows in exhibit.dump.items()}


def empty_each(exhibit: Exhibit) -> None:
    """Let the checkers look at the dump without each of its tables in turn. They may say what they like,
    and none may fall over it: the others would not be heard."""
    whole = exhibit.dump
    for table in whole:
        exhibit.dump = {**whole, table: []}
        exhibit.check()
    exhibit.dump = whole


@asynccontextmanager
async def staged() -> AsyncIterator[Scene]:
    """Open a scene on a database in memory."""
    store = new_store(MEMORY)
    await store.migrate()
    await store.open()
    try:
        yield Scene(store=store, now=(await store.health()).now)
    finally:
        await store.close()


def seen_by(exhibit: Exhibit, checker: str) -> list[str]:
    """Answer what one checker says."""
    return [violation.text for violation in exhibit.check() if violation.promise == checker]


@asynccontextmanager
async def fates() -> AsyncIterator[Exhibit]:
    """Make a dump with tasks of every fate, and an earlier one, and what the other side has logged."""
    async with staged() as scene:
        made: dict[str, Any] = {}
        made["queued"] = await scene.submit(deadline_us=HOUR)
        made["timer"] = await scene.submit(run_at=scene.now + HOUR)
        made["running"] = await scene.running()
        made["succeeded"] = await scene.running(announce=True)
        made["failed"] = await scene.running()
        made["waiting"] = await scene.running()
        keys = {}
        for fate in ("running", "succeeded", "failed", "waiting"):
            await scene.write(made[fate], scene.step(events=(scene.event(),)))
        keys["done"] = await scene.called(made["succeeded"], "succeeded")
        keys["declined"] = await scene.called(made["running"], "failed")
        keys["lost"] = await scene.called(made["waiting"], "unknown")
        keys["open"] = await scene.called(made["failed"], business=lock("invoice-1"))
        keys["sending"] = await scene.called(made["running"], business=lock("invoice-2"))
        keys["once"] = await scene.called(made["running"], "succeeded", business=once("invoice-3"))
        settled = await scene.called(made["running"], "unknown")
        await scene.store.settle([scene.settlement(made["running"], settled)], now=scene.now)
        keys["settled"] = settled
        await scene.store.postpone(
            [
                Postponement(
                    tenant=scene.tenant,
                    task=made["waiting"].task,
                    key=keys["lost"],
                    turn=2,
                    ask_in_us=None,
                    unusable=True,
                    why="asked in vain",
                )
            ],
            now=scene.now,
        )
        for tenant in (scene.tenant, EVERY_TENANT):
            switch = Pause(tenant=tenant, scope="tool:x", reason="too many", by="person:ann")
            await scene.store.pause(switch, now=scene.now)
        earlier = await scene.store.dump()
        scene.pass_time(SECOND)
        await scene.write(made["succeeded"], scene.success())
        await scene.write(made["failed"], scene.failure())
        await scene.write(made["waiting"], scene.suspension("reconciliation"))
        tasks = {fate: one.task for fate, one in made.items()}
        calls = [
            Call(key=f"{tasks['succeeded']}:{keys['done']}", effect_id="e1", fingerprint="f1", method="POST"),
            Call(key=f"{tasks['running']}:{keys['settled']}", effect_id="e2"),
            Call(key=f"{tasks['running']}:{keys['declined']}"),
            Call(key=f"{tasks['waiting']}:{keys['lost']}", effect_id="e3"),
            Call(key=f"{tasks['running']}:{keys['once']}", effect_id="e4"),
        ]
        yield Exhibit(
            dump=copy.deepcopy(await scene.store.dump()),
            tasks=tasks,
            accepted=[(scene.tenant, task) for task in tasks.values()],
            calls=calls,
            earlier=earlier,
            keys=keys,
        )
