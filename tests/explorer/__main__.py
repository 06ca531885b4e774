"""The long form: every pair of parts in every setting, or a run played again.

``python -m tests.explorer`` explores all pairs; with a setting, those of it; with parts behind it, one cast.
``--steps`` plays one run again and tells it. The last line is JSON; the exit code is 1 when something is
wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable

from tests.explorer.acts import ACTS
from tests.explorer.casts import SHORT, Cast, pairs
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.scenes import SETTINGS
from tests.explorer.stage import stage

from outlast.store.postgres import PostgresStore
from outlast.testing.servers import EmbeddedPostgres


def main(arguments: list[str] | None = None) -> int:
    """Explore as asked; answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("setting", nargs="?", choices=[*SETTINGS], help="where the task is")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"who meets there: {', '.join(sorted(ACTS))}"
    )
    parser.add_argument("--switches", type=int, default=1, help="from players who could go on (default: 1)")
    parser.add_argument("--steps", help="who takes each step of one run, such as AAB")
    parser.add_argument("--dies", type=int, help="of --steps, the number of the one in which its player dies")
    parser.add_argument("--deaths", action="store_true", help="let the first player die at each of its stops")
    parser.add_argument("--short", action="store_true", help="only the casts of every run of the tests")
    asked = parser.parse_args(arguments)
    for part in asked.parts:
        if part not in ACTS:
            parser.error(f"there is no part {part}")
    with EmbeddedPostgres(durable=False) as server:
        return asyncio.run(_explore(server.create_database(), asked))


async def _explore(url: str, asked: argparse.Namespace) -> int:
    store = PostgresStore(url)
    await store.migrate()
    await store.close()
    casts = runs = found = 0
    began = time.monotonic()
    async with stage(url) as made:
        for setting in [asked.setting] if asked.setting else SETTINGS:
            props = await furnished(made, setting)
            for cast in _casts(setting, asked):
                explorer = Explorer(made, props.scene.now, setting, [ACTS[part](props) for part in cast])
                if asked.steps:
                    return await _again(explorer, asked.steps, asked.dies)
                finding = await (explorer.deaths() if asked.deaths else explorer.explore(asked.switches))
                casts, runs = casts + 1, runs + explorer.runs
                if finding is not None:
                    found += 1
                    print(f"{finding}\n", flush=True)
                if sys.stderr.isatty():
                    print(f"\r{setting}: {casts} casts, {runs} runs", end="", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"casts": casts, "runs": runs, "findings": found, "seconds": seconds}))
    return 1 if found else 0


def _casts(setting: str, asked: argparse.Namespace) -> Iterable[Cast]:
    if asked.parts:
        return [tuple(asked.parts)]
    return SHORT.get(setting, ()) if asked.short else (cast for _, cast in pairs([setting]))


async def _again(explorer: Explorer, steps: str, dies: int | None) -> int:
    run = await explorer.run(["ABC".index(step) for step in steps], dies=dies and dies - 1)
    says = await explorer.wrong(run)
    print(explorer.script(run))
    print(says or "this is right")
    return 1 if says else 0


if __name__ == "__main__":
    sys.exit(main())
