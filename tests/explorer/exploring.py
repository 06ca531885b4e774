"""The explorer: every order of the statements of a few verbs, up to a number of switches.

Two or three players carry out a verb each. A run is told by who takes each step; a step goes from one stop to
the next, to a lock that another holds, or to the end of the verb with its commit. Whoever waits for a lock
goes on by itself when it gets it. A switch away from somebody who could go on counts; all runs with at most
as many of those as asked for are played, depth first, each from the same rows.

A run is right if it is as good as one in which the verbs came one after the other, in the order in which they
were committed: the same answers and the same rows, so that nobody who looks in between is told otherwise. No
verb fails because of another, and nothing that should go on stays where it is. What a verb leaves since
somebody else holds it (a flush that is ``deferred``, a claim that skips a head) it does again at the end, as
those who call it do. Time, and switches that stand from the next batch on, may come anywhere in between.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.explorer.outcomes import FAILED, Outcome, comparable, differences, plain
from tests.explorer.scenes import Props, furnish
from tests.explorer.stage import Footprint, Stage
from tests.explorer.stops import told as stated

from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.testing.checkers import Dump, check_all

PATIENCE = 20.0
"""How long one step may take, in seconds, before the run has failed."""

LOOKS, LOOK_SECONDS = 3, 0.002
"""After so many looks for a lock that somebody waits for, there is a pause between them."""

Verb = Callable[[Store, int], Awaitable[Any]]
"""Carries a verb out; the number counts how often, from 1."""


@dataclass(frozen=True)
class Act:
    """One player's part.

    verb: of the contract, ``time`` for the clock. play: None for the clock, which ``us`` moves. loose:
    whether it may count from before its commit on, or from after it. again: whether what it answered asks for
    doing it again at the end; ``merge`` makes one answer of both.
    """

    name: str
    verb: str
    play: Verb | None
    us: int = 0
    loose: bool = False
    again: Callable[[Any], bool] = lambda _: False
    merge: Callable[[list[Any]], Any] = lambda answers: answers[-1]


@dataclass
class Run:
    """A run as it was: who took each step, from which stop and to where; when each began and ended; what the
    choices were, and who could have gone on; what came of it."""

    steps: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    halts: list[str | None] = field(default_factory=list)
    choices: list[tuple[tuple[int, ...], int | None]] = field(default_factory=list)
    began: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    died: int = 0
    outcome: Outcome | None = None
    dump: Dump = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A run that is not right. script: how to play it again; says: what is wrong."""

    script: str
    says: str

    def __str__(self) -> str:
        return f"{self.says}\n\n{self.script}"


GONE = "gone"
"""Stands for the answer of a player that died."""
TICK = Footprint(writes=frozenset({"clock"}))
"""Of time that passes."""
NOW = 1_700_000_000_000_000
"""When every scene begins, in microseconds."""


async def furnished(stage: Stage, setting: str) -> Props:
    """Furnish a stage and have it remembered; answer what there is."""
    await stage.clear(NOW)
    props = await furnish(setting, stage.store, NOW)
    await stage.keep()
    return props


class Explorer:
    """Explores one cast of acts on a furnished stage."""

    def __init__(self, stage: Stage, now: int, title: str, acts: Sequence[Act]) -> None:
        self.stage = stage
        self.now = now
        self.title = title
        self.acts = acts
        self.runs = 0
        self._cast = list(zip(stage.players, acts, strict=False))
        self._serial: dict[tuple[int, ...], Outcome] = {}
        self._judged: dict[Outcome, list[str]] = {}
        # What is touched by verbs that are a statement of their own, and no function.
        self._calls = [stage.footprint(stage.calls.get(act.verb, "")) for act in acts]
        self._stretches: dict[tuple[int, ...], Footprint] = {}

    # -- runs ------------------------------------------------------------------------------------------

    async def serially(self, order: tuple[int, ...]) -> Outcome:
        """Carry the acts out one after the other."""
        if order not in self._serial:
            await self.stage.put_back(self.now)
            answers: dict[int, list[Any]] = {}
            for number in order:
                answers[number] = [await self._play(number, 1)]
            outcome, dump = await self._end(answers)
            self._serial[order] = outcome
            self._judge(outcome, dump)
        return self._serial[order]

    async def run(self, chosen: Sequence[int], *, dies: int | None = None) -> Run:
        """Carry the acts out, the first steps as chosen, and then whoever went last for as long as it can.

        dies: number of the step, from 0, in which the server's processes for its player are ended instead.
        """
        run = Run()
        await self.stage.put_back(self.now, halting=[player for player, _ in self._cast])
        self.runs += 1
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
                        continue
                    step = len(run.steps)
                    number = chosen[step] if step < len(chosen) else last if last in ready else ready[0]
                    assert number in ready, f"{number} cannot take step {step + 1}: {run.places}"
                    run.choices.append((tuple(ready), last if last in ready else None))
                    run.steps.append(number)
                    last = number
                    halt = self._cast[number][0].place if number in tasks else None
                    run.halts.append(halt)
                    await self._step(number, tasks, run, stirred, dies=step == dies)
                    run.places.append(self._place(number, run))
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

    # -- judging ---------------------------------------------------------------------------------------

    def _judge(self, outcome: Outcome, dump: Dump) -> list[str]:
        """Ask the checkers, once for what is the same."""
        if outcome not in self._judged:
            failed = [f"{answer} is no answer" for answer in outcome.answers if FAILED in answer]
            self._judged[outcome] = [*failed, *(f"{one.promise}: {one.text}" for one in check_all(dump))]
        return self._judged[outcome]

    async def wrong(self, run: Run) -> str | None:
        """Answer what is wrong with a run, None for nothing."""
        assert run.outcome is not None
        orders = [
            order
            for order in itertools.permutations(self._heard_of(run.outcome))
            if all(
                self._may_follow(run, one, other) for n, one in enumerate(order) for other in order[n + 1 :]
            )
        ]
        serial = [await self.serially(order) for order in orders]
        broken = self._judge(run.outcome, run.dump)
        if run.outcome not in serial:
            broken = [
                "it comes to what no order of these verbs comes to",
                *differences(run.outcome, serial),
                *broken,
            ]
        return "\n".join(broken) or None

    def _heard_of(self, outcome: Outcome) -> list[int]:
        return [number for number, answer in enumerate(outcome.answers) if answer != json.dumps(GONE)]

    def _may_follow(self, run: Run, one: int, other: int) -> bool:
        """Answer whether an order may have one act before the other."""
        if other in run.again:
            return True
        if self.acts[one].loose or self.acts[other].loose:
            return run.ended[other] >= run.began[one]
        return run.ended[other] >= run.ended[one]

    def script(self, run: Run) -> str:
        """Tell a run step by step, and how to play it again."""
        lines = [f"{self.title}: {' | '.join(act.name for act in self.acts)}"]
        for number, place in zip(run.steps, run.places, strict=True):
            lines.append(f"  {'ABC'[number]} {self.acts[number].name}: {self._told(place)}")
        if run.killed:
            lines.append(f"  {'ABC'[run.steps[run.died]]} dies in step {run.died + 1}")
        steps = "".join("ABC"[number] for number in run.steps)
        names = " ".join(act.name for act in self.acts)
        dies = f" --dies {run.died + 1}" if run.killed else ""
        lines.append(f"play it again: python -m tests.explorer {self.title} {names} --steps {steps}{dies}")
        return "\n".join(lines)

    def _told(self, place: str) -> str:
        name, _, number = place.partition(" ")
        if name not in self.stage.sources:
            return place
        return f"halts before {place}: {stated(self.stage.sources[name], int(number))[:110]}"

    # -- exploring -------------------------------------------------------------------------------------

    async def explore(self, switches: int) -> Finding | None:
        """Carry out the runs with at most so many switches; answer the first that is not right.

        A switch to a player is left out where it comes to the same as the last one before it: where nothing
        that was done in between touches what that player went on to do then, up to its end or to the lock
        that it waited for. Two statements touch each other that are about the same table, lock or clock, one
        of them writing.
        """
        return await self._branch((), switches)

    async def _branch(self, chosen: tuple[int, ...], switches: int) -> Finding | None:
        run = await self.run(chosen)
        says = await self.wrong(run)
        if says is not None:
            return Finding(script=self.script(run), says=says)
        run.dump = {}
        spent = 0
        before: dict[int, tuple[Footprint, Footprint]] = {}
        for step, ((ready, could), number) in enumerate(zip(run.choices, run.steps, strict=True)):
            for other in ready if step >= len(chosen) else ():
                if other == number or spent + (could is not None and other != could) > switches:
                    continue
                if could is not None and other in before:
                    did, since = before[other]
                    if not since.meets(did):
                        continue
                found = await self._branch((*run.steps[:step], other), switches)
                if found is not None:
                    return found
                before[other] = self._stretches[*run.steps[:step], other], Footprint()
            did = self._did(run, step)
            before = {other: (then, since | did) for other, (then, since) in before.items()}
            spent += could is not None and number != could
        stretch = Footprint()
        for step in range(max(0, len(chosen) - 1), len(run.steps)):
            if chosen and run.steps[step] != chosen[-1]:
                break
            stretch |= self._did(run, step)
        self._stretches[chosen] = stretch
        return None

    async def deaths(self) -> Finding | None:
        """Let the first player die at each of its stops, before the others come and while they wait for it.

        Whoever dies has done nothing, or, where its store asks again, all of it once.
        """
        whole = await self.run(())
        first = whole.steps[0]
        for step, (number, halt) in enumerate(zip(whole.steps, whole.halts, strict=True)):
            if halt is None or number != first:
                continue
            ways = [tuple(whole.steps[: step + 1])]
            for other in range(len(self._cast)):
                if other != first:
                    seen = await self.run((*whole.steps[:step], other))
                    back = [n for n in range(step, len(seen.steps)) if seen.steps[n] == first]
                    ways += [tuple(seen.steps[: n + 1]) for n in back[:1]]
            for way in ways:
                run = await self.run(way, dies=len(way) - 1)
                says = await self.wrong(run)
                if says is not None:
                    return Finding(script=self.script(run), says=says)
        return None

    def _did(self, run: Run, step: int) -> Footprint:
        """Answer what was touched in a step."""
        if self.acts[run.steps[step]].play is None:
            return TICK
        return self.stage.footprint_at(run.halts[step]) | self._calls[run.steps[step]]
