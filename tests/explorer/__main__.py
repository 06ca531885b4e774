"""The long form: every pair of parts in every setting, trios, deaths; or a run played again.

``python -m tests.explorer`` explores all pairs; with a setting, those of it; with parts behind it, one cast.
``--trios`` explores trios of the verbs that matter most, ``--deaths`` lets whoever is on the way die.
``--part 2/10`` is the second tenth of what was asked for. ``--steps`` plays one run again and tells it.
Behind what fails stands the command that plays it again. The last line is JSON; the exit code is 1 when
something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable

from tests.explorer.acts import ACTS
from tests.explorer.casts import SHORT, Cast, pairs, parted, trios
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.scenes import SETTINGS
from tests.explorer.stage import Stage, stage
from tests.explorer.tally import Tally, keep

from outlast.store.postgres import PostgresStore
from outlast.testing.servers import EmbeddedPostgres

MOST = 1000
"""How many runs a cast gets at most, if nothing else is asked for."""
TOLD_SECONDS = 30.0
"""How often a line tells how far this is, where nobody looks at a terminal."""


def main(arguments: list[str] | None = None) -> int:
    """Explore as asked; answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("setting", nargs="?", choices=[*SETTINGS], help="where the task is")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"who meets there: {', '.join(sorted(ACTS))}"
    )
    parser.add_argument("--trios", action="store_true", help="three of the verbs that matter most")
    parser.add_argument("--deaths", action="store_true", help="let each player die at each of its stops")
    parser.add_argument("--short", action="store_true", help="only the casts of every run of the tests")
    parser.add_argument(
        "--with", dest="among", choices=[*ACTS], metavar="PART", help="only casts that have it"
    )
    parser.add_argument("--part", default="1/1", help="a part of the casts, such as 2/10")
    parser.add_argument("--most", type=int, default=MOST, help=f"runs of a cast at most (default: {MOST})")
    parser.add_argument(
        "--switches", type=int, help="play all runs with at most so many switches, and leave out none"
    )
    parser.add_argument("--steps", help="who takes each step of one run, such as AAB")
    parser.add_argument("--dies", type=int, help="of --steps, the number of the one in which its player dies")
    parser.add_argument("--keep", action="store_true", help="keep the counts for the docs")
    asked = parser.parse_args(arguments)
    for part in asked.parts:
        if part not in ACTS:
            parser.error(f"there is no part {part}")
    if asked.keep and asked.among:
        parser.error("only what is explored of every cast is kept")
    with EmbeddedPostgres(durable=False) as server:
        return asyncio.run(_explore(server.create_database(), asked))


async def _explore(url: str, asked: argparse.Namespace) -> int:
    store = PostgresStore(url)
    await store.migrate()
    await store.close()
    tallies: dict[str, Tally] = {}
    findings: list[str] = []
    async with stage(url) as made:
        for setting in [asked.setting] if asked.setting else SETTINGS:
            casts = _casts(setting, asked)
            if asked.steps:
                return await _again(made, setting, casts[0], asked.steps, asked.dies)
            tallies[setting] = await _all_of(made, setting, casts, asked, findings)
    for setting, tally in tallies.items():
        print(f"{setting:10} {tally}")
    for finding in findings:
        print(finding)
    if asked.keep:
        form = ("deaths, " if asked.deaths else "") + ("trios" if asked.trios else "pairs")
        keep(form, asked.part, tallies)
    whole = sum(tallies.values(), Tally())
    print(json.dumps(whole.told()))
    return 1 if findings else 0


async def _all_of(
    made: Stage, setting: str, casts: list[Cast], asked: argparse.Namespace, findings: list[str]
) -> Tally:
    """Explore casts in one setting."""
    props = await furnished(made, setting)
    tally = Tally()
    began = said = time.monotonic()
    for done, cast in enumerate(casts, start=1):
        acts = [ACTS[part](props) for part in cast]
        explorer = Explorer(made, props.scene.now, setting, acts, parted=parted(cast))
        if asked.switches is not None:
            finding = await explorer.plainly(asked.switches)
        else:
            finding = await (explorer.deaths if asked.deaths else explorer.explore)(asked.most)
        tally += Tally.of(explorer, plain=asked.switches is not None)
        if finding is not None:
            tally += Tally(findings=1)
            findings.append(finding.again)
            print(f"{finding}\n", flush=True)
        now = time.monotonic()
        if sys.stderr.isatty() or now - said >= TOLD_SECONDS:
            said = now
            text = f"{setting}: {done} of {len(casts)} casts, {tally.runs} runs, {len(findings)} findings"
            before, behind = ("\r", "") if sys.stderr.isatty() else ("", "\n")
            print(f"{before}{text}", end=behind, file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return tally + Tally(seconds=time.monotonic() - began)


def _casts(setting: str, asked: argparse.Namespace) -> list[Cast]:
    if asked.parts:
        return [tuple(asked.parts)]
    made: Iterable[Cast]
    if asked.short:
        made = SHORT.get(setting, ())
    else:
        made = (cast for _, cast in (trios if asked.trios else pairs)([setting]))
    number, of = (int(one) for one in asked.part.split("/"))
    return [cast for cast in made if asked.among in (None, *cast)][number - 1 :: of]


async def _again(made: Stage, setting: str, cast: Cast, steps: str, dies: int | None) -> int:
    props = await furnished(made, setting)
    acts = [ACTS[part](props) for part in cast]
    explorer = Explorer(made, props.scene.now, setting, acts, parted=parted(cast))
    run = await explorer.run(["ABC".index(step) for step in steps], dies=dies and dies - 1)
    says = await explorer.wrong(run)
    print(explorer.script(run))
    print(says or "this is right")
    return 1 if says else 0


if __name__ == "__main__":
    sys.exit(main())
