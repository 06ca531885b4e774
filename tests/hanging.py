"""A test that hangs fails by name and says where it waits; the run goes on.

A coroutine that waits for what never comes is nowhere on its thread's stack, so every asyncio task is asked
what it waits for. What cannot even be interrupted is ended by pytest itself: ``faulthandler_timeout``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

__all__ = ["limited"]

AGAIN_S = 5.0
"""How long after that it is said again, should what runs just then swallow it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Fail whatever is inside after so many seconds; 0 for never. In the main thread only."""

    def over(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it hangs: still going on after {seconds:g} s\n{_told()}", pytrace=True)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _told() -> str:
    """Say what every asyncio task of the loop that runs waits for, innermost last."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return "no loop is running"
    return "\n".join(
        f"{task.get_name()} waits in\n" + "\n".join(f"    {place}" for place in _places(task.get_coro()))
        for task in sorted(tasks, key=lambda task: task.get_name())
    )


def _places(waiting: Any) -> Iterator[str]:
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            yield repr(waiting)
            return
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
