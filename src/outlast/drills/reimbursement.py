"""The worked example, told: something breaks at the worst moment, and one ticket is made.

Purpose: show a person, and a test, what happens in every crash window around a side effect (``windows``),
with a ticket service that honours keys and with one that does not. Workers are processes and die by SIGKILL;
the ticket service is another process, and its log is the judge.

Verdict: a window passes when the ticket service made one ticket, by one POST (where keys are honoured the
frozen sender's may be a second one, under the same key), the task succeeded with that ticket (or ended as
cancelled or failed, where that is what the window is about), it was settled as its effect class has it, and
the fault was really done. After the windows every checker is asked about the store and the whole log, once:
the demo passes when no window failed and no checker says no.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from outlast.app import Outlast
from outlast.drills.database import database
from outlast.drills.demo_app import AMOUNT, LEASE_S, LIMIT, DemoEffect, build
from outlast.drills.fleet import Fleet, FleetError
from outlast.drills.judging import what_checkers_say
from outlast.drills.running import folder_of, problems, unplayable
from outlast.drills.stage import Check, Seen, Stage, environ_of
from outlast.drills.windows import WINDOWS, Window
from outlast.errors import OutlastError
from outlast.testing.recorder import Recorder, RecorderError
from outlast.testing.servers import ServerError

__all__ = ["WINDOWS", "Window", "run_demo"]


# -- the telling ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    window: Window
    seen: Seen
    seconds: float

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.seen.checks)

    def as_json(self) -> dict[str, object]:
        told: dict[str, object] = {
            "name": self.window.name,
            "tickets": self.seen.tickets,
            "posts": self.seen.posts,
            "task_state": self.seen.task_state,
            "attempts": self.seen.attempts,
            "seconds": round(self.seconds, 2),
        }
        if not self.passed:
            told["problems"] = problems(self.seen.checks)
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    """All that was played. checks: what each checker says of the whole."""

    results: Sequence[_Result]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results) and all(check.holds for check in self.checks)

    def as_json(self) -> dict[str, object]:
        return {
            "verdict": "pass" if self.passed else "fail",
            "windows": [result.as_json() for result in self.results],
            "checkers": {"asked": len(self.checks), "problems": problems(self.checks)},
        }


async def run_demo(
    postgres: str | None, json: bool, console: Console, *, windows: Sequence[Window] = WINDOWS
) -> int:
    """Play the windows, tell what happened and judge it; answer the exit code.

    postgres: None for an SQLite file, ``embedded``, or the URL of a server to make a database on. json: print
    one JSON object and nothing else. Answers 0 when every window passed and every checker agrees, 1 when
    something did not or could not be played. Raises ConfigurationError and StoreUnavailable for a database
    that cannot be used. Leaves no process behind, however it ends, and no file unless something failed.
    """
    with folder_of("demo") as folder:
        try:
            played = await _play(postgres, folder.path, Console(quiet=True) if json else console, windows)
        except (RecorderError, ServerError) as error:
            return unplayable("demo", error)
        folder.keep = not played.passed
        if json:
            _print_json(played, console)
        else:
            _conclude(played, folder.path, console)
        return 0 if played.passed else 1


async def _play(postgres: str | None, folder: Path, console: Console, windows: Sequence[Window]) -> _Demo:
    me = asyncio.current_task()
    assert me is not None
    # An ordinary kill ends the demo as Ctrl-C does: its processes first.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    async with contextlib.AsyncExitStack() as stack:
        status = stack.enter_context(console.status("starting the ticket service and the store"))
        recorder = Recorder(database=folder / "tickets.db")
        stack.callback(recorder.stop)
        recorder.start()
        store = await stack.enter_async_context(database(postgres, folder))
        apps: dict[DemoEffect, Outlast] = {}
        for effect in dict.fromkeys(window.effect for window in windows):
            apps[effect] = build(store.url, recorder.url, effect=effect)
            await apps[effect].open(migrate=True)
            stack.push_async_callback(apps[effect].close)
        _introduce(console, store.shown)
        results: list[_Result] = []
        accepted: set[tuple[str, str]] = set()
        for number, window in enumerate(windows, 1):
            console.print()
            if not results or results[-1].window.effect != window.effect:
                console.print(Text(_SERVICES[window.effect], style="bold magenta"))
            console.rule(Text(f"{number}/{len(windows)}  {window.title}", style="bold"), align="left")
            tell = functools.partial(_progress, status, number)
            async with Fleet(folder) as fleet:
                stage = Stage(
                    fleet=fleet,
                    recorder=recorder,
                    app=apps[window.effect],
                    effect=window.effect,
                    invoice=window.invoice,
                    window=window.name,
                    environ=environ_of(store.url, recorder.url, window.effect),
                    tell=tell,
                    accepted=accepted,
                )
                result = await _one(stage, window)
            results.append(result)
            _tell(result, folder, console)
        status.update(Text("asking the checkers"))
        checks = await what_checkers_say(
            apps[windows[-1].effect].store,
            await recorder.log(),
            accepted=accepted,
            # A window that failed may have left anything.
            quiet=all(result.passed for result in results),
        )
        return _Demo(results=results, checks=checks)


def _progress(status: Status, number: int, what: str) -> None:
    status.update(Text(f"window {number}: {what}"))


async def _one(stage: Stage, window: Window) -> _Result:
    started = time.monotonic()
    await stage.begin()
    try:
        seen = await stage.seen(await window.play(stage))
    except (OutlastError, FleetError, RecorderError, TimeoutError) as error:
        # A window that does not get to its end has failed; the next ones are played all the same.
        seen = await stage.partly_seen(f"{type(error).__name__}: {error}")
    return _Result(window=window, seen=seen, seconds=time.monotonic() - started)


def _introduce(console: Console, store: str) -> None:
    console.print(
        f"An agent files a reimbursement ticket for an invoice of {AMOUNT}: {AMOUNT - LIMIT} over the limit.",
        highlight=False,
    )
    console.print(
        f"Everything is real: worker processes, SIGKILL, SIGSTOP, a ticket service. Store: {store}.\n"
        f"Leases last {LEASE_S:g} s here instead of 15 s, so that a dead worker's is over soon.",
        style="dim",
        highlight=False,
    )


# A task's id inside a key: its last characters are enough to tell it by.
_TASK = re.compile(r"task_[0-9a-z]+([0-9a-z]{6})(?=:)")
_SERVICES: dict[DemoEffect, str] = {
    "keyed": "The ticket service honours idempotency keys (effect: keyed)",
    "queryable": "It ignores them, and can be asked by invoice (effect: queryable)",
    "manual": "It ignores them, and cannot be asked (effect: manual)",
}
_TONES = {"good": "green", "bad": "red"}
_SPEAKERS = {
    "tickets": "cyan",
    "task": "bold",
    "client": "magenta",
    "queue": "bold red",
    "person": "bold blue",
    "supervisor": "bold blue",
}


def _tell(result: _Result, folder: Path, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    lines = result.seen.lines
    for line in lines:
        speaker = line.who.split()[0]
        table.add_row(
            f"{line.at - lines[0].at:+.3f} s",
            Text(line.who, style=_SPEAKERS.get(speaker, "yellow")),
            Text(_TASK.sub(r"…\1", line.what), style=_TONES.get(line.tone, "")),
        )
    console.print(table)
    seen = result.seen
    facts = (
        f"{seen.tickets} ticket{'s' * (seen.tickets != 1)}, {seen.posts} POST{'s' * (seen.posts != 1)},"
        f" task {seen.task_state} in {seen.attempts} attempt{'s' * (seen.attempts != 1)},"
        f" {result.seconds:.1f} s"
    )
    if result.passed:
        console.print(Text.assemble(("PASS  ", "bold green"), facts, (f"  ({result.window.lesson})", "dim")))
        return
    console.print(Text.assemble(("FAIL  ", "bold red"), facts))
    _tell_broken(seen.checks, console)
    console.print(
        f"      look at {folder}: a log of each process, tickets.db (the service's log), the store",
        markup=False,
        highlight=False,
    )


def _tell_broken(checks: Sequence[Check], console: Console) -> None:
    for check in checks:
        if not check.holds:
            console.print(
                f"      {check.what}: expected {check.expected!r}, seen {check.seen!r}",
                markup=False,
                highlight=False,
            )


def _conclude(played: _Demo, folder: Path, console: Console) -> None:
    results = played.results
    seconds = sum(result.seconds for result in results)
    console.print()
    console.rule(style="dim")
    if played.passed:
        windows = f"{len(results)} window{'s' * (len(results) != 1)}"
        text = (
            f"{windows}, one ticket in each by the service's own log, {seconds:.0f} s; every checker agrees"
        )
        console.print(Text.assemble(("PASS  ", "bold green"), text))
        return
    failed = [result.window.name for result in results if not result.passed]
    if not all(check.holds for check in played.checks):
        failed.append("the checkers")
    console.print(
        Text.assemble(("FAIL  ", "bold red"), f"{', '.join(failed)}; everything is kept in {folder}")
    )
    _tell_broken(played.checks, console)


def _print_json(played: _Demo, console: Console) -> None:
    console.file.write(json.dumps(played.as_json()) + "\n")
    console.file.flush()
