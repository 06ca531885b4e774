"""The drills: the same faults for every engine, at the same moments, by the other side's signals.

``lost-answer``: the service makes the ticket and breaks the connection. ``killed``: the process is killed
(SIGKILL) while the answer is on its way; a successor takes over. ``stale-writer``: the process is frozen
(SIGSTOP) there instead; the successor finishes; the old one thaws and writes what it knows. ``stale-sender``:
the process freezes just before it sends; the successor finishes; the old one thaws and sends.
``lagging-query``: the answer is lost, and the service shows a new ticket only after ``LAG_S``.
``asks-again``: nothing breaks, but the agent asks for the same ticket twice, as two calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers.crew import Player
from bench.peers.judge import Verdict, judge
from bench.peers.part import LAG_S, Part, Report
from outlast.testing.recorder import Recorder, Rule

__all__ = ["DRILLS", "Played", "Stage", "play"]

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a drill is played: the ticket service, a job, and a folder for what processes write."""

    recorder: Recorder
    part: Part
    folder: Path

    def player(self, *, begins: bool = True, freezes: bool = False) -> Player:
        """Make a process for the job."""
        part = dataclasses.replace(self.part, begins=begins, freezes=freezes)
        return Player(part, self.folder / f"{part.run}-{'first' if begins else 'second'}.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a drill ended. report: the engine's last word. stale: what the thawed process said of the job,
    where there was one. moved: its late write replaced what the successor had on record."""

    verdict: Verdict
    report: Report
    stale: Report | None
    moved: bool


async def _lost_answer(stage: Stage) -> Played:
    await stage.recorder.plan(Rule.act_then_reset())
    async with stage.player() as player:
        report = await player.ended()
    return await _judged(stage, report)


async def _lagging_query(stage: Stage) -> Played:
    await stage.recorder.plan(Rule.act_then_reset(), Rule.stale(int(LAG_S * 1000)))
    async with stage.player() as player:
        report = await player.ended()
    return await _judged(stage, report)


async def _asks_again(stage: Stage) -> Played:
    stage = dataclasses.replace(stage, part=dataclasses.replace(stage.part, asks=2))
    async with stage.player() as player:
        report = await player.ended()
    return await _judged(stage, report)


async def _killed(stage: Stage) -> Played:
    await stage.recorder.hold("answer")
    async with stage.player() as first:
        await stage.recorder.wait_for(held="answer", timeout=_PATIENCE_S)
        first.kill()
    await stage.recorder.release("answer")
    async with stage.player(begins=False) as second:
        report = await second.ended()
    return await _judged(stage, report)


async def _stale_writer(stage: Stage) -> Played:
    await stage.recorder.hold("answer")
    async with stage.player() as first:
        await stage.recorder.wait_for(held="answer", timeout=_PATIENCE_S)
        await first.freeze()
        # The answer is there when it thaws; it is the write after it that comes too late.
        await stage.recorder.release("answer")
        return await _succeeded_by(stage, first)


async def _stale_sender(stage: Stage) -> Played:
    async with stage.player(freezes=True) as first:
        await first.frozen()
        return await _succeeded_by(stage, first)


async def _succeeded_by(stage: Stage, first: Player) -> Played:
    """Let a successor finish, thaw the old process, and see what that changes."""
    async with stage.player(begins=False) as second:
        before = await second.ended()
        first.thaw()
        await first.says("sent")
        stale = await first.ended()
        after = await second.look()
    return await _judged(stage, after, before=before, stale=stale)


async def _judged(
    stage: Stage, report: Report, *, before: Report | None = None, stale: Report | None = None
) -> Played:
    moved = before is not None and (before.end, before.ticket) != (report.end, report.ticket)
    verdict = judge(await stage.recorder.log(), report)
    return Played(verdict=verdict, report=report, stale=stale, moved=moved)


DRILLS: Mapping[str, Callable[[Stage], Awaitable[Played]]] = {
    "lost-answer": _lost_answer,
    "killed": _killed,
    "stale-writer": _stale_writer,
    "stale-sender": _stale_sender,
    "lagging-query": _lagging_query,
    "asks-again": _asks_again,
}
"""By name, in the order of the report."""


async def play(drill: str, stage: Stage, *, honours: bool) -> Played:
    """Play a drill with a service of the stage's that honours keys, or ignores them."""
    await stage.recorder.reset()
    await stage.recorder.configure(dedupe=honours)
    return await DRILLS[drill](stage)
