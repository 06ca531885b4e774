"""The worked example, told five times: something breaks at the worst moment, and one ticket is made.

Purpose: show a person, and a test, what happens in every crash window around a side effect. Workers are
processes and die by SIGKILL; the ticket service is another process, and its log is the judge.

    before_intent     killed before the intent is on disk: planned afresh
    before_outcome    killed after the ticket was made, before its outcome is stored: asked by key
    lost_answer       the ticket is made, its answer never comes: asked by key
    frozen_sender     frozen after the last look at its lease, thawed when another has finished: same key
    twin_submissions  two clients submit one request at the same moment: one task

Verdict: a window passes when the ticket service made one ticket, by one POST (the frozen sender's may be a
second one, under the same key), the task succeeded with that ticket, and the fault was really done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from outlast.drills.database import database
from outlast.drills.demo_app import AMOUNT, INVOICE, LEASE_S, LIMIT, build
from outlast.drills.fleet import Fleet, FleetError
from outlast.drills.stage import Check, Played, Seen, Stage, environ_of
from outlast.errors import OutlastError
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Recorder, RecorderError, Rule
from outlast.testing.servers import ServerError

__all__ = ["WINDOWS", "Window", "run_demo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One place for a fault. title: what is done. lesson: what is right, in a sentence."""

    name: str
    title: str
    lesson: str
    play: Callable[[Stage], Awaitable[Played]]


# -- the windows ---------------------------------------------------------------------------------------------


async def _before_intent(stage: Stage) -> Played:
    first = await stage.worker("worker A", Trigger(point="effects.before_intent", action="kill"))
    task = await stage.submit()
    died = await stage.killed(first, "effects.before_intent")
    second = await stage.worker("worker B")
    await stage.ended(task)
    await second.stop()
    return Played(task=task, checks=(died, await _attempts(stage, task, "lost", "succeeded")))


async def _before_outcome(stage: Stage) -> Played:
    first = await stage.worker("worker A", Trigger(point="effects.before_outcome", action="kill"))
    task = await stage.submit()
    died = await stage.killed(first, "effects.before_outcome")
    second = await stage.worker("worker B")
    await stage.ended(task)
    await second.stop()
    asked = await _asked_by_key(stage, task)
    return Played(task=task, checks=(died, asked, await _attempts(stage, task, "lost", "succeeded")))


async def _lost_answer(stage: Stage) -> Played:
    await stage.recorder.plan(Rule.act_then_hang())
    worker = await stage.worker("worker A", timeout_s=1.0)
    task = await stage.submit()
    await stage.ended(task)
    await worker.stop()
    calls = await stage.calls()
    hung = Check(
        what="how the POST was answered",
        expected=["hang"],
        seen=[c.ending for c in calls if c.method == "POST"],
    )
    asked = await _asked_by_key(stage, task)
    return Played(task=task, checks=(hung, asked, await _attempts(stage, task, "succeeded")))


async def _frozen_sender(stage: Stage) -> Played:
    first = await stage.worker("worker A", Trigger(point="http.before_send", action="freeze"), calm=True)
    task = await stage.submit()
    await stage.frozen(first, "http.before_send")
    second = await stage.worker("worker B")
    await stage.ended(task)
    first.thaw()
    stage.note("worker A", "thaws: SIGCONT, and sends what it was about to send")
    await stage.recorder.wait_for(calls=2, method="POST", key=f"{task}:create_ticket#1", ended=True)
    await first.stop()
    await second.stop()
    return Played(task=task, most_posts=2, checks=(await _attempts(stage, task, "lost", "succeeded"),))


async def _twin_submissions(stage: Stage) -> Played:
    key = f"{INVOICE}-{stage.window}"
    worker = await stage.worker("worker A")
    clients = [await stage.client(f"client {letter}", key) for letter in "AB"]
    for client in clients:
        await client.tell("go")
    said = [await client.says("submitted") for client in clients]
    for client, answer in zip(clients, said, strict=True):
        what = "the same task again (replayed)" if answer.data["replayed"] else "202, stored"
        stage.note(client.name, f"{what}: {answer.data['task']}", at=answer.at)
        await client.exited()
    task = str(said[0].data["task"])
    await stage.ended(task)
    await worker.stop()
    tasks = [one.id for one in await stage.app.list() if one.key == key]
    return Played(
        task=task,
        checks=(
            Check(what="tasks of that key", expected=[task], seen=tasks),
            Check(what="task that client B got", expected=task, seen=said[1].data["task"]),
            Check(
                what="answers that were replays",
                expected=[False, True],
                seen=sorted(bool(answer.data["replayed"]) for answer in said),
            ),
            await _attempts(stage, task, "succeeded"),
        ),
    )


async def _attempts(stage: Stage, task: str, *expected: str) -> Check:
    return Check(what="how its attempts ended", expected=list(expected), seen=await stage.ends(task))


async def _asked_by_key(stage: Stage, task: str) -> Check:
    """The unknown was settled by asking, and not by sending again."""
    asked = [call.query.get("idempotency_key") for call in await stage.calls() if call.method == "GET"]
    return Check(what="questions asked by key", expected=[f"{task}:create_ticket#1"], seen=asked)


WINDOWS = (
    Window(
        name="before_intent",
        title="killed before the intent is on disk",
        lesson="nothing was recorded, so nothing was sent: the successor plans it afresh",
        play=_before_intent,
    ),
    Window(
        name="before_outcome",
        title="killed after the ticket was made, before its outcome is stored",
        lesson="the successor finds an intent without an outcome, asks by key, and does not send again",
        play=_before_outcome,
    ),
    Window(
        name="lost_answer",
        title="the ticket is made, its answer never comes",
        lesson="a timeout is not a failure: unknown, asked by key, found, succeeded",
        play=_lost_answer,
    ),
    Window(
        name="frozen_sender",
        title="frozen after the last look at its lease, thawed when another has finished",
        lesson="the stale worker's request goes out, its key makes it harmless, and its writes are refused",
        play=_frozen_sender,
    ),
    Window(
        name="twin_submissions",
        title="two clients submit the same request at the same moment",
        lesson="one key, one task, one ticket",
        play=_twin_submissions,
    ),
)


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
        return {
            "name": self.window.name,
            "tickets": self.seen.tickets,
            "posts": self.seen.posts,
            "task_state": self.seen.task_state,
            "attempts": self.seen.attempts,
            "seconds": round(self.seconds, 2),
        }


async def run_demo(
    postgres: str | None, json: bool, console: Console, *, windows: Sequence[Window] = WINDOWS
) -> int:
    """Play the windows, tell what happened and judge it; answer the exit code.

    postgres: None for an SQLite file, ``embedded``, or the URL of a server to make a database on. json: print
    one JSON object and nothing else. Answers 0 when every window passed, 1 when one did not or could not be
    played. Raises ConfigurationError and StoreUnavailable for a database that cannot be used. Leaves no
    process behind, however it ends, and no file unless a window failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="outlast-demo-"))
    keep = False
    try:
        results = await _play(postgres, folder, Console(quiet=True) if json else console, windows)
        passed = all(result.passed for result in results)
        keep = not passed
        if json:
            _print_json(results, passed, console)
        else:
            _conclude(results, passed, folder, console)
        return 0 if passed else 1
    except (RecorderError, ServerError) as error:
        Console(stderr=True).print(f"the demo cannot be played here: {error}", markup=False)
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _play(
    postgres: str | None, folder: Path, console: Console, windows: Sequence[Window]
) -> list[_Result]:
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
        app = build(store.url, recorder.url)
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        _introduce(console, store.shown)
        results = []
        for number, window in enumerate(windows, 1):
            console.print()
            console.rule(Text(f"{number}/{len(windows)}  {window.title}", style="bold"), align="left")
            tell = functools.partial(_progress, status, number)
            async with Fleet(folder) as fleet:
                stage = Stage(
                    fleet=fleet,
                    recorder=recorder,
                    app=app,
                    environ=environ_of(store.url, recorder.url),
                    tell=tell,
                )
                result = await _one(stage, window)
            results.append(result)
            _tell(result, folder, console)
        return results


def _progress(status: Status, number: int, what: str) -> None:
    status.update(Text(f"window {number}: {what}"))


async def _one(stage: Stage, window: Window) -> _Result:
    started = time.monotonic()
    await stage.begin(window.name)
    try:
        seen = await stage.seen(await window.play(stage))
    except (OutlastError, FleetError, RecorderError, TimeoutError) as error:
        # A window that does not get to its end has failed; the next ones are played all the same.
        seen = await stage.partly_seen(f"{type(error).__name__}: {error}")
    return _Result(window=window, seen=seen, seconds=time.monotonic() - started)


def _introduce(console: Console, store: str) -> None:
    console.print(
        f"An agent files a reimbursement ticket for {INVOICE}: {AMOUNT}, over the limit by {AMOUNT - LIMIT}.",
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
_TONES = {"good": "green", "bad": "red"}
_SPEAKERS = {"tickets": "cyan", "task": "bold", "client": "magenta"}


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
    for check in seen.checks:
        if not check.holds:
            console.print(
                f"      {check.what}: expected {check.expected!r}, seen {check.seen!r}",
                markup=False,
                highlight=False,
            )
    console.print(
        f"      look at {folder}: a log of each process, tickets.db (the service's log), the store",
        markup=False,
        highlight=False,
    )


def _conclude(results: Sequence[_Result], passed: bool, folder: Path, console: Console) -> None:
    seconds = sum(result.seconds for result in results)
    console.print()
    console.rule(style="dim")
    if passed:
        windows = f"{len(results)} window{'s' * (len(results) != 1)}"
        text = f"{windows}, one ticket in each by the service's own log, {seconds:.0f} s"
        console.print(Text.assemble(("PASS  ", "bold green"), text))
        return
    failed = [result.window.name for result in results if not result.passed]
    console.print(
        Text.assemble(("FAIL  ", "bold red"), f"{', '.join(failed)}; everything is kept in {folder}")
    )


def _print_json(results: Sequence[_Result], passed: bool, console: Console) -> None:
    verdict = {"verdict": "pass" if passed else "fail", "windows": [result.as_json() for result in results]}
    console.file.write(json.dumps(verdict) + "\n")
    console.file.flush()
