"""Stop this process at a named point: the hook for ``outlast.probes`` that drills and crash tests install.

Purpose. A crash window is tested by dying in it, for real: SIGKILL or SIGSTOP, sent by the process to itself,
at a point that ``outlast.probes.POINTS`` names. Only entry points of test and demo workers call
``install_from_env``; the product never looks at these variables.

    OUTLAST_PROBE       point=action[:n], several parted by commas, each for the n-th pass of its point (1)
    OUTLAST_PROBE_MARK  a file, a FIFO or an inherited descriptor's number, told before the action is done

Actions: ``kill`` (SIGKILL), ``freeze`` (SIGSTOP; somebody else sends SIGCONT), ``mark`` (only tell).

Mark. One line of JSON, ``{"point", "pass", "action", "pid"}``, written with one ``write`` before the signal,
so that whoever started the process can wait for it. A mark says that the signal is about to be sent; that the
process has stopped or ended is the operating system's to say.

The signal goes to the calling thread, so that not one more instruction of it runs; it acts on all threads.
Before a freeze that thread stands still for a moment, in which other threads end what they were given: on
SQLite a process that is frozen inside a write transaction stops every other writer of the file, and that is
not what a freeze at a point is to show.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from outlast import probes
from outlast.errors import ConfigurationError

__all__ = ["MARK", "PROBE", "Action", "Trigger", "install_from_env", "parse", "spell"]

PROBE = "OUTLAST_PROBE"
MARK = "OUTLAST_PROBE_MARK"
REST_S: Final = 0.2
"""How long other threads have before a freeze to end what they were given."""

Action = Literal["kill", "freeze", "mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Do ``action`` at the ``nth`` pass of ``point``, counted from 1 in this process."""

    point: str
    action: Action
    nth: int = 1


def parse(text: str) -> tuple[Trigger, ...]:
    """Read triggers as ``OUTLAST_PROBE`` spells them. Raises ConfigurationError with what is wrong."""
    return tuple(_trigger(part.strip()) for part in text.split(",") if part.strip())


def spell(*triggers: Trigger) -> str:
    """Write triggers as ``OUTLAST_PROBE`` spells them."""
    return ",".join(f"{one.point}={one.action}:{one.nth}" for one in triggers)


def install_from_env(environ: Mapping[str, str] | None = None) -> tuple[Trigger, ...]:
    """Install what ``OUTLAST_PROBE`` asks for in this process; answer it.

    environ: the process's own by default. Raises ConfigurationError for a point or an action that does not
    exist, so that a drill cannot pass by a slip of the pen.
    """
    source = os.environ if environ is None else environ
    triggers = parse(source.get(PROBE, ""))
    if triggers:
        probes.install(_Hook(triggers, source.get(MARK)))
    return triggers


def _trigger(text: str) -> Trigger:
    point, _, rest = text.partition("=")
    action, _, nth = rest.partition(":")
    if point not in probes.POINTS:
        raise ConfigurationError(
            f"{PROBE}: there is no point {point!r}; there are {', '.join(probes.POINTS)}"
        )
    if nth and not (nth.isascii() and nth.isdigit() and int(nth) > 0):
        raise ConfigurationError(f"{PROBE}: passes are counted from 1, so {nth!r} is none, in {text!r}")
    for known in get_args(Action):
        if action == known:
            return Trigger(point=point, action=known, nth=int(nth or 1))
    raise ConfigurationError(f"{PROBE}: {action!r} is none of {', '.join(get_args(Action))}, in {text!r}")


class _Hook:
    def __init__(self, triggers: tuple[Trigger, ...], mark: str | None) -> None:
        self._triggers = {(one.point, one.nth): one for one in triggers}
        self._passes = dict.fromkeys((one.point for one in triggers), 0)
        self._mark = None if mark is None else _opened(mark)

    def __call__(self, point: str) -> None:
        passed = self._passes.get(point)
        if passed is None:
            return
        self._passes[point] = passed = passed + 1
        trigger = self._triggers.get((point, passed))
        if trigger is None:
            return
        if self._mark is not None:
            line = {"point": point, "pass": passed, "action": trigger.action, "pid": os.getpid()}
            os.write(self._mark, json.dumps(line).encode() + b"\n")
        if trigger.action == "kill":
            _to_self(signal.SIGKILL)
        elif trigger.action == "freeze":
            time.sleep(REST_S)
            _to_self(signal.SIGSTOP)


def _opened(mark: str) -> int:
    if mark.isascii() and mark.isdigit():
        return int(mark)
    return os.open(mark, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _to_self(number: signal.Signals) -> None:
    signal.pthread_kill(threading.get_ident(), number)
