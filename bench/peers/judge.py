"""Judging: what the ticket service's log and the engine's last word make together.

The log decides what happened. An engine is not judged by whether it succeeds, but by whether what it says is
what happened, and whether anybody is told where it cannot know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.part import Report
from outlast.testing.recorder import Call

__all__ = ["Verdict", "judge"]

_ONE = {
    "succeeded": ("once", True),
    "failed": ("made, called failed", False),
    "unknown": ("once, open for a person", True),
    "running": ("made, never ends", False),
}
_NONE = {
    "succeeded": ("none, called done", False),
    "failed": ("none, called failed", True),
    "unknown": ("none, open for a person", True),
    "running": ("none, never ends", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """calls, effects: attempts to make a ticket that the service saw, and tickets that it made. text: for
    people. right: one ticket at most, and what the engine says of it is so, or is left open. told: somebody
    is: ``that it failed``, ``that it is unknown``, or nobody is."""

    calls: int
    effects: int
    text: str
    right: bool
    told: str


def judge(log: Sequence[Call], report: Report) -> Verdict:
    """Judge a job by the service's log and by what its engine says at the end.

    log: all calls of this job, questions as well. report: the last that the engine has on record.
    """
    posts = [call for call in log if call.method == "POST"]
    effects = sum(call.effect == "created" for call in posts)
    if effects > 1:
        text, right = f"{effects} tickets", False
        if report.end == "unknown":
            text += ", open for a person"
    else:
        text, right = (_ONE if effects else _NONE)[report.end]
    told = {"failed": "that it failed", "unknown": "that it is unknown"}.get(report.end, "nobody")
    return Verdict(calls=len(posts), effects=effects, text=text, right=right, told=told)
