"""Which orders of steps come to the same, and one run for each order that does not.

Under READ COMMITTED a statement sees what was committed before it began, and nothing of what is still open.
So two steps of different players can be told apart by their order only where

- both change or lock rows of the same table, or take the same advisory lock: one may wait for the other, or
  skip it. Of heads it is the rows that count. Two new rows keep each other only where one of them waits;
- one commits what it has written or locked, and the other reads, writes or locks in one of those tables;
- one moves the clock, and the other reads it.

What one reads and another has written and not committed is not among these: that is what makes the number of
orders small. Orders that differ only in steps next to each other that cannot be told apart come to the same
(Mazurkiewicz). ``Search`` plays at least one of each such class, and at most a few that it recognises:
dynamic partial order reduction (Flanagan and Godefroid, POPL 2005) in the form with source sets and sleep
sets (Abdulla and others, POPL 2014). After each run it looks for pairs of steps that could have come the
other way round, and plays those next; a number of switches does not limit it.

Assumed: a step touches what its text says, with the functions that it calls, and no more; where the server
can tell that a statement met nothing, or has taken no head, that is believed (``footprints``). What order
alone decides (numbers out of sequences, transaction ids) is not compared, and not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """What one player did in a step.

    step: number of the step, from 0. by: who took it; of: who did this: another one where it had waited for a
    lock that was given up in this step, and went on by itself. The rest are sets of names, a bit each: what
    it read; what it changed or locked, where it put rows, neither shown yet; what it showed or gave up by a
    commit; what was there for all at once. Whoever waits does so for all that its statement might do.
    """

    step: int
    by: int
    of: int
    reads: int = 0
    writes: int = 0
    makes: int = 0
    shows: int = 0
    at_once: int = 0

    def meets(self, other: Event) -> bool:
        """Answer whether the order of two events of different players can matter."""
        return bool(
            self.writes & (other.writes | other.makes)
            or self.makes & other.writes
            or self.shows & (other.reads | other.writes | other.makes)
            or other.shows & (self.reads | self.writes | self.makes)
            or self.at_once & (other.reads | other.at_once)
            or other.at_once & self.reads
        )


def apart(some: Iterable[Event], others: Sequence[Event]) -> bool:
    """Answer whether no order of two steps matters."""
    return not any(one.of == other.of or one.meets(other) for one in some for other in others)


def reasons(events: Sequence[Event], begin: int = 0) -> tuple[list[int], list[tuple[int, int]]]:
    """Answer for each event which others had to come before it, a bit each, and what could be the other way.

    begin: number of the first event whose pairs are asked for. A pair is two events that meet with nothing in
    between that keeps them in their order; whoever went on by itself cannot be parted from who let it.
    """
    before: list[int] = []
    pairs: list[tuple[int, int]] = []
    for later, event in enumerate(events):
        known = 0
        for earlier in range(later - 1, -1, -1):
            bit = 1 << earlier
            if known & bit:
                continue
            other = events[earlier]
            bound = other.of == event.of or (other.step == event.step and other.by == other.of)
            if bound or other.meets(event):
                together = [one for one in events[:later] if one.step == other.step]
                apart_ = other.step != event.step and event.of not in {one.of for one in together}
                if later >= begin and not bound and apart_:
                    pairs.append((earlier, later))
                known |= before[earlier] | bit
        before.append(known)
    # Two events of one step stand and fall together.
    return before, [
        (earlier, later)
        for earlier, later in pairs
        if not any(
            before[later] >> between & 1 and before[between] >> one & 1
            for one in range(len(events))
            if events[one].step == events[earlier].step
            for between in range(one + 1, later)
            if events[between].step != events[earlier].step
        )
    ]


def firsts(events: Sequence[Event], before: Sequence[int], earlier: int, later: int) -> Iterator[int]:
    """Answer who may take the first step where a later event is to come before an earlier one."""
    step = events[earlier].step
    group = [n for n, event in enumerate(events) if event.step == step]
    moved = [n for n in range(group[-1] + 1, later) if not any(before[n] >> one & 1 for one in group)] + [
        later
    ]
    seen: set[int] = set()
    for n in moved:
        event = events[n]
        if event.by != event.of or event.of in seen:
            continue
        seen.add(event.of)
        if not any(before[n] >> other & 1 for other in moved):
            yield event.of


@dataclass
class Node:
    """A place in the search: who could go on, who does now, who is to and has, and who need not any more.

    done, asleep: with what they did in their step.
    """

    ready: tuple[int, ...]
    chosen: int
    todo: set[int]
    done: dict[int, list[Event]] = field(default_factory=dict)
    asleep: dict[int, list[Event]] = field(default_factory=dict)


class Search:
    """Chooses steps so that every class of orders is played."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.redundant = False
        self._begin = 0

    def begin(self) -> None:
        """A run begins: it goes where the last one was left."""
        self.redundant = False
        self._begin = max(0, len(self.nodes) - 1)

    def choose(self, ready: Sequence[int], last: int | None, did: Sequence[Sequence[Event]]) -> int:
        """Answer who takes the next step; did: what each step so far came to."""
        step = len(did)
        if step < len(self.nodes):
            node = self.nodes[step]
            assert node.ready == tuple(ready), f"step {step + 1} is for {ready}, and was for {node.ready}"
            return node.chosen
        asleep: dict[int, list[Event]] = {}
        if step and not self.redundant:
            back = self.nodes[-1]
            asleep = {
                number: events
                for number, events in {**back.asleep, **back.done}.items()
                if number != back.chosen and number in ready and apart(events, did[-1])
            }
        awake = [number for number in ready if number not in asleep]
        if self.redundant or not awake:
            # Whatever comes of this was seen.
            self.redundant = True
            return ready[0]
        chosen = last if last in awake else awake[0]
        assert chosen is not None
        self.nodes.append(Node(ready=tuple(ready), chosen=chosen, todo={chosen}, asleep=asleep))
        return chosen

    def learn(self, did: Sequence[Sequence[Event]]) -> list[int]:
        """Look what could have come the other way round; no nodes are left when there is nothing to play.

        Answers for each event of the run which had to come before it.
        """
        did = did[: len(self.nodes)]
        events = [event for step in did for event in step]
        before, pairs = reasons(events, sum(len(step) for step in did[: self._begin]))
        for earlier, later in pairs:
            node = self.nodes[events[earlier].step]
            may = [one for one in firsts(events, before, earlier, later) if one in node.ready]
            assert may, "whoever comes first can go"
            if not node.todo & set(may):
                node.todo.add(may[0])
        while self.nodes:
            node = self.nodes[-1]
            node.done[node.chosen] = list(did[len(self.nodes) - 1])
            left = node.todo - set(node.done) - set(node.asleep)
            if left:
                node.chosen = min(left)
                break
            self.nodes.pop()
        return before
