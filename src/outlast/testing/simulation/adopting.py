"""Code that changes under its version, and people who move what stopped of it to a version that fits.

Purpose: a task never goes on under code that its journal does not fit; it is adopted only as it was seen, by
a version that makes nothing once more, and then goes on under that version.

Identity: one agent in four versions. Version 1 is deployed with other arguments under way, worker by worker,
and may be taken back; 2 asks for what it asked first, 3 for what it asks then, 4 makes the first call under
another name.

State: what was adopted, with what each task had done by then, seen at the very moment.

Failure by failure: people try it at the wrong moment as well: with a task that runs, has ended, or goes on
while they look, and with a version that does not fit. Once the world has healed they move whatever stopped.

Not covered: workers that serve only some of the versions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from outlast.app import Outlast
from outlast.core import values
from outlast.core.transitions import TASK
from outlast.engine.context import TaskContext
from outlast.errors import OutlastError, StoreUnavailable
from outlast.store.changing import Adopt, Adopted
from outlast.store.records import TaskRef
from outlast.store.rows import OperationFilter, TaskFilter, TaskRow
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import APP, check_invoice, create_ticket, open_app, put_ticket
from outlast.testing.simulation.loop import current_node
from outlast.testing.simulation.people import People
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World, current_world

__all__ = ["Adopting"]

SHAPE: Final = "changed"
MORE: Final = 1000
"""By how much the amount differs once the code has changed."""
NAMES: Final = {"2": ("first", 0), "3": ("first", MORE), "4": ("renamed", 0)}
"""Under which key each version makes the first call, and what it adds to the amount."""
WRONG: Final = 0.3
"""How often people try what need not be tried."""


async def _changed(task: TaskContext, invoice: str, amount: int, key: str, more: int) -> dict[str, Any]:
    checked = await task.step(check_invoice, invoice)
    first = await task.call(create_ticket, invoice=checked, amount=amount + more, key=key)
    await task.sleep(1.5)
    second = await task.call(put_ticket, invoice=f"{checked}/2", amount=amount)
    return {"tickets": [first["ticket"], second["ticket"]], "asked": amount + more}


@APP.agent(name=SHAPE, version="1")
async def first_version(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Make two tickets, as the code has it that this worker loaded."""
    more = MORE if current_world().code() else 0
    return await _changed(task, invoice, amount, "first", more)


@APP.agent(name=SHAPE, version="2")
async def second_version(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do as the first code of version 1, and one thing more."""
    result = await _changed(task, invoice, amount, *NAMES["2"])
    await task.step(check_invoice, "done")
    return result


@APP.agent(name=SHAPE, version="3")
async def third_version(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do as the second code of version 1."""
    return await _changed(task, invoice, amount, *NAMES["3"])


@APP.agent(name=SHAPE, version="4")
async def fourth_version(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do as the first code, under another name."""
    return await _changed(task, invoice, amount, *NAMES["4"])


class _Watched:
    """The world's database; looks at each adoption with other eyes."""

    def __init__(self, world: World) -> None:
        self._world, self._store = world, world.database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def adopt(self, requests: Sequence[Adopt], *, now: int | None = None) -> list[Adopted]:
        before = [await self._row(one) for one in requests]
        verdicts = await self._store.adopt(requests, now=now)
        for one, row, verdict in zip(requests, before, verdicts, strict=True):
            if verdict.kind == "adopted":
                await self._judge(one, row)
        return verdicts

    async def _row(self, one: Adopt) -> Any:
        rows = await self._store.read_tasks([TaskRef(tenant=one.tenant, task=one.task)])
        return rows[0] if rows else None

    async def _judge(self, one: Adopt, row: Any) -> None:
        seen, said = (one.seen_version, one.seen_epoch, one.seen_event), f"{one.task} was adopted by"
        self._world.note(f"{said} version {one.version}, from {one.seen_version}, while {row.state}")
        if row.state == "running" or row.state in TASK.final:
            self._world.accuse(f"{said} version {one.version} while it was {row.state}")
        if (row.version, row.epoch, row.last_event) != seen:
            self._world.accuse(f"{said} version {one.version} as nobody had seen it: {row}, seen {seen}")
        key, more = NAMES[one.version]
        amount = values.decode(row.input)["amount"] + more
        query = OperationFilter(tenant=one.tenant, task=one.task)
        for held in await self._store.list_operations(query):
            if held.key not in ("first", "renamed") or held.attempt == 0:
                continue
            asked = values.decode(held.arguments or "{}")
            if held.key == key and asked["amount"] != amount:
                self._world.accuse(
                    f"{said} version {one.version}, which asks {held.key} for {amount}: {asked}"
                )
            if held.key != key and held.state != "failed":
                self._world.accuse(f"{said} version {one.version}, which makes {held.key} once more")


class Adopting:
    """Those who have such tasks in one world, and move them; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults, people: People) -> None:
        self._world, self._count, self._people = world, faults.adopts, people
        self._fate = world.random("adopting")
        self._healed = self._done = False
        self._adopters: list[asyncio.Task[Any]] = []
        self._told: list[tuple[str, str]] = []
        """Adoptions of which somebody was told."""
        self._changes: dict[int, tuple[float, float]] = {}
        world.database = _Watched(world)
        world.code = self._changed

    def _changed(self) -> bool:
        """Whether the node whose code runs has the changed code by now."""
        fate, now = self._fate, self._world.loop.time()
        node = current_node().index
        if node not in self._changes:
            begin = now + fate.uniform(0.0, 3.0)
            back = fate.uniform(1.0, 5.0) if fate.random() < 0.3 else 1e9
            self._changes[node] = (begin, begin + back)
        begin, end = self._changes[node]
        return begin <= now < end

    # -- people ---------------------------------------------------------------------------------------------

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let people submit tasks and move them; answer those who come to an end."""
        for number in (1, 2):
            self._adopters.append(self._begin(f"adopter{number}", self._adopt, number))
        return [
            self._begin(f"submitter{number}", self._submit, number) for number in range(1, self._count + 1)
        ]

    def _begin(self, name: str, work: Any, number: int) -> asyncio.Task[Any]:
        member = self._world.add(name)
        task: asyncio.Task[Any] = self._world.start(member.node, work(member, number), name=name)
        return task

    async def _submit(self, member: Member, number: int) -> None:
        await asyncio.sleep(self._fate.uniform(0.0, 3.0))
        app = await open_app(member)
        given = {"invoice": f"changed-{number}", "amount": 100 + self._fate.randrange(20)}
        while True:
            try:
                handle = await app.submit(SHAPE, given, key=f"changed-{number}", version="1")
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self._people.took(handle.id, SHAPE)
            return

    async def _adopt(self, member: Member, number: int) -> None:
        """Move what has stopped to a version that fits, and try it with others."""
        app, query = await open_app(member), TaskFilter(tenant=DEFAULT_TENANT, agent=SHAPE, limit=100)
        while not self._done:
            await asyncio.sleep(self._fate.uniform(0.3, 2.0))
            try:
                for row in await member.store.list_tasks(query):
                    stopped = (row.state, row.reason) == ("waiting", "operator")
                    if stopped or (not self._healed and self._fate.random() < WRONG):
                        await self._move(app, row, f"person:adopter{number}")
            except StoreUnavailable:
                continue

    async def _move(self, app: Outlast, row: TaskRow, who: str) -> None:
        versions = sorted(NAMES)
        if row.forked_from is not None:
            # What was made behind a fork is known under the names that it had, and no rehearsal says so.
            versions = [one for one in versions if (one == "4") == (row.version == "4")]
        for version in self._fate.sample(versions, k=len(versions)):
            try:
                found = await app.versions.adopt(row.task, version=version, reason="it fits", by=who)
            except StoreUnavailable:
                raise
            except OutlastError as error:
                self._world.note(f"{who} was refused: {error.code}")
                return
            if found.adopted:
                self._told.append((row.task, version))
                return

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """From now on nobody meddles with what goes on."""
        self._healed = True

    async def rest(self) -> None:
        """Nothing goes on here when every task has ended."""

    def leave(self) -> None:
        """Let those who move tasks go, and say who could not do what they had to."""
        self._done = True
        self._world.accuse_failed(self._adopters)

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Look under which version each attempt ran, and whether what was answered is what was asked for."""
        adopted: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for row in dump["events"]:
            if row["kind"] == "task.adopted":
                adopted[row["task"]].append((row["at"], values.decode(row["data"])["version"]))
        for task, version in self._told:
            if version not in [to for _, to in adopted[task]]:
                yield f"{task}: its adoption by version {version} is not on record"
        for row in dump["attempts"]:
            since = [to for at, to in adopted[row["task"]] if at <= row["started_at"]]
            if since and row["version"] != since[-1]:
                yield f"{row['task']}: ran under version {row['version']} when {since[-1]} had adopted it"
        asked = {
            row["task"]: values.decode(row["arguments"])["amount"]
            for row in dump["operations"]
            if row["key"] in ("first", "renamed") and row["state"] == "succeeded"
        }
        agents = {row["task"]: row["agent"] for row in dump["inputs"]}
        for row in dump["results"]:
            if agents.get(row["task"]) == SHAPE and row["state"] == "succeeded":
                said = values.decode(row["result"])["asked"]
                if said != asked.get(row["task"]):
                    yield f"{row['task']}: its code asked for {said}, and {asked.get(row['task'])} was made"
