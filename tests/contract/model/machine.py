"""The machine: one random program of verbs, carried out by three stores and by the model, which answer alike.

What is done is made by the programs of ``tests.contract``; their dice are Hypothesis's, so that what fails is
made small. Verbs that the model does not know are not done here.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import asyncpg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.contract.change_programs import ChangeProgram
from tests.contract.model.kept import seen_in
from tests.contract.model.model import Model
from tests.contract.people_programs import PeopleProgram
from tests.contract.programs import comparable
from tests.stores import MEMORY, new_store

from outlast.store.contract import Store
from outlast.store.entries import AdoptIssued, AppendEvents, AttachSession, EndAttempt, Entry
from outlast.store.records import Claimed

WEIGHTS = {
    "submit": 4, "spawn": 3, "claim": 7, "flush": 24, "settle": 4, "contradict": 1, "sweep": 3, "renew": 2,
    "retire": 1, "reconcile": 1, "wait": 3, "post": 4, "cancel": 3, "news": 2, "deliver": 3, "decide": 7,
    "rule": 1, "retry": 3, "fork": 3, "adopt": 2, "wake": 2,
}  # fmt: skip
"""What may be done, and how often."""

EVERY = 10
"""After so many verbs the rows are compared as well."""


class Answers:
    """The model, asked as a store is."""

    def __init__(self, model: Model, began: int) -> None:
        self._model = model
        # A store reads its own clock when it accepts, which is a little later than the program's beginning.
        self._began = began

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        answer = getattr(self._model, verb, None)

        async def ask(*arguments: Any, now: int | None = None, **named: Any) -> Any:
            if answer is None:
                return NotImplemented
            if verb in ("settle", "decide", "renew", "claim", "flush", "retry", "sweep"):
                named["now"] = now
            if verb == "submit":
                named["now"] = self._began
            if verb in ("deliver", "wake"):
                arguments = arguments[:1] if verb == "wake" else ()
            return answer(*arguments, **named)

        return ask


class ModelledProgram(ChangeProgram, PeopleProgram):
    """What people and workers do, as far as the model knows it."""

    def __init__(self, stores: tuple[Store, ...], model: Model, now: int) -> None:
        super().__init__(0, stores, now)
        self.model = Answers(model, now)

    async def on_both(self, what: str, act: Callable[[Any], Any]) -> Any:
        """Do the same on every store and in the model, and compare."""
        answer = await super().on_both(what, act)
        expected = await act(self.model)
        if expected is not NotImplemented:
            assert reduced(answer) == reduced(expected), (
                f"{reduced(answer)}\n is not what the model says:\n{reduced(expected)}\n{self.told()}"
            )
        return answer

    def entry(self, claimed: Claimed, rows: list[Any]) -> Entry:
        made = super().entry(claimed, rows)
        if isinstance(made, AdoptIssued | AttachSession):
            return AppendEvents(events=(self.scene.event(),))
        return replace(made, judged=None) if isinstance(made, EndAttempt) else made


def reduced(answer: Any) -> Any:
    """Take from an answer what the model does not know, and the order where the contract gives none."""
    if isinstance(answer, list | tuple):
        return [reduced(one) for one in answer]
    name = type(answer).__name__
    if name == "ClaimReply":
        return answer.refused, sorted(repr(replace(one, deadline_at=None)) for one in answer.claims)
    if name == "Decided":
        return answer.kind
    if name == "Flushed":
        return answer.kind, answer.refusals, answer.state if answer.kind == "accepted" else None
    if name in ("Swept", "Delivered"):
        parts = {part: value for part, value in asdict(answer).items() if isinstance(value, list | tuple)}
        return {part: sorted(map(str, value)) for part, value in parts.items()}
    return answer


class Bench:
    """What machines run on: a loop, and databases without rows for each program.

    url: of a migrated PostgreSQL database, which is emptied each time. folder: for the files. Without them
    there is only a database in memory.
    """

    def __init__(self, url: str = "", folder: Path | None = None) -> None:
        self._runner = asyncio.Runner()
        self._files = 0
        self._folder = folder
        self._url = url
        self.seen: set[str] = set()
        if folder is not None:
            self.run(self._prepare(folder))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a piece of work to its end."""
        return self._runner.run(work)

    async def _prepare(self, folder: Path) -> None:
        made = new_store(f"sqlite:///{folder / 'template'}")
        await made.migrate()
        await made.close()
        self._postgres: Any = new_store(self._url)
        await self._postgres.open()
        self._connection = await asyncpg.connect(self._url)
        tables = await self._connection.fetch(
            "select tablename as name from pg_tables"
            " where schemaname = 'outlast' and tablename <> 'migrations'"
        )
        sequences = await self._connection.fetch(
            "select 'outlast.' || sequencename as name from pg_sequences where schemaname = 'outlast'"
        )
        self._emptying = ";".join(
            [
                # Past the triggers: what is only ever added to has to go.
                "set session_replication_role = replica",
                *(f"delete from outlast.{row['name']}" for row in tables),
                *(f"select setval('{row['name']}', 1, false)" for row in sequences),
            ]
        )

    async def stores(self) -> tuple[Store, ...]:
        """Answer stores without rows: in memory, on PostgreSQL, in a file."""
        memory = new_store(MEMORY)
        await memory.migrate()
        await memory.open()
        if self._folder is None:
            return (memory,)
        await self._connection.execute(self._emptying)
        self._postgres._submitting._lanes.clear()
        self._files += 1
        shutil.copyfile(self._folder / "template", self._folder / str(self._files))
        file = new_store(f"sqlite:///{self._folder / str(self._files)}")
        await file.open()
        return memory, self._postgres, file

    def end(self) -> None:
        """Close everything."""
        if self._folder is not None:
            self.run(self._postgres.close())
            self.run(self._connection.close())
        self._runner.close()


def machine_on(bench: Bench) -> type[RuleBasedStateMachine]:
    """Make the machine that runs on a bench."""

    class Machine(RuleBasedStateMachine):
        """Three stores and a model."""

        def __init__(self) -> None:
            super().__init__()
            self.stores = bench.run(bench.stores())
            self.model = Model()
            now = bench.run(self.stores[-1].health()).now
            self.program = ModelledProgram(self.stores, self.model, now)

        def carry_out(self, what: str, dice: Any) -> None:
            """Do one thing everywhere."""
            self.program.dice = dice
            bench.run(getattr(self.program, what)())

        @initialize(dice=st.randoms(use_true_random=True))
        def begin(self, dice: Any) -> None:
            """Begin with a worker that has something to do."""
            for what in ("renew", "submit", "submit", "claim", "flush"):
                self.carry_out(what, dice)

        @rule(
            what=st.sampled_from([name for name, often in WEIGHTS.items() for _ in range(often)]),
            dice=st.randoms(use_true_random=True),
        )
        def act(self, what: str, dice: Any) -> None:
            """Do something."""
            self.carry_out(what, dice)

        @invariant()
        def what_there_is_is_what_the_model_says(self) -> None:
            """Compare the database in memory now and then: the answers are compared as they come."""
            if len(self.program.log) % EVERY == 0:
                self.compare(bench.run(self.stores[0].dump()))

        def compare(self, dump: Any) -> None:
            """Compare what a store holds with what the model says."""
            there, expected = seen_in(dump), self.model.seen()
            for part, wanted in expected.items():
                for name in there[part].keys() | wanted.keys():
                    assert there[part].get(name) == wanted.get(name), (
                        f"{part} {name}: {there[part].get(name)}\n is not what the model says:\n"
                        f"{wanted.get(name)}\n{self.program.told()}"
                    )

        def teardown(self) -> None:
            """Compare all that there is, and close what was opened."""
            dumps = [bench.run(store.dump()) for store in self.stores]
            for store in self.stores[::2]:
                bench.run(store.close())
            bench.seen |= self.program.seen
            self.compare(dumps[0])
            first, *others = (comparable(dump) for dump in dumps)
            for other in others:
                for table in first:
                    assert first[table] == other[table], f"{table} is not the same\n{self.program.told()}"

    return Machine
