"""Look for deliberate faults: one after the other, schedule after schedule, until a promise is seen broken.

``python -m tests.defects.runner`` runs them all and prints, as its last line, ``{"caught": n, "of": n}``.
With ``--write`` it keeps what it measured in ``docs/explanation/proof.json``, from which the table in the
docs is made.

The schedules are those of the world's own mixture, as it is, in the order of their seeds. Where a fault shows
in a corner only (``Defect.world``), those that have nothing of that corner are passed over, and counted as if
they had been run and had shown nothing: so a fault is found in as many schedules of the mixture as is told,
or fewer. ``--every`` passes over none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from tests.defects.catalogue import DEFECTS, NOT_CAUGHT, Defect, Patch

from outlast.testing.simulation import Faults, database, run_schedule, schedule, varied
from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.ingredients import INGREDIENTS

BUDGET = 20_000
"""Schedules in which a fault has to be found."""
PIECE = 25
"""How many schedules are run before what was broken is mended for a moment."""
RESULT = Path(__file__).parents[2] / "docs" / "explanation" / "proof.json"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of looking for one fault. schedules: how many of the mixture it took at most. looked: how
    many of these were run. by: the judges that saw it. seed: the schedule in which they did."""

    name: str
    says: str
    caught: bool
    schedules: int
    looked: int
    seconds: float
    seed: int | None = None
    by: tuple[str, ...] = ()
    reason: str = ""


def look_for(
    defect: Defect, *, budget: int = BUDGET, seconds: float = 1e9, first: int = 1, every: bool = False
) -> Found:
    """Look for one fault in the world's own mixture. budget, seconds: after how many schedules of it, or how
    long, to give up. every: whether to run those as well that have nothing of its corner."""
    began = time.perf_counter()
    drawn = ((seed, varied(seed)) for seed in range(first, first + budget))
    likely = ((seed, given) for seed, given in drawn if every or may_show(defect, given))
    looked, last = 0, first + budget - 1
    for seed, told, known in _told(defect, likely):
        looked += 1
        violations = tuple(dict.fromkeys((*(each for each in told if defect.seen in each), *told)))
        if violations and defect.seen in violations[0] and not known():
            return Found(
                name=defect.name,
                says=defect.says,
                caught=True,
                schedules=seed - first + 1,
                looked=looked,
                seconds=round(time.perf_counter() - began, 1),
                seed=seed,
                by=tuple(dict.fromkeys(judge_of(each) for each in violations))[:4],
            )
        if time.perf_counter() - began > seconds:
            last = seed
            break
    return Found(
        name=defect.name,
        says=defect.says,
        caught=False,
        schedules=last - first + 1,
        looked=looked,
        seconds=round(time.perf_counter() - began, 1),
        reason="not found within its budget",
    )


Drawn = tuple[int, dict[str, Any]]


def _told(
    defect: Defect, drawn: Iterator[Drawn]
) -> Iterator[tuple[int, tuple[str, ...], Callable[[], bool]]]:
    """Run schedules with the fault in the product; yield each seed, what was seen, and whom to ask whether
    the product as it is shows something there as well: that is no merit of whoever looks for the fault."""
    while piece := list(itertools.islice(drawn, PIECE)):
        # How long a calm schedule is has to be known before anything is broken.
        for _, given in piece:
            schedule._span(given["workers"], given["tasks"], tuple(given["agents"]))
        for seed, given in piece:
            with pytest.MonkeyPatch.context() as monkeypatch:
                defect.apply(Patch(monkeypatch))
                told = run_schedule(seed, **given).violations
            yield seed, told, lambda seed=seed, given=given: bool(run_schedule(seed, **given).violations)  # type: ignore[misc]
    database._idle.clear()


def may_show(defect: Defect, given: dict[str, Any]) -> bool:
    """Whether a schedule has what a fault shows in: an agent of those shapes, and either the ingredient or,
    where it needs none, every kind of misfortune."""
    if not set(given["agents"]) & set(defect.world.get("agents", AGENTS)):
        return False
    needs: Faults = defect.world.get("faults", Faults.calm())
    names = [each.name for each in fields(Faults) if each.default == 0 and getattr(needs, each.name)]
    more = [name for name in names if any(name in ingredient for ingredient in INGREDIENTS)]
    return all(getattr(given["faults"], name) for name in more or names)


_NAMED = re.compile(r"^([a-z]+(?:_[a-z]+)+): ")
_SAID = (
    ("left before its intent", "the tool service: intent before call"),
    ("its intent is not that", "the tool service: the intent of this very attempt"),
    ("it was answered otherwise", "the store's other eyes: a batch is applied once"),
    ("and nobody knows", "the ledger: no answer is lost that a living worker has"),
    ("while the task waited", "agents: signals are heard in time"),
    ("in calm weather", "the ledger: no outcome is lost where nothing went wrong"),
    ("under epoch", "the store's other eyes: only the current epoch writes"),
    ("as it was in turn", "the store's other eyes: what is settled is what was seen"),
    ("and was told of", "people: one task for each key"),
    ("left alone no more", "the tool service: it is left alone as long as it asks for"),
    ("over its budget", "the store's other eyes: no intent over a budget"),
    ("could not go on", "people: they are told what they can live with"),
    ("did not come to rest", "the clock: every task ends"),
    ("died by itself", "the worker: it does not die by itself"),
    ("the service made", "the tool service: results are true"),
    ("was refused:", "people: a signal that is sent again is the same"),
    ("it was sent", "people: signals are heard once"),
    ("has not seen what", "people: decisions are for what was seen"),
    ("nobody had agreed", "people: consent before the call"),
    ("cancel was acknowledged", "people: an acknowledged cancel is final"),
    ("lease that was lost", "the tool service: nothing is sent under a lost lease"),
    ("before it was forked", "the tool service: a fork does nothing again"),
    ("while a switch stands", "the store's other eyes: no intent while a switch stands"),
    ("were taken back", "people: rules stand as they were told"),
    ("was let through", "the store's other eyes: no intent against policy and rules"),
    ("adopt", "the store's other eyes: a task is adopted as it was seen"),
    ("its code asked for", "the journal: no answer is for another question"),
    ("schedule", "the timetable: each instant fires once"),
    ("message", "the broker: what is committed leaves, in order"),
    ("the stream of", "clients: streams have no gaps"),
    ("a client or the script failed", "clients: they are told the truth"),
    ("warned:", "the worker: it has nothing to warn of"),
    ("accident:", "the loop: nothing is raised that nobody hears"),
    ("has no end", "people: every accepted task ends"),
    ("ended as", "people: tasks end as they may"),
)


def judge_of(violation: str) -> str:
    """Name the judge that a violation comes from."""
    named = _NAMED.match(violation)
    if named:
        return named[1]
    return next((judge for text, judge in _SAID if text in violation), violation[:60])


def main(arguments: list[str] | None = None) -> int:
    """Look for the faults that are asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects.runner", description=__doc__)
    parser.add_argument("names", nargs="*", help="which faults; all by default")
    parser.add_argument("--budget", type=int, default=BUDGET, help="schedules of the mixture, for each")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--every", action="store_true", help="run those too that have nothing of its corner")
    parser.add_argument("--write", action="store_true", help="keep what was measured for the docs")
    asked = parser.parse_args(arguments)
    found: list[Found] = []
    for name in asked.names or DEFECTS:
        one = look_for(
            DEFECTS[name],
            budget=asked.budget,
            seconds=asked.seconds,
            first=asked.seed,
            every=asked.every,
        )
        found.append(one)
        how = f"{', '.join(one.by)} (seed {one.seed})" if one.caught else f"NOT CAUGHT: {one.reason}"
        print(f"{one.name}: {how}; {one.schedules} schedules ({one.looked} run), {one.seconds} s", flush=True)
        if asked.write:
            _keep(found, asked.budget, asked.seconds)
    caught = sum(one.caught for one in found)
    print(json.dumps({"caught": caught, "of": len(found)}))
    return 0 if caught == len(found) else 1


def _keep(found: list[Found], budget: int, seconds: float) -> None:
    """Keep what was measured; faults that were not looked for this time stay as they were."""
    before: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"defects": []}
    rows = {row["name"]: row for row in before["defects"] if row["name"] in DEFECTS}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    when = {"measured": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit}
    rows.update({one.name: {**asdict(one), **when} for one in found})
    told = {
        **when,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "budget": {"schedules": budget, "seconds": seconds if seconds < 1e9 else None},
        "defects": [rows[name] for name in DEFECTS if name in rows],
        "not_possible": NOT_CAUGHT,
    }
    RESULT.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
