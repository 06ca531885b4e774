"""A tool service inside the world: tickets with keys, misbehaving by the seed; its log judges effects.

Purpose: the other side of effectful calls, without sockets. It does what the Recorder does and keeps the same
kind of log, so that the same checkers read both.

Identity: an idempotency key stands for one ticket, for ever; the same key with another body is refused. A
forgetful part of it makes another ticket for each request.

State: the log and the tickets, in memory of a node of its own, which no crash of a worker touches.

Failure by failure: a request that has left is under way by itself. It arrives although its sender died, may
arrive late, twice or never, and its answer may get lost; see ``ToolFault``. The service may want to be left
alone for a while: it says so with 429 or 503, in seconds, as a date, or in a way that makes no sense.

Not covered: a service that loses what it acknowledged.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Protocol

from outlast import clock
from outlast.core import canonical
from outlast.core.outcome import Failed
from outlast.errors import NotSent, Rejected
from outlast.testing.simulation.loop import Node, SimulationLoop
from outlast.testing.simulation.node import EPOCH_US
from outlast.testing.simulation.weather import ToolFault, Weather
from outlast.tools.call import ToolCall
from outlast.tools.classify import classify_response

_LATEST_S = 15.0
"""How long a late request is under way at most: longer than any timeout of the tools here."""
_EPOCH_S = EPOCH_US // 1_000_000
_FAR = "Tue, 31 Dec 2999 23:59:59 GMT"
"""Beyond a century."""


@dataclass(slots=True)
class Logged:
    """One call in the log. effect_id: the ticket that it made, None for nothing new."""

    number: int
    arrived_at: float
    method: str
    key: str
    epoch: int
    fingerprint: str
    fault: ToolFault
    effect_id: str | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    until: float | None = None
    """Until which virtual second the service asks to be left alone, if it does."""

    def get(self, name: str, default: Any = None) -> Any:
        """Answer a field by name, as the checkers read a log."""
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: Any
    headers: dict[str, str]
    until: float | None


@dataclass(slots=True)
class _Request:
    method: str
    key: str
    epoch: int
    body: dict[str, Any]
    fault: ToolFault
    answer: asyncio.Future[_Answer]


class Site(Protocol):
    """What the service needs of the world around it."""

    loop: SimulationLoop
    weather: Weather

    def expect(self, seconds: float) -> None:
        """Note that something is under way, and arrives in so many virtual seconds."""
        ...

    def note(self, line: str) -> None:
        """Write a line into the schedule's trace."""
        ...


class TicketService:
    """Make one ticket per key; answer what is known of a key."""

    def __init__(self, site: Site, node: Node) -> None:
        self._site = site
        self._node = node
        self.on_departure: Callable[[ToolCall], None] = lambda _: None
        """Told of every request that may change something, at the moment when it leaves."""
        self.on_beginning: Callable[[ToolCall], None] = lambda _: None
        """Told of the same a moment earlier, when its sender has looked at its lease for the last time."""
        self.on_answer: Callable[[ToolCall], None] = lambda _: None
        """Told of every request that has made something, when its sender learns of it."""
        self.on_question: Callable[[ToolCall], None] = lambda _: None
        """Told of every question about another call, when it is asked."""
        self.on_wait: Callable[[ToolCall, float], None] = lambda *_: None
        """Told when a sender learns that the service asked to be left alone, and until when by the world's
        clock."""
        self._tickets: dict[str, dict[str, Any]] = {}
        self._made = 0
        self._digests: dict[str, str] = {}
        self.under_way: Counter[str] = Counter()
        """How many requests under each key have left and have neither arrived nor been lost."""
        self.log: list[Logged] = []

    # -- the caller's side ----------------------------------------------------------------------------------

    async def create(
        self,
        call: ToolCall,
        body: dict[str, Any],
        *,
        forgetful: bool = False,
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """Make a ticket under the call's key. forgetful: another one for each request, since nobody compares
        keys. patience_s: after what time the client gives up by itself, None for never. Raises NotSent,
        Rejected, TimeoutError, and what broken connections raise."""
        async with call.sending():
            self.on_beginning(call)
            # The gap between the last look at the lease and the bytes: a process can be frozen in it.
            await asyncio.sleep(self._site.weather.hop())
            self.on_departure(call)
            async with asyncio.timeout(patience_s):
                answer = await self._exchange("ADD" if forgetful else "POST", call, body)
        self._check(call, answer)
        if answer.status != 201:
            raise Rejected(f"the service answered {answer.status}")
        self.on_answer(call)
        ticket: dict[str, Any] = answer.body
        return ticket

    async def find(self, call: ToolCall) -> dict[str, Any] | None:
        """Look a ticket up by the call's key; None when there is none."""
        if call.query:
            self.on_question(call)
        answer = await self._exchange("GET", call, {})
        self._check(call, answer)
        return answer.body if answer.status == 200 else None

    def _check(self, call: ToolCall, answer: _Answer) -> None:
        """Raise NotSent where the service has not looked at a request, with the wait that it asks for, as the
        product reads it by the clock of the node that asked."""
        said = classify_response(answer.status, answer.headers, clock.unix_us() / 1_000_000)
        if isinstance(said, Failed) and said.retryable:
            if answer.until is not None:
                self.on_wait(call, answer.until)
            raise NotSent(said.reason, retry_after=said.retry_after_s)

    def ticket_of(self, key: str) -> dict[str, Any] | None:
        """Answer the ticket made under a key, for whoever judges; the log does not grow."""
        return self._tickets.get(key)

    async def _exchange(self, method: str, call: ToolCall, body: dict[str, Any]) -> _Answer:
        site = self._site
        loop = site.loop
        fault = site.weather.tool_fault()
        if fault == "refused":
            raise ConnectionRefusedError
        answer: asyncio.Future[_Answer] = loop.create_future()
        request = _Request(method, call.idempotency_key, call.epoch, body, fault, answer)
        way = site.weather.way()
        if fault == "late":
            way += site.weather.between(0.0, _LATEST_S)
        if fault == "dropped":
            loop.call_later(way, self._break, request, context=self._node.context)
        else:
            self._send(request, way)
        # Where nobody compares keys, a repeat on the way is a second effect that no sender can help.
        if fault == "twice" and method != "ADD":
            self._send(request, way + site.weather.between(0.0, _LATEST_S))
        return await answer

    def _send(self, request: _Request, way: float) -> None:
        """Put a request on its way, which it goes by itself, whatever becomes of its sender."""
        self.under_way[request.key] += 1
        self._site.expect(way)
        self._site.loop.call_later(way, self._arrive, request, context=self._node.context)

    # -- the service's side ---------------------------------------------------------------------------------

    def _arrive(self, request: _Request) -> None:
        entry = Logged(
            number=len(self.log) + 1,
            arrived_at=self._site.loop.time(),
            method=request.method,
            key=request.key,
            epoch=request.epoch,
            fingerprint=canonical.digest(request.body),
            fault=request.fault,
        )
        self.log.append(entry)
        self.under_way[request.key] -= 1
        entry.status, body = self._act(request, entry)
        answer = _Answer(entry.status, body, entry.headers, entry.until)
        self._site.note(f"service {entry.method} {entry.status} {entry.effect_id or '-'} {entry.fault}")
        back = self._site.weather.way()
        context = self._node.context
        if request.fault == "reset":
            self._site.loop.call_later(back, self._break, request, context=context)
        elif request.fault != "silent":
            self._site.loop.call_later(back, self._reply, request, answer, context=context)

    def _act(self, request: _Request, entry: Logged) -> tuple[int, Any]:
        if request.fault == "unavailable":
            return 503, None
        if request.fault == "throttled":
            return self._throttle(entry), None
        ticket = self._tickets.get(request.key)
        if request.method == "GET":
            return (404, None) if ticket is None else (200, ticket)
        if ticket is not None and request.method != "ADD":
            same = self._digests[request.key] == entry.fingerprint
            return (201, ticket) if same else (422, None)
        self._made += 1
        ticket = {"ticket": f"R-{self._made}", **request.body}
        self._tickets[request.key] = ticket
        self._digests[request.key] = entry.fingerprint
        entry.effect_id = ticket["ticket"]
        return 201, ticket

    def _throttle(self, entry: Logged) -> int:
        """Ask to be left alone; answer the status. It tells the time as well, as services do."""
        form, status, seconds = self._site.weather.wait()
        now = _EPOCH_S + entry.arrived_at
        if form == "seconds":
            asked, entry.until = str(seconds), entry.arrived_at + seconds
        elif form == "date":
            over = math.ceil(now) + seconds
            asked, entry.until = _date(over), over - _EPOCH_S
        else:
            asked = self._site.weather.senseless(("0", "99999999999", _date(int(now) - seconds), _FAR))
        entry.headers = {"retry-after": asked, "date": _date(int(now))}
        return status

    @staticmethod
    def _reply(request: _Request, answer: _Answer) -> None:
        if not request.answer.done():
            request.answer.set_result(answer)

    @staticmethod
    def _break(request: _Request) -> None:
        if not request.answer.done():
            request.answer.set_exception(ConnectionResetError())


def _date(unix_s: int) -> str:
    return format_datetime(datetime.fromtimestamp(unix_s, UTC), usegmt=True)
