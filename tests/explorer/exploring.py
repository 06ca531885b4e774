"""The explorer: every order of the statements of a few verbs.

Two or three players carry out a verb each. A run is told by who takes each step; a step goes from one stop to
the next, to a lock that another holds, or to the end of the verb with its commit. Whoever waits for a lock
goes on by itself when it gets it. Each run begins with the same rows. ``Explorer.explore`` plays one run of
all that cannot be told apart (``reducing``), whatever the number of switches; ``Explorer.plainly`` plays all
runs up to a number of switches away from somebody who could go on, and knows nothing of what comes to the
same.

A run is right if it is as good as one in which the verbs came one after the other, in the order in which they
were committed: the same answers and the same rows, so that nobody who looks in between is told otherwise. No
verb fails because of another, and nothing that should go on stays where it is. What a verb leaves since
somebody else holds it (a flush that is ``deferred``, a claim that skips a head) it does again at the end, as
those who call it do. Time, and switches that stand from the next batch on, may come anywhere in between.
Where runs that come to the same differ in who commits first, each of them has to be right.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from tests.explorer.outcomes import FAILED, Outcome, differences
from tests.explorer.playing import GONE, Act, Company, Run, following
from tests.explorer.reducing import Search
from tests.explorer.scenes import Props, furnish
from tests.explorer.stage import Stage
from tests.explorer.stops import told as stated

from outlast.testing.checkers import Dump, check_all


@dataclass(frozen=True)
class Finding:
    """A run that is not right. says: what is wrong. script: step by step; again: the command that plays it
    again."""

    says: str
    script: str
    again: str

    def __str__(self) -> str:
        return f"{self.says}\n\n{self.script}\nplay it again: {self.again}"


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

    def __init__(
        self, stage: Stage, now: int, title: str, acts: Sequence[Act], *, parted: bool = False
    ) -> None:
        """Explore acts in a setting; parted: whether one may see a part of another, by design, so that only
        the checkers judge."""
        self.stage = stage
        self.parted = parted
        self.title = title
        self.acts = acts
        self.company = Company(stage, now, acts)
        self.runs = 0
        self.redundant = 0
        self.through = False
        self.outcomes: set[Outcome] = set()
        self._serial: dict[tuple[int, ...], Outcome] = {}
        self._judged: dict[Outcome, list[str]] = {}

    async def run(self, chosen: Sequence[int], *, dies: int | None = None) -> Run:
        """Carry out one run, the first steps as chosen; dies: number of the step in which its player does."""
        return self._counted(await self.company.run(following(chosen), dies=dies))

    def _counted(self, run: Run) -> Run:
        assert run.outcome is not None
        self.runs += 1
        self.outcomes.add(run.outcome)
        return run

    async def serially(self, order: tuple[int, ...]) -> Outcome:
        """Carry the acts out one after the other."""
        if order not in self._serial:
            outcome, dump = await self.company.serially(order)
            self._serial[order] = outcome
            self._judge(outcome, dump)
        return self._serial[order]

    # -- judging ---------------------------------------------------------------------------------------

    def _judge(self, outcome: Outcome, dump: Dump) -> list[str]:
        """Ask the checkers, once for what is the same."""
        if outcome not in self._judged:
            failed = [f"{answer} is no answer" for answer in outcome.answers if FAILED in answer]
            self._judged[outcome] = [*failed, *(f"{one.promise}: {one.text}" for one in check_all(dump))]
        return self._judged[outcome]

    async def wrong(self, run: Run, before: Sequence[int] = ()) -> str | None:
        """Answer what is wrong with a run, None for nothing.

        before: for each of its events which had to come before it: then all runs that come to the same are
        judged, and otherwise this one alone.
        """
        assert run.outcome is not None
        broken = self._judge(run.outcome, run.dump)
        ways = self._ways(run, before) if before else [(run.began, run.ended)]
        for began, ended in () if self.parted else ways:
            orders = self._orders(run, began, ended)
            serial = [await self.serially(order) for order in orders]
            if run.outcome not in serial:
                broken = [
                    "it comes to what no order of these verbs comes to",
                    *differences(run.outcome, serial),
                    *broken,
                ]
                break
        return "\n".join(broken) or None

    def _ways(self, run: Run, before: Sequence[int]) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
        """Answer when each may have begun and ended in runs that come to the same: every order of the steps
        in which they did that is told by nothing else."""
        events = [event for step in run.events for event in step]
        marks = {*run.ended.values()}
        if any(act.loose for act in self.acts):
            marks |= {*run.began.values()}
        of_step = {mark: [n for n, event in enumerate(events) if event.step == mark - 1] for mark in marks}

        def follows(mark: int, other: int) -> bool:
            return any(before[n] >> one & 1 for n in of_step[mark] for one in of_step[other])

        def orders(left: frozenset[int]) -> Iterator[tuple[int, ...]]:
            if not left:
                yield ()
            for mark in sorted(left):
                if not any(follows(mark, other) for other in left if other != mark):
                    yield from ((mark, *rest) for rest in orders(left - {mark}))

        for order in orders(frozenset(marks)):
            at = {mark: place for place, mark in enumerate(order)}
            yield (
                {number: at.get(mark, 0) for number, mark in run.began.items()},
                {number: at[mark] for number, mark in run.ended.items()},
            )

    def _orders(self, run: Run, began: dict[int, int], ended: dict[int, int]) -> list[tuple[int, ...]]:
        """Answer in which orders the acts may count."""

        def may(one: int, other: int) -> bool:
            if other in run.again:
                return True
            if self.acts[one].loose or self.acts[other].loose:
                return ended[other] >= began[one]
            return ended[other] >= ended[one]

        assert run.outcome is not None
        return [
            order
            for order in itertools.permutations(self._heard_of(run.outcome))
            if all(may(one, other) for n, one in enumerate(order) for other in order[n + 1 :])
        ]

    def _heard_of(self, outcome: Outcome) -> list[int]:
        return [number for number, answer in enumerate(outcome.answers) if answer != json.dumps(GONE)]

    def script(self, run: Run) -> str:
        """Tell a run step by step."""
        lines = [f"{self.title}: {' | '.join(act.name for act in self.acts)}"]
        for number, place in zip(run.steps, run.places, strict=True):
            lines.append(f"  {'ABC'[number]} {self.acts[number].name}: {self._told(place)}")
        if run.killed:
            lines.append(f"  {'ABC'[run.steps[run.died]]} dies in step {run.died + 1}")
        return "\n".join(lines)

    def _found(self, run: Run, says: str) -> Finding:
        steps = "".join("ABC"[number] for number in run.steps)
        names = " ".join(act.name for act in self.acts)
        dies = f" --dies {run.died + 1}" if run.killed else ""
        again = f"python -m tests.explorer {self.title} {names} --steps {steps}{dies}"
        return Finding(says=says, script=self.script(run), again=again)

    def _told(self, place: str) -> str:
        name, _, number = place.partition(" ")
        if name not in self.stage.sources:
            return place
        return f"halts before {place}: {stated(self.stage.sources[name])[int(number) - 1][:110]}"

    # -- exploring -------------------------------------------------------------------------------------

    async def explore(self, most: int | None = None) -> Finding | None:
        """Play every order of steps that cannot be told from another once; answer the first that is not
        right.

        most: how many runs at most; ``through`` says whether that was enough.
        """
        async for run, before in self._classes(most):
            says = await self.wrong(run, before)
            if says is not None:
                return self._found(run, says)
        return None

    async def _classes(self, most: int | None) -> AsyncIterator[tuple[Run, list[int]]]:
        """Answer a run of each class, and for each of its events which had to come before it."""
        search = Search()
        while True:
            search.begin()
            run = await self.company.run(lambda run, ready, last: search.choose(ready, last, run.events))
            self._counted(run)
            self.redundant += search.redundant
            before = search.learn(run.events)
            if not search.redundant:
                yield run, before
            if not search.nodes:
                self.through = True
                return
            if most is not None and self.runs >= most:
                return

    async def plainly(self, switches: int) -> Finding | None:
        """Play all runs with at most so many switches; answer the first that is not right."""
        left: list[tuple[int, ...]] = [()]
        while left:
            chosen = left.pop()
            run = await self.run(chosen)
            says = await self.wrong(run)
            if says is not None:
                return self._found(run, says)
            spent = 0
            for step, ((ready, could), number) in enumerate(zip(run.choices, run.steps, strict=True)):
                for other in ready if step >= len(chosen) else ():
                    if other != number and spent + (could is not None and other != could) <= switches:
                        left.append((*run.steps[:step], other))
                spent += could is not None and number != could
        return None

    async def deaths(self, most: int | None = None) -> Finding | None:
        """Let each player die at each of its stops, in a run of each class; others come before, and wait for
        it.

        Whoever dies has done nothing, or, where its store asks again, all of it once. Deaths are told apart
        by how far the player has come, by what had come before that, and by who wants what it holds.

        most: how many runs at most.
        """
        seen: set[object] = set()
        async for run, before in self._classes(most):
            events = [event for step in run.events for event in step]
            for step, (number, halt) in enumerate(zip(run.steps, run.halts, strict=True)):
                if halt is None:
                    continue
                held, past = 0, 0
                done = [n for n, event in enumerate(events) if event.step < step]
                for n in done:
                    if events[n].of == number:
                        held = 0 if events[n].shows else held | events[n].writes | events[n].makes
                        past |= before[n] | 1 << n
                wanted = [events[n].of for n in done if past >> n & 1 or events[n].writes & held]
                death = number, halt, tuple(wanted.count(one) for one in range(len(self.acts)))
                if death in seen:
                    continue
                seen.add(death)
                if most is not None and self.runs >= most:
                    self.through = False
                    return None
                died = await self.run(run.steps[: step + 1], dies=step)
                says = await self.wrong(died)
                if says is not None:
                    return self._found(died, says)
        return None
