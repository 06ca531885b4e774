"""Running the storm, campaign after campaign, and telling how it went: to people, programs and a page."""

from __future__ import annotations

import asyncio
import dataclasses
import json as json_
import random
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outlast.drills.running import end_with_sigterm, folder_of, unplayable
from outlast.drills.storm.agents import Theirs
from outlast.drills.storm.campaign import WORKERS, Plan, Played, play
from outlast.drills.storm.judge import JUDGES
from outlast.drills.storm.misfortunes import MISFORTUNES, Family
from outlast.drills.storm.worker import Timers
from outlast.errors import ConfigurationError
from outlast.testing.recorder import RecorderError
from outlast.testing.servers import ServerError

__all__ = ["Asked", "as_json", "drawn_seed", "markdown", "replay", "run_drill"]

CAMPAIGN_S: Final = 30.0
"""Of storm in one campaign, at most."""
SHIPPED_S: Final = 90.0
"""The same under the timers that are shipped, whose leases are five times as long."""
EVERY: Final = 10
"""One in so many campaigns has the timers that are shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is to be.

    seed: of its first campaign; the next ones follow it by one each. seconds: of storm at least. wanted: how
    many misfortunes of each family at least. timers: of all campaigns; by turns for None. only: patterns of
    misfortunes. workers: in each campaign. theirs: somebody's own app instead of the storm's.
    """

    postgres: str | None
    seed: int
    seconds: float
    wanted: Mapping[Family, int] = dataclasses.field(default_factory=dict)
    timers: Timers | None = None
    only: Sequence[str] = ()
    workers: int = WORKERS
    theirs: Theirs | None = None


async def run_drill(asked: Asked, *, report: Path | None, json: bool, console: Console) -> int:
    """Let storms pass until there were as many as asked for; answer the exit code, 0 only when all is right.

    report: a file for the report in Markdown. json: print one JSON object and nothing else. Raises
    ConfigurationError for a database and for misfortunes that there are not. Leaves no process behind, and no
    file unless a campaign was judged to be wrong; then it ends with it, and says how to play it again.
    """
    known = [one.name for one in MISFORTUNES]
    if asked.only and not _known(asked.only, known):
        raise ConfigurationError(f"no misfortune fits {', '.join(asked.only)}; there are {', '.join(known)}")
    end_with_sigterm()
    shown = Console(quiet=True) if json else console
    played: list[Played] = []
    with folder_of("storm") as folder:
        try:
            with _bar(shown) as progress:
                while not played or (_left(asked, played) and not folder.keep):
                    place = folder.path / str(len(played) + 1)
                    place.mkdir()
                    bar = progress.add_task("", total=1.0, name=f"campaign {len(played) + 1}")
                    played.append(await play(_next(asked, played), place, partial(_advance, progress, bar)))
                    progress.remove_task(bar)
                    folder.keep = bool(played[-1].verdict.violations)
                    if not folder.keep:
                        shutil.rmtree(place, ignore_errors=True)
        except (RecorderError, ServerError) as error:
            return unplayable("storm", error)
        _tell(asked, played, folder.path if folder.keep else None, json, console)
        if report is not None:
            await asyncio.to_thread(report.write_text, markdown(as_json(asked, played)))
        return 1 if folder.keep else 0


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.fields[name]}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.description}"), console=console, transient=True)


def _advance(progress: Progress, bar: TaskID, what: str, share: float) -> None:
    progress.update(bar, description=what, completed=share)


def _known(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _next(asked: Asked, played: Sequence[Played]) -> Plan:
    seed = asked.seed + len(played)
    # By the seed, so that it is so as well when a campaign is played again.
    timers: Timers = asked.timers or ("shipped" if seed % EVERY == EVERY - 1 else "short")
    longest = SHIPPED_S if timers == "shipped" else CAMPAIGN_S
    still = asked.seconds - sum(one.storm_s for one in played)
    return Plan(
        seed=seed,
        # Where more is wanted by number than fits into the time that was asked for, the time goes on.
        seconds=min(longest, still) if still >= 1 else longest,
        timers=timers,
        postgres=asked.postgres,
        workers=asked.workers,
        only=asked.only,
        theirs=asked.theirs,
        wanted=_wanted(asked, played),
    )


def _left(asked: Asked, played: Sequence[Played]) -> bool:
    still = asked.seconds - sum(one.storm_s for one in played)
    return still >= 1 or any(_wanted(asked, played).values())


def _wanted(asked: Asked, played: Sequence[Played]) -> dict[Family, int]:
    counts = _families(played)
    return {family: max(0, count - counts[family]) for family, count in asked.wanted.items()}


def _families(played: Sequence[Played]) -> Counter[str]:
    happened = sum((one.happened for one in played), Counter[str]())
    families: Counter[str] = Counter()
    for one in MISFORTUNES:
        families[one.family] += happened[one.name]
    return families


# -- telling -------------------------------------------------------------------------------------------------


def as_json(asked: Asked, played: Sequence[Played]) -> dict[str, Any]:
    """Answer a run for programs, and for ``markdown``."""
    takeovers = {
        timers: sorted(s for one in played if one.plan.timers == timers for s in one.verdict.takeovers_s)
        for timers in ("short", "shipped")
    }
    verdicts = [one.verdict for one in played]
    violations = Counter(judge for verdict in verdicts for judge, _ in verdict.violations)
    storm_s = sum(one.storm_s for one in played)
    return {
        "verdict": "fail" if violations else "pass",
        "seed": asked.seed,
        "store": played[0].store.partition(",")[0],
        "campaigns": len(played),
        "seeds": [one.plan.seed for one in played],
        "storm_s": round(storm_s, 1),
        "misfortunes": dict(sum((one.happened for one in played), Counter[str]()).most_common()),
        "families": dict(_families(played)),
        "not_played": {name: why for one in played for name, why in one.not_played.items()},
        "accepted": sum(verdict.accepted for verdict in verdicts),
        "tasks": dict(sum((verdict.ended for verdict in verdicts), Counter[str]())),
        "tasks_per_s": round(sum(verdict.in_time for verdict in verdicts) / storm_s if storm_s else 0.0, 1),
        "calls": sum(verdict.calls for verdict in verdicts),
        "effects": sum(verdict.effects for verdict in verdicts),
        "answers_lost": sum(verdict.lost for verdict in verdicts),
        "history": sum(verdict.histories for verdict in verdicts),
        "rest_s": round(max(one.calm_s for one in played), 1),
        "takeover_s": {timers: _spread(found) for timers, found in takeovers.items() if found},
        "judges": {name: violations[name] for name in JUDGES},
        "violations": [
            {"seed": one.plan.seed, "judge": judge, "text": text}
            for one in played
            for judge, text in one.verdict.violations
        ],
    }


def _spread(found: Sequence[float]) -> dict[str, float | int]:
    def at(share: float) -> float:
        return round(found[min(len(found) - 1, int(share * len(found)))], 2)

    return {"tasks": len(found), "p50": at(0.5), "p99": at(0.99)}


def replay(plan: Plan) -> str:
    """Answer the command that plays a campaign again.

    The same dice are thrown; but the processes on which they fall may be faster or slower this time.
    """
    words = ["outlast drill storm", f"--seed {plan.seed}", f"--seconds {plan.seconds:.0f}"]
    words += [f"--timers {plan.timers}"]
    words += [f"--postgres {plan.postgres}"] if plan.postgres else []
    words += [f"--workers {plan.workers}"] if plan.workers != WORKERS else []
    words += [f"--only '{each}'" for each in plan.only]
    if plan.theirs is not None:
        input = json_.dumps(plan.theirs.input)
        words += [f"--app {plan.theirs.app} --agent {plan.theirs.agent} --input {shlex.quote(input)}"]
    return " ".join(words)


def _tell(asked: Asked, played: Sequence[Played], kept: Path | None, json: bool, console: Console) -> None:
    told = as_json(asked, played)
    if kept is not None:
        told |= {"kept": str(kept), "replay": replay(played[-1].plan)}
    if json:
        console.file.write(json_.dumps(told) + "\n")
        console.file.flush()
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _lines(told):
        table.add_row(name, value)
    console.print(table)
    for one in told["violations"]:
        console.print(Text(f"\n{one['judge'].replace('_', ' ')} (seed {one['seed']})", style="bold red"))
        console.print(f"  {one['text']}", markup=False)
    if kept is None:
        text = f"{told['campaigns']} campaigns by {len(JUDGES)} judges, {told['storm_s']:.0f} s of storm"
        console.print(Text.assemble(("\nPASS  ", "bold green"), text))
        return
    console.print(Text.assemble(("\nFAIL  ", "bold red"), f"everything is kept in {kept}"))
    console.print(f"again: {told['replay']}", markup=False, soft_wrap=True)


def _lines(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("store", told["store"]),
        ("campaigns", f"{told['campaigns']}, seeds {told['seeds'][0]} to {told['seeds'][-1]}"),
        ("storm", f"{told['storm_s']:.0f} s; {told['rest_s']:.1f} s to rest after it, at most"),
        ("happened", ", ".join(f"{count} {name}" for name, count in told["families"].items() if count)),
        *((f"no {name}", f"not played: {why}") for name, why in told.get("not_played", {}).items()),
        ("load held", f"{told['tasks_per_s']} tasks/s ended during it, {told['accepted']} accepted"),
        ("ended", ", ".join(f"{count} {state}" for state, count in told["tasks"].items())),
        *([("other side", f"{told['calls']} calls, {told['effects']} effects")] if told["calls"] else []),
        ("clients", f"{told['answers_lost']} questions without an answer, {told['history']} in histories"),
    ]
    for timers, spread in told["takeover_s"].items():
        of = f"p50 {spread['p50']} s, p99 {spread['p99']} s of {spread['tasks']}, {timers} timers"
        lines.append(("takeover", of))
    broken = {name: count for name, count in told["judges"].items() if count}
    lines.append(("judges", f"{len(told['judges'])}, {len(broken)} of them saw something"))
    return lines


def markdown(told: Mapping[str, Any]) -> str:
    """Write a report of ``as_json`` as a section of a page."""
    head = "Nothing was broken." if told["verdict"] == "pass" else "**Something was broken.**"
    lines = [f"{head} By {len(told['judges'])} judges.", "", "| what | seen |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in _lines(told)]
    lines += ["", "| misfortune | times |", "| --- | --- |"]
    lines += [f"| `{name}` | {count} |" for name, count in told["misfortunes"].items()]
    for one in told["violations"]:
        text = one["text"].replace("|", "\\|")
        lines += ["", f"- `{one['judge']}`, seed {one['seed']}: {text}"]
    return "\n".join(lines) + "\n"


def drawn_seed(seed: int | None) -> int:
    """Answer the seed that was asked for, or a new one."""
    return random.SystemRandom().randrange(1_000_000) if seed is None else seed
