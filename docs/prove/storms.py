"""The storms of the long proof: a few campaigns at a time, so that it may be stopped between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

from docs.prove.kept import CHANGED, ROOT, Kept, Row, code_now, row_of, where_and_when

__all__ = ["STORES", "Wanted", "part_of", "prove", "together"]

STORES: Final = {"sqlite": [], "postgres": ["--postgres", "embedded"]}
"""Where storms blow, and how the drill is told."""
PORTIONS: Final = 20
"""In how many pieces of about the same size a whole proof is done."""

Told = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to happen on one store, at least. seconds: of storm; the others are how often."""

    seconds: float
    kills: int
    pauses: int
    restarts: int

    def without(self, told: Told | None) -> Wanted:
        """Answer what is left of it after this."""
        if told is None:
            return self
        seen = told["families"]
        return Wanted(
            seconds=max(0.0, self.seconds - told["storm_s"]),
            kills=max(0, self.kills - seen["kills"]),
            pauses=max(0, self.pauses - seen["pauses"]),
            restarts=max(0, self.restarts - seen["restarts"]),
        )

    def at_most(self, whole: Wanted) -> Wanted:
        """Answer one portion of the whole, or what is left where that is less."""
        return Wanted(
            seconds=min(self.seconds, whole.seconds / PORTIONS),
            kills=min(self.kills, -(-whole.kills // PORTIONS)),
            pauses=min(self.pauses, -(-whole.pauses // PORTIONS)),
            restarts=min(self.restarts, -(-whole.restarts // PORTIONS)),
        )


def prove(kept: Kept, store: str, wanted: Wanted, *, seed: int, afresh: bool) -> bool:
    """Let storms pass over a store until there was as much as wanted, with what is on record; answer whether
    nothing was broken. seed: of the first campaign.

    It ends with the first portion in which something broke. Such a portion counts for nothing; other code
    plays it again before it goes on.
    """
    if store == "sqlite":
        wanted = Wanted(seconds=wanted.seconds, kills=wanted.kills, pauses=wanted.pauses, restarts=0)
    part = part_of(store)
    rows = [] if afresh else kept.rows(part)
    while True:
        # Each portion is played by processes of its own, so by the code that stands there now.
        code, when, began = code_now(), where_and_when(), _load()
        again = next((one for row in rows for one in row.get("broken", ()) if one["again"] is None), None)
        if again is not None and again["code"] == code and not code.endswith(CHANGED):
            return False
        left = wanted.without(together(_counted(rows)))
        if again is None and not any(astuple(left)):
            return True
        if again is None:
            seeds = [each for told in (*_counted(rows), *_broken(rows)) for each in told["seeds"]]
            portion, first = left.at_most(wanted), max([seed - 1, *seeds]) + 1
        else:
            portion, first = Wanted(**again["wanted"]), again["told"]["seed"]
        told = _play(portion, store, first)
        row = row_of(rows, code, lambda _: True, {"told": None, "broken": [], "load": [began, began]})
        if again is not None:
            again["again"] = code
        if told["violations"]:
            one = {"code": code, "wanted": asdict(portion), "told": told, "again": None}
            row["broken"] = [*row.get("broken", []), one]
        else:
            row["told"] = together([*([row["told"]] if row["told"] else []), told])
        row["load"] = [min(began, *row["load"]), max(_load(), *row["load"])]
        row |= when
        kept.keep(part, rows)
        _tell(store, wanted, together(_counted(rows)), told["violations"])


def _counted(rows: Iterable[Row]) -> list[Told]:
    """What came of the portions in which nothing broke, for each row that has any."""
    return [row["told"] for row in rows if row["told"]]


def _broken(rows: Iterable[Row]) -> list[Told]:
    """What came of each portion in which something broke."""
    return [one["told"] for row in rows for one in row.get("broken", ())]


def part_of(store: str) -> str:
    """Name the part of the proof that has the rows of a store."""
    return f"storms on {store}"


def together(parts: Iterable[Told]) -> Told | None:
    """Answer several reports of the drill as one, None for none.

    What was counted is added up. Of how long tasks took to be taken over, the longest median and the longest
    99th percentile of any of them are told: those of all together are not longer.
    """
    whole: Told | None = None
    for told in parts:
        whole = told if whole is None else _both(whole, told)
    return whole


def _both(one: Told, other: Told) -> Told:
    storm_s = one["storm_s"] + other["storm_s"]
    ended = one["tasks_per_s"] * one["storm_s"] + other["tasks_per_s"] * other["storm_s"]
    both = {
        name: one[name] + other[name]
        for name in (
            "campaigns",
            "seeds",
            "accepted",
            "calls",
            "effects",
            "answers_lost",
            "history",
            "violations",
        )
    }
    for name in ("misfortunes", "families", "tasks", "judges"):
        both[name] = dict(_added(one[name], other[name]))
    return {
        **both,
        "verdict": "fail" if both["violations"] else "pass",
        "seed": one["seed"],
        "store": one["store"],
        "storm_s": round(storm_s, 1),
        "tasks_per_s": round(ended / storm_s, 1) if storm_s else 0.0,
        "not_played": one["not_played"] | other["not_played"],
        "rest_s": max(one["rest_s"], other["rest_s"]),
        "takeover_s": {
            timers: _longest(
                [told["takeover_s"][timers] for told in (one, other) if timers in told["takeover_s"]]
            )
            for timers in ("short", "shipped")
            if timers in one["takeover_s"] or timers in other["takeover_s"]
        },
    }


def _added(one: dict[str, int], other: dict[str, int]) -> Counter[str]:
    counts = Counter(one)
    counts.update(other)
    return counts


def _longest(spreads: list[Told]) -> Told:
    return {
        "tasks": sum(spread["tasks"] for spread in spreads),
        "p50": max(spread["p50"] for spread in spreads),
        "p99": max(spread["p99"] for spread in spreads),
    }


def _play(wanted: Wanted, store: str, seed: int) -> Told:
    """Run the drill, and answer what it told. Raises SystemExit when it told nothing."""
    command = [sys.executable, "-m", "outlast", "drill", "storm", "--json", *STORES[store]]
    command += ["--seed", str(seed), "--seconds", str(max(1.0, wanted.seconds))]
    command += ["--kills", str(wanted.kills), "--pauses", str(wanted.pauses)]
    command += ["--restarts", str(wanted.restarts)]
    print(" ".join(command[1:]), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    try:
        told: Told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"it told nothing (exit code {done.returncode})") from None
    return told


def _tell(store: str, wanted: Wanted, told: Told | None, violations: list[Told]) -> None:
    seen = {} if told is None else told["families"]
    kinds = ", ".join(
        f"{seen.get(name, 0)} of {getattr(wanted, name)} {name}"
        for name in ("kills", "pauses", "restarts")
        if getattr(wanted, name)
    )
    print(f"storms on {store}: {kinds}, {len(violations)} violations in the last portion", flush=True)
    for one in violations:
        print(f"  seed {one['seed']}, {one['judge']}: {one['text']}", flush=True)


def _load() -> float:
    """Answer how many processes wanted a core in the last minute: of other people as well."""
    return round(os.getloadavg()[0], 1)
