"""What statements touch: read off their text, and off what the server counts while they are carried out.

Of a statement and of the functions that it calls it is known which tables they read, change and lock; of what
was carried out besides in which tables rows were looked for and met. A statement that had nothing to do
touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.explorer.stops import behind, conditions, told

Counts = dict[str, tuple[int, int]]
"""How often rows of each table were looked for, and how many were met."""


def counted(text: str) -> Counts:
    """Answer what a server has counted of tables and of their indexes, each as ``table:looks:rows``."""
    made: Counts = {}
    for one in text.split(",") if text != "-" else ():
        name, looks, rows = one.split(":")
        before = made.get(name, (0, 0))
        made[name] = before[0] + int(looks), before[1] + int(rows)
    return made


@dataclass(frozen=True)
class Footprint:
    """What statements touch: names of tables, and of advisory locks with ``lock`` before them.

    writes: what they change or lock rows of, or give way in to a row that there is (yields). makes: what they
    put rows into. skips: what they lock only where nobody else has.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    skips: frozenset[str] = frozenset()
    yields: frozenset[str] = frozenset()

    def __or__(self, other: Footprint) -> Footprint:
        return Footprint(
            reads=self.reads | other.reads,
            writes=self.writes | other.writes,
            makes=self.makes | other.makes,
            skips=self.skips | other.skips,
            yields=self.yields | other.yields,
        )

    def found(self, before: Counts, after: Counts) -> Footprint:
        """Leave out tables in which nothing was looked for, and writes where no row was met.

        before, after: what the server had counted when this began, and when it had ended. An insert that
        gives way has met none, and may have waited.
        """
        looked = {name for name, counts in after.items() if before.get(name) != counts}
        met = {name for name in looked if before.get(name, (0, 0))[1] != after[name][1]}
        return Footprint(
            reads=self.reads & (looked | {"clock"}),
            writes=frozenset(
                name for name in self.writes if name in met | self.yields or name.startswith("lock ")
            ),
            makes=self.makes & met,
            skips=self.skips,
            yields=self.yields,
        )


def met_rows(before: Counts, after: Counts, table: str) -> int:
    """Answer how many rows of a table were met."""
    return after.get(table, (0, 0))[1] - before.get(table, (0, 0))[1]


CLOCK = Footprint(reads=frozenset({"clock"}))
"""Of whoever reads the clock."""


class Footprints:
    """Footprints of statements, and of the steps of functions from stop to stop.

    named: the tables. plain: bodies of the functions that have no stops. sources: bodies of those that have.
    """

    def __init__(
        self,
        named: Sequence[str] = (),
        plain: Mapping[str, str] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._named = named
        self._plain = plain or {}
        self._sources = sources if sources is not None else {}
        self._known: dict[str, Footprint] = {}

    def forget(self) -> None:
        """Look anew: functions have changed."""
        self._known.clear()

    def of(self, text: str) -> Footprint:
        """Answer what a statement touches, with the functions that it calls and that have no stops."""
        reads: set[str] = set()
        makes = set(re.findall(r"insert into\s+outlast\.(\w+)", text))
        yields = makes if re.search(r"\bon conflict\b", text) else set()
        writes = set(re.findall(r"(?:update|delete from)\s+outlast\.(\w+)", text)) | yields
        writes |= {f"lock {what}" for what in re.findall(r"\bpg_(?:try_)?advisory_\w+\((.*)\)", text)}
        made = Footprint()
        for name in re.findall(r"\boutlast\.(\w+)", text):
            if name in self._plain:
                made |= self.of(self._plain[name])
            elif name in self._named:
                reads.add(name)
        skips: set[str] = set()
        for of, skip in re.findall(
            r"\bfor (?:no key update|update|share|key share)\b(?: of (\w+))?( skip locked)?", text
        ):
            locked = set(re.findall(rf"\boutlast\.(\w+) {of}\b", text) if of else ()) or reads
            writes |= locked
            skips |= locked if skip else set()
        return made | Footprint(
            reads=frozenset(reads),
            writes=frozenset(writes),
            yields=frozenset(yields),
            makes=frozenset(makes),
            skips=frozenset(skips),
        )

    def at(self, place: str | None) -> Footprint:
        """Answer what is touched from a stop to the next."""
        name, _, number = (place or "").partition(" ")
        if name not in self._sources:
            # From the beginning of a verb to its first stop nothing but the clock is touched.
            return CLOCK
        if place not in self._known:
            made = self.of(told(self._sources[name])[int(number) - 1]) | self._around(name)
            if "outlast.clock_us" in behind(self._sources[name], int(number)):
                made |= CLOCK
            self._known[str(place)] = made
        return self._known[str(place)]

    def _around(self, name: str, inside: frozenset[str] = frozenset()) -> Footprint:
        """Answer what may be touched besides in any step of a function: by conditions that cannot be halted
        before, and by the statements that call it, which go on behind its stops."""
        made = Footprint()
        for condition in conditions(self._sources[name]):
            made |= self.of(condition)
        for caller, source in self._sources.items():
            if f"outlast.{name}(" in source and caller not in inside | {name}:
                for text in told(source):
                    if f"outlast.{name}(" in text:
                        made |= self.of(text)
                made |= self._around(caller, inside | {name})
        return made
