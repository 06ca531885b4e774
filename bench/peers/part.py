"""What one process of a drill plays, in whichever engine: the job, the ticket service, what it tells.

A process gets its part as JSON, says one line of JSON for each thing that happens, and leaves when its
standard input ends. The engines differ in ``Engine``; the job, and how the service is called, are the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["LAG_S", "LEASE_S", "TIMEOUT_S", "Engine", "EventLoop", "Part", "Report", "Tickets", "play", "say"]

T = TypeVar("T")
LEASE_S = 2.0
"""How long a silent worker is trusted, in the engines that have leases; as short for all of them."""
LAG_S = 4.0
"""How long a ticket may take to be shown by a service that lags; the default retries are over before."""
TIMEOUT_S = 5.0
"""How long one call to the ticket service may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a process plays.

    engine, way: which, and how it is used. begins: starts the job; otherwise goes on with it as a successor.
    run: names the job, and the invoice that it is about. asks: how often the agent asks for the same ticket,
    each time as a new call. named: the key that is sent comes from the invoice, not from the call. freezes:
    the process stops itself just before it first sends, as late as the engine lets it.
    """

    engine: str
    way: str
    begins: bool
    database: str
    tickets: str
    run: str
    asks: int = 1
    named: bool = False
    freezes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an engine says of the job: ``succeeded``, ``failed``, ``unknown``, in its own words, and the
    ticket that it says was made."""

    end: str
    words: str
    ticket: str | None = None


class Engine(Protocol):
    """One engine with the job declared in it."""

    def begin(self) -> Report:
        """Start the job and follow it to its end, or to where a person is asked."""

    def go_on(self) -> Report:
        """Take the job over as the engine's documentation says, and follow it."""

    def look(self) -> Report:
        """Answer what the engine has on record."""


class Tickets:
    """The ticket service as a plain client sees it; raises for whatever is not a ticket."""

    def __init__(self, part: Part) -> None:
        import httpx

        self._part = part
        self._freezes = part.freezes
        # A connection for each request. One that was kept would be dead when a frozen process thaws, and
        # whether its request is then sent would depend on luck.
        self._client = httpx.Client(
            base_url=part.tickets, timeout=TIMEOUT_S, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def create(self, key: str) -> dict[str, Any]:
        """Make a ticket, once per key where the service honours keys."""
        if self._freezes:
            self._freezes = False
            # Sent to this very thread: it does not get a step further, as it would if another one took it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        named = {"Idempotency-Key": self._part.run if self._part.named else key}
        try:
            reply = self._client.post(
                "/tickets", json={"invoice": self._part.run, "amount": "25"}, headers=named
            )
            reply.raise_for_status()
            ticket: dict[str, Any] = reply.json()
            return ticket
        finally:
            say("sent")

    def find(self) -> dict[str, Any] | None:
        """Answer the first ticket that the service shows for the invoice."""
        reply = self._client.get("/tickets", params={"invoice": self._part.run})
        reply.raise_for_status()
        found: list[dict[str, Any]] = reply.json()
        return found[0] if found else None


class EventLoop:
    """An event loop that goes on in a thread of its own, for engines that renew their leases in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and answer what it does."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def say(point: str, report: Report | None = None) -> None:
    """Tell whoever started this process one thing, and the report that goes with it."""
    told = {} if report is None else {"end": report.end, "words": report.words, "ticket": report.ticket}
    os.write(1, json.dumps({"point": point, **told}).encode() + b"\n")


def _safely(tell: Callable[[], Report]) -> Report:
    """What an engine raises at the caller is its report too."""
    try:
        return tell()
    except Exception as error:
        return Report(end="failed", words=f"raises {type(error).__name__}")


def play(make: Callable[[Part], Engine]) -> None:
    """Play the part of the command line: begin or go on, then look as often as a line comes in."""
    part = Part(**json.loads(sys.argv[1]))
    asked: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    engine = make(part)
    say("ready")
    say("ended", _safely(engine.begin if part.begins else engine.go_on))
    while asked.get():
        say("looked", _safely(engine.look))
