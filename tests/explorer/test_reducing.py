"""What comes to the same is played once, and nothing that does not is left out.

On a small machine that reads what is committed, locks, waits and skips as the database does, all orders of
the steps of random programs are played, and what comes of them is compared with what comes of those that the
search chooses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.explorer.reducing import Event, Search, reasons

PLAYERS, ROWS = 3, 3
Step = tuple[str, int, int]
"""A statement: what it does, to which row, and which row it reads when it begins."""


@dataclass
class Machine:
    """Programs of statements on rows, one transaction each."""

    programs: list[list[Step]]
    rows: list[object] = field(default_factory=lambda: [None] * ROWS)
    locks: dict[int, int] = field(default_factory=dict)
    at: list[int] = field(default_factory=lambda: [0] * PLAYERS)
    logs: list[list[object]] = field(default_factory=lambda: [[] for _ in range(PLAYERS)])
    waits: list[tuple[int, int]] = field(default_factory=list)
    did: list[list[Event]] = field(default_factory=list)

    def ready(self) -> list[int]:
        """Answer who can take a step."""
        waiting = {player for player, _ in self.waits}
        return [n for n in range(PLAYERS) if n not in waiting and self.at[n] < len(self.programs[n])]

    def step(self, player: int) -> None:
        """Carry a statement out, and what goes on by itself then."""
        kind, row, read = self.programs[player][self.at[player]]
        events = self.did
        number = len(events)
        held = {one for one, by in self.locks.items() if by == player}
        self.logs[player].append(self.rows[read])
        shows, writes = 0, 1 << row
        went_on: list[Event] = []
        if kind == "commit":
            writes = 0
            shows = sum(1 << one for one in held)
            for one in held:
                self.rows[one] = (player, tuple(self.logs[player]))
                del self.locks[one]
            for waiter, one in list(self.waits):
                if one not in self.locks:
                    self.locks[one] = waiter
                    self.waits.remove((waiter, one))
                    self.at[waiter] += 1
                    went_on.append(Event(step=number, by=player, of=waiter, writes=1 << one))
        elif kind == "skip":
            self.logs[player].append(self.locks.get(row, player) == player)
            self.locks.setdefault(row, player)
        elif kind == "read":
            writes = 0
        elif self.locks.setdefault(row, player) != player:
            self.waits.append((player, row))
        if (player, row) not in self.waits:
            self.at[player] += 1
        events.append(
            [Event(step=number, by=player, of=player, reads=1 << read, writes=writes, shows=shows), *went_on]
        )

    def outcome(self) -> object:
        """Answer what everybody has read, and what there is."""
        return repr((self.rows, self.logs))


def programs(seed: int) -> list[list[Step]]:
    """Draw programs whose locks are taken in the order of the rows, so that nobody waits in a circle."""
    dice = random.Random(seed)
    made: list[list[Step]] = []
    for _ in range(PLAYERS):
        steps = [
            (dice.choice(("lock", "lock", "skip", "read")), row, dice.randrange(ROWS))
            for row in sorted(dice.sample(range(ROWS), 2))
        ]
        made.append([*steps, ("commit", 0, dice.randrange(ROWS))])
    return made


def played(of: list[list[Step]], choose: Callable[[Machine], int]) -> Machine:
    """Play a run."""
    machine = Machine(of)
    while machine.ready():
        machine.step(choose(machine))
    return machine


def all_outcomes(of: list[list[Step]]) -> set[object]:
    """Play every order of steps."""
    found: set[object] = set()
    left: list[list[int]] = [[]]
    while left:
        chosen = left.pop()

        def choose(machine: Machine, chosen: list[int] = chosen) -> int:
            step, ready = len(machine.did), machine.ready()
            if step >= len(chosen):
                left.extend([*chosen, other] for other in ready[1:])
                chosen.append(ready[0])
            return chosen[step]

        found.add(played(of, choose).outcome())
    return found


def searched(of: list[list[Step]]) -> tuple[set[object], list[Machine]]:
    """Play what the search chooses."""
    search, runs = Search(), []
    while not runs or search.nodes:
        search.begin()
        runs.append(played(of, lambda machine: search.choose(machine.ready(), None, machine.did)))
        search.learn(runs[-1].did)
    return {run.outcome() for run in runs}, runs


@pytest.mark.parametrize("seed", range(8))
def test_the_search_finds_every_outcome_that_any_order_comes_to(seed: int) -> None:
    of = programs(seed)
    found, _ = searched(of)
    assert found == all_outcomes(of)


def test_steps_that_cannot_be_told_apart_are_played_in_one_order() -> None:
    apart: list[list[Step]] = [[("lock", n, n), ("lock", n, n), ("commit", 0, n)] for n in range(PLAYERS)]
    _, runs = searched(apart)
    assert len(runs) == 1


def test_what_is_not_committed_is_seen_by_nobody() -> None:
    """One writes while another reads: only the commit counts."""
    of: list[list[Step]] = [
        [("lock", 0, 0), ("lock", 0, 0), ("commit", 0, 0)],
        [("read", 0, 0), ("commit", 0, 1)],
        [("commit", 0, 2)],
    ]
    found, runs = searched(of)
    assert len(runs) == len(found) == 2


def test_pairs_are_told_that_could_come_the_other_way() -> None:
    events = [
        Event(step=0, by=0, of=0, writes=1),
        Event(step=1, by=1, of=1, writes=1),
        Event(step=2, by=0, of=0, shows=1),
        Event(step=2, by=0, of=1, writes=1),
        Event(step=3, by=2, of=2, reads=1),
    ]
    before, pairs = reasons(events)
    # Whoever waited went on because of the commit: those two are never parted.
    assert pairs == [(0, 1), (1, 2), (2, 4)]
    assert before == [0, 0b1, 0b11, 0b111, 0b111]
