"""The machine: one random program of verbs, carried out by three stores and by the model, which answer alike.

What is done is made by the programs of ``tests.contract``. In the machine their dice are Hypothesis's, so
that what fails is made small; ``play`` throws its own, so that a seed is the same program whatever else
changes. Verbs that the model does not know are not done here.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncpg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.contract.model.kept import seen_in
from tests.contract.model.model import Model
from tests.contract.model.playing import ModelledProgram
from tests.contract.programs import comparable
from tests.stores import MEMORY, new_store

from outlast.store.contract import Store

WEIGHTS = {
    "submit": 4, "spawn": 3, "claim": 6, "submit_and_claim": 2, "flush": 24, "settle": 4, "contradict": 1,
    "sweep": 3, "renew": 2,
    "retire": 1, "reconcile": 1, "wait": 3, "post": 4, "cancel": 3, "news": 2, "deliver": 4, "decide": 7,
    "rule": 1, "retry": 3, "fork": 3, "adopt": 2, "wake": 2, "accept": 3, "switch": 3, "happen": 3,
    "schedule": 2, "fire": 3, "publish": 2,
}  # fmt: skip
"""What may be done, and how often."""

EVERY = 10
"""After so many verbs the rows are compared as well."""


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

    async def redefine(self, function: str, old: str, new: str) -> None:
        """Change a function of PostgreSQL, for as long as its database lives; it has to say what is old."""
        text = await self._connection.fetchval(
            "select pg_get_functiondef(oid) from pg_proc"
            " where pronamespace = 'outlast'::regnamespace and proname = $1",
            function,
        )
        assert old in text, f"{function} does not say {old!r}"
        await self._connection.execute(text.replace(old, new))

    def end(self) -> None:
        """Close everything."""
        if self._folder is not None:
            self.run(self._postgres.close())
            self.run(self._connection.close())
        self._runner.close()


class Playing:
    """A program under way on three stores and a model; bench: what it runs on."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stores = bench.run(bench.stores())
        self._model = Model()
        now = bench.run(self._stores[-1].health()).now
        self._program = ModelledProgram(self._stores, self._model, now)

    def do(self, what: str, dice: Any) -> None:
        """Do one thing everywhere."""
        self._program.dice = self._program.clock = dice
        self._bench.run(getattr(self._program, what)())

    def begin(self, dice: Any) -> None:
        """Begin with a worker that has something to do."""
        for what in ("renew", "submit", "submit", "claim", "flush"):
            self.do(what, dice)

    def look(self) -> None:
        """Compare the database in memory now and then: the answers are compared as they come."""
        if len(self._program.log) % EVERY == 0:
            self._compare(self._bench.run(self._stores[0].dump()))

    def finish(self) -> None:
        """Compare all that there is, and close what was opened."""
        bench = self._bench
        dumps = [bench.run(store.dump()) for store in self._stores]
        self.close()
        bench.seen |= self._program.seen
        self._compare(dumps[0])
        first, *others = (comparable(dump) for dump in dumps)
        for other in others:
            for table in first:
                assert first[table] == other[table], f"{table} is not the same\n{self._program.told()}"

    def close(self) -> None:
        """Close what was opened."""
        for store in self._stores[::2]:
            self._bench.run(store.close())

    def _compare(self, dump: Any) -> None:
        """Compare what a store holds with what the model says."""
        there, expected = seen_in(dump), self._model.seen()
        for part, wanted in expected.items():
            for name in there[part].keys() | wanted.keys():
                assert there[part].get(name) == wanted.get(name), (
                    f"{part} {name}: {there[part].get(name)}\n is not what the model says:\n"
                    f"{wanted.get(name)}\n{self._program.told()}"
                )


def play(bench: Bench, seed: int, weights: dict[str, int], steps: int) -> None:
    """Carry out the program of a seed, the same one each time; weights: what is done, and how often."""
    dice = random.Random(seed)
    playing = Playing(bench)
    try:
        playing.begin(dice)
        for what in dice.choices(list(weights), list(weights.values()), k=steps):
            playing.do(what, dice)
            playing.look()
    except BaseException:
        playing.close()
        raise
    playing.finish()


def machine_on(bench: Bench) -> type[RuleBasedStateMachine]:
    """Make the machine that carries out Hypothesis's programs on a bench."""

    class Machine(RuleBasedStateMachine):
        """Three stores and a model."""

        def __init__(self) -> None:
            super().__init__()
            self.playing = Playing(bench)

        @initialize(dice=st.randoms(use_true_random=True))
        def begin(self, dice: Any) -> None:
            """Begin with a worker that has something to do."""
            self.playing.begin(dice)

        @rule(
            what=st.sampled_from([name for name, often in WEIGHTS.items() for _ in range(often)]),
            dice=st.randoms(use_true_random=True),
        )
        def act(self, what: str, dice: Any) -> None:
            """Do something."""
            self.playing.do(what, dice)

        @invariant()
        def what_there_is_is_what_the_model_says(self) -> None:
            """Compare now and then."""
            self.playing.look()

        def teardown(self) -> None:
            """Compare all that there is, and close what was opened."""
            self.playing.finish()

    return Machine
