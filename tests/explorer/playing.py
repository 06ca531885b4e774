"""A run: acts that players carry out, step by step, as somebody chooses; and what was touched in each
step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tests.explorer.footprints import CLOCK, Counts, met_rows
from tests.explorer.outcomes import Outcome, comparable, plain
from tests.explorer.reducing import Event
from tests.explorer.stage import Stage

from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.testing.checkers import Dump

PATIENCE = 20.0
"""How long one step may take, in seconds, before the run has failed."""

LOOKS, LOOK_SECONDS = 3, 0.004
"""After so many looks for a lock that somebody waits for, there is a pause between them."""

Verb = Callable[[Store, int], Awaitable[Any]]
"""Carries a verb out; the number counts how often, from 1."""


@dataclass(frozen=True)
class Act:
    """One player's part.

    verb: of the contract, ``time`` for the clock. play: None for the clock, which ``us`` moves. loose:
    whether it may count from before its commit on, or from after it. views: statements that it makes beside
    its verb. own: of what it touches, that of which it has rows, or a lock, of its own under its name. again:
    whether what it answered asks for doing it again at the end; ``merge`` makes one answer of both.
    """

    name: str
    verb: str
    play: Verb | None
    us: int = 0
    loose: bool = False
    views: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()
    again: Callable[[Any], bool] = lambda _: False
    merge: Callable[[list[Any]], Any] = lambda answers: answers[-1]


Since = tuple[str, Counts]
"""What a player that halts has said: its transaction, and what the server had counted for it."""


@dataclass
class Run:
    """A run as it was: who took each step, from which stop and to where; what was done in it; when each began
    and ended; what the choices were, and who could have gone on; what came of it.

    written: what each has written or locked and not committed. heads: how each head was locked last. stuck:
    who waits for a lock, and where it halted before.
    """

    steps: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    halts: list[str | None] = field(default_factory=list)
    choices: list[tuple[tuple[int, ...], int | None]] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    stuck: dict[int, tuple[str | None, Since]] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    died: int = 0
    outcome: Outcome | None = None
    dump: Dump = field(default_factory=dict)


Choose = Callable[[Run, tuple[int, ...], int | None], int]
"""Answers who takes the next step of a run, of those who can; with who went last, if that one can."""

HEADS = "tasks"
"""The table whose rows everybody locks first."""
GONE = "gone"
"""Stands for the answer of a player that died."""


def following(chosen: Sequence[int]) -> Choose:
    """Choose these, and then whoever went last for as long as it can."""

    def choose(run: Run, ready: tuple[int, ...], last: int | None) -> int:
        step = len(run.steps)
        return chosen[step] if step < len(chosen) else ready[0] if last is None else last

    return choose


class Company:
    """Carries out one cast of acts on a furnished stage."""

    def __init__(self, stage: Stage, now: int, acts: Sequence[Act]) -> None:
        self.stage = stage
        self.now = now
        self.acts = acts
        self._cast = list(zip(stage.players, acts, strict=False))
        # What is touched by statements of their own, and no function.
        self._calls = [
            stage.footprints.of(" ".join(stage.calls.get(name, "") for name in (act.verb, *act.views)))
            for act in acts
        ]
        self._bits: dict[str, int] = {}

    async def serially(self, order: Sequence[int]) -> tuple[Outcome, Dump]:
        """Carry the acts out one after the other."""
        await self.stage.put_back(self.now)
        answers: dict[int, list[Any]] = {}
        for number in order:
            answers[number] = [await self._play(number, 1)]
        return await self._end(answers)

    async def run(self, choose: Choose, *, dies: int | None = None) -> Run:
        """Carry the acts out, each step by whoever is chosen.

        dies: number of the step, from 0, in which the server's processes for its player are ended instead.
        """
        run = Run(heads=self.stage.kept_heads)
        await self.stage.put_back(self.now, halting=[player for player, _ in self._cast])
        tasks: dict[int, asyncio.Future[Any]] = {}
        stirred = asyncio.Event()
        for player, _ in self._cast:
            player.told = stirred.set
        last: int | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                while len(run.ended) < len(self._cast):
                    ready = self._ready(tasks, run)
                    if not ready:
                        # All wait for each other: the database finds that out, and ends one of them.
                        await self._settle(tasks, run, stirred, patient=True)
                        await self._went_on(run, run.steps[-1], run.events[-1])
                        continue
                    step = len(run.steps)
                    could = last if last in ready else None
                    number = last = choose(run, tuple(ready), could)
                    assert number in ready, f"{number} cannot take step {step + 1}: {run.places}"
                    run.choices.append((tuple(ready), could))
                    run.steps.append(number)
                    player = self._cast[number][0]
                    halt = player.place if number in tasks else None
                    since = player.transaction, player.counts
                    run.halts.append(halt)
                    await self._step(number, tasks, run, stirred, dies=step == dies)
                    run.places.append(self._place(number, run))
                    run.events.append([await self._event(run, number, number, halt, since)])
                    await self._went_on(run, number, run.events[-1])
        except BaseException:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            for player, _ in self._cast:
                await self.stage.kill(player)
            raise
        # Whoever dies and is not heard of again has done nothing.
        answers = {
            number: [task.result()]
            for number, task in tasks.items()
            if not (number in run.killed and isinstance(task.result(), StoreUnavailable))
        }
        run.outcome, run.dump = await self._end(answers)
        run.again = {number for number, said in answers.items() if len(said) > 1}
        return run

    def _ready(self, tasks: dict[int, asyncio.Future[Any]], run: Run) -> list[int]:
        """Answer who can take the next step: who halts, and who has not begun."""
        return [
            number
            for number, (player, _) in enumerate(self._cast)
            if number not in run.ended and (number not in tasks or player.place is not None)
        ]

    async def _step(
        self,
        number: int,
        tasks: dict[int, asyncio.Future[Any]],
        run: Run,
        stirred: asyncio.Event,
        *,
        dies: bool,
    ) -> None:
        player, _ = self._cast[number]
        stirred.clear()
        if number in tasks:
            if dies:
                run.killed.add(number)
                run.died = len(run.steps) - 1
                await self.stage.kill(player)
            await self.stage.go(player)
        else:
            run.began[number] = len(run.steps)
            tasks[number] = asyncio.ensure_future(self._play(number, 1))
            tasks[number].add_done_callback(lambda _: stirred.set())
            if self.acts[number].play is None:
                # The clock is moved over the connection by which the stage looks.
                await tasks[number]
        await self._settle(tasks, run, stirred)

    async def _settle(
        self,
        tasks: dict[int, asyncio.Future[Any]],
        run: Run,
        stirred: asyncio.Event,
        *,
        patient: bool = False,
    ) -> None:
        """Wait until everybody halts, has ended, or waits for a lock of somebody who halts.

        patient: wait for a change where everybody waits for a lock.
        """
        looks = 0
        # Nearly every step ends at once with the notice of a stop.
        if not patient:
            with suppress(TimeoutError):
                await asyncio.wait_for(stirred.wait(), LOOK_SECONDS)
        while True:
            moving = []
            for number, task in tasks.items():
                if number in run.ended:
                    continue
                if task.done():
                    run.ended[number] = len(run.steps)
                elif self._cast[number][0].place is None:
                    moving.append(self._cast[number][0])
            if not moving:
                return
            # The notice of a stop and the end of a verb come by themselves; a wait for a lock is looked for.
            stirred.clear()
            blocked = await self.stage.waiting(moving)
            looks += 1
            if stirred.is_set():
                patient = False
            elif len(blocked) == len(moving) and not patient:
                return
            elif looks > LOOKS:
                # Whoever is to move has to get a turn on this machine.
                with suppress(TimeoutError):
                    await asyncio.wait_for(stirred.wait(), LOOK_SECONDS)

    def _place(self, number: int, run: Run) -> str:
        if number in run.ended:
            return "has ended"
        return self._cast[number][0].place or "waits for a lock"

    async def _play(self, number: int, times: int) -> Any:
        player, act = self._cast[number]
        if act.play is None:
            await self.stage.pass_time(act.us)
            return None
        try:
            return await act.play(player.store, times)
        except Exception as error:
            return error

    async def _end(self, answers: dict[int, list[Any]]) -> tuple[Outcome, Dump]:
        """Do again what was left, those last that come round anyway (a sweep before the rest), and look."""
        order = [(act.loose, act.verb != "sweep", number) for number, act in enumerate(self.acts)]
        for _, _, number in sorted(order):
            if number not in answers:
                continue
            act, said = self.acts[number], answers[number][0]
            if not isinstance(said, Exception) and act.again(said):
                await self.stage.let_run()
                answers[number].append(await self._play(number, 2))
        merged = []
        for number, (_, act) in enumerate(self._cast):
            said = answers.get(number, [GONE])
            failed = next((one for one in said if isinstance(one, Exception)), None)
            merged.append(
                json.dumps(plain(failed or (GONE if said == [GONE] else act.merge(said))), sort_keys=True)
            )
        dump = await self.stage.dump()
        return Outcome(answers=tuple(merged), rows=comparable(dump)), dump

    # -- what is touched -------------------------------------------------------------------------------

    async def _event(self, run: Run, by: int, of: int, halt: str | None, since: Since) -> Event:
        """Answer what a player did from where it halted on; since: what it said then."""
        step, player = len(run.steps) - 1, self._cast[of][0]
        if self.acts[of].play is None:
            return Event(step=step, by=by, of=of, at_once=self._mask(CLOCK.reads, of))
        touched = self.stage.footprints.at(halt) | self._calls[of]
        waits = of not in run.ended and player.place is None
        over = of in run.ended or (not waits and player.transaction != since[0])
        if not waits and not over:
            touched = touched.found(since[1], player.counts)
        writes, makes = self._mask(touched.writes, of), self._mask(touched.makes, of)
        written = run.written.get(of, 0) | writes | makes
        if waits:
            run.stuck[of] = halt, since
            writes |= makes | self._heads(run.heads, of)
        elif HEADS in touched.writes or (over and written & self._mask(frozenset({HEADS}), of)):
            taken = await self._taken(run)
            if HEADS in touched.writes:
                writes = self._mask(touched.writes - {HEADS}, of) | self._heads(taken, of)
                skipped = HEADS in touched.skips and met_rows(since[1], player.counts, HEADS) > len(taken)
                # Of whoever went on together with others it is not known who took what.
                if skipped or by != of:
                    writes |= self._heads(run.heads, of)
        run.written[of] = 0 if over else written
        return Event(
            step=step,
            by=by,
            of=of,
            reads=self._mask(touched.reads, of),
            writes=writes,
            makes=makes,
            shows=written if over else 0,
        )

    async def _taken(self, run: Run) -> set[str]:
        """Answer which heads were locked since this was asked last: to write one again keeps nobody off."""
        known, run.heads = run.heads, await self.stage.heads()
        return {name for name, lock in run.heads.items() if known.get(name) != lock}

    def _heads(self, names: Iterable[str], of: int) -> int:
        return self._mask(frozenset(f"head {name}" for name in names), of)

    async def _went_on(self, run: Run, by: int, events: list[Event]) -> None:
        """Keep who has got the lock that it waited for, and went on by itself."""
        for number in [*run.stuck]:
            player = self._cast[number][0]
            if number not in run.ended and player.place is None:
                continue
            if number != by:
                # Whoever let it has given something up, if only by going back to a savepoint.
                events[0] = replace(events[0], shows=events[0].shows | run.written.get(by, 0))
                events.append(await self._event(run, by, number, *run.stuck[number]))
            del run.stuck[number]

    def _mask(self, names: frozenset[str], of: int) -> int:
        """Answer what is touched, a bit each."""
        mask = 0
        for name in names:
            mine = name in self.acts[of].own
            for act in self.acts:
                if name in act.own and (not mine or act.name == self.acts[of].name):
                    mask |= self._bit(f"{name} of {act.name}")
            if not mine:
                mask |= self._bit(name)
        return mask

    def _bit(self, name: str) -> int:
        return self._bits.setdefault(name, 1 << len(self._bits))
