"""The ticket service itself: what an honest one does, then what the rules make of it, and the log of both."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from outlast.testing.recorder.ledger import Ledger
from outlast.testing.recorder.rules import Rule
from outlast.testing.recorder.wire import Answer, Connection, Request

__all__ = ["Service"]

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PATH = re.compile(r"/tickets(?:/(?P<ticket>R-[0-9]+)(?:/(?P<action>withdraw|note))?)?")
_LOGGED_BODY = 64 * 1024


@dataclass(slots=True)
class _Planned:
    rule: Rule
    seen: int = 0
    used: int = 0

    def takes(self, method: str, path: str, key: str | None, invoice: str | None) -> bool:
        if not self.rule.fits(method, path, key, invoice):
            return False
        self.seen += 1
        its_turn = self.rule.nth is None or self.seen >= self.rule.nth
        return its_turn and (self.rule.times is None or self.used < self.rule.times)


@dataclass(slots=True)
class _Settings:
    dedupe: bool = True
    key_window_ms: int | None = None
    check_epochs: bool = False


@dataclass(slots=True)
class Service:
    """Serve tickets and the ``/_`` paths that drive the Recorder."""

    ledger: Ledger
    _settings: _Settings = field(default_factory=_Settings)
    _plan: list[_Planned] = field(default_factory=list)
    _in_flight: set[str] = field(default_factory=set)
    _barriers: dict[str, asyncio.Event] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, connection: Connection) -> None:
        """Answer the calls of one connection until it ends."""
        while (request := await connection.next_request()) is not None:
            if request.path.startswith("/_"):
                answer = await self._control(request)
                await connection.send(answer.head() + answer.body)
            else:
                task = asyncio.current_task()
                assert task is not None
                self._calls.add(task)
                try:
                    if not await self._call(connection, request):
                        return
                finally:
                    self._calls.discard(task)

    # ── a call ───────────────────────────────────────────────────────────────────────────────────

    async def _call(self, connection: Connection, request: Request) -> bool:
        """Log, act, misbehave and answer; False when the connection is over."""
        key = _key(request.headers.get("idempotency-key"))
        number = self.ledger.arrived(
            arrived_us=_now_us(),
            method=request.method,
            path=request.path,
            query=json.dumps(dict(request.query)),
            key=key,
            epoch=_integer(request.headers.get("outlast-epoch")),
            deadline_ms=_integer(request.headers.get("outlast-deadline")),
            traceparent=request.headers.get("traceparent"),
            body=_logged_body(request.body),
            body_digest=_digest(request.body),
        )
        rule = self._take(request, key)
        if rule is not None:
            self.ledger.note(number, misbehaved=json.dumps(rule.as_json()))
        self._tell()
        rule = rule or Rule()
        answer = await self._act(number, request, key, rule)
        if rule.hold is not None and rule.hold_at == "acted":
            await self._held(number, rule.hold)
        if rule.status is not None:
            answer = _instead(rule)
        return await self._end(connection, number, rule, answer)

    def _take(self, request: Request, key: str | None) -> Rule | None:
        invoice = _invoice(request)
        # Every rule counts the calls that fit it, also those that an earlier rule takes.
        wanting = [
            planned for planned in self._plan if planned.takes(request.method, request.path, key, invoice)
        ]
        if not wanting:
            return None
        wanting[0].used += 1
        return wanting[0].rule

    async def _act(self, number: int, request: Request, key: str | None, rule: Rule) -> Answer:
        """Do what an honest service does, as early or late as the rule says, or not at all."""
        if not rule.act:
            if rule.hold is not None and rule.hold_at == "arrived":
                await self._held(number, rule.hold)
            return Answer.of(500, {"detail": "refused before acting"})
        claim = key if key is not None and self._settings.dedupe and request.method in _CHANGING else None
        if claim in self._in_flight:
            return Answer.of(409, {"detail": "a call under this key is being processed"})
        if claim is not None:
            self._in_flight.add(claim)
        try:
            if rule.hold is not None and rule.hold_at == "arrived":
                await self._held(number, rule.hold)
            if rule.act_after_ms:
                await asyncio.sleep(rule.act_after_ms / 1000)
            with self.ledger.together():
                return self._process(number, request, key, claim, rule)
        finally:
            if claim is not None:
                self._in_flight.discard(claim)
            self._tell()

    def _process(
        self, number: int, request: Request, key: str | None, claim: str | None, rule: Rule
    ) -> Answer:
        """Deduplicate, act and mark the log; the caller makes one transaction of it."""
        now_us = _now_us()
        digest = _digest(f"{request.method} {request.path}\n".encode() + _canonical(request.body))
        epoch = _integer(request.headers.get("outlast-epoch"))
        if (
            self._settings.check_epochs
            and key is not None
            and epoch is not None
            and request.method in _CHANGING
            and not self.ledger.admits(key, epoch)
        ):
            return Answer.of(409, {"detail": "an older epoch", "code": "stale_epoch"})
        if claim is not None:
            window_ms = self._settings.key_window_ms
            used_after_us = 0 if window_ms is None else now_us - window_ms * 1000
            first = self.ledger.remembered(claim, used_after_us=used_after_us)
            if first is not None:
                if first[0] != digest:
                    return Answer.of(422, {"detail": "this key was used for another request"})
                body = json.loads(first[2])
                self.ledger.note(number, replayed=1, ticket=body["id"])
                return Answer.of(first[1], body, idempotent_replayed="true")
        answer, effect = self._route(request, key, now_us, rule)
        if effect is not None:
            ticket = json.loads(answer.body)
            self.ledger.note(number, effect=effect, acted_us=now_us, ticket=ticket["id"])
            if claim is not None:
                text = answer.body.decode()
                self.ledger.remember(claim, digest=digest, now_us=now_us, status=answer.status, body=text)
        return answer

    def _route(self, request: Request, key: str | None, now_us: int, rule: Rule) -> tuple[Answer, str | None]:
        """Answer as the ticket service does; says which effect was made, if one was."""
        match = _PATH.fullmatch(request.path)
        if match is None:
            return Answer.of(404, {"detail": "no such resource"}), None
        ticket, action = match["ticket"], match["action"]
        before_us = now_us - rule.stale_ms * 1000 if rule.stale_ms else None
        match (request.method, ticket, action):
            case ("GET", None, None):
                query = request.query
                key_asked, invoice = query.get("idempotency_key"), query.get("invoice")
                return Answer.of(
                    200, self.ledger.tickets(key=key_asked, invoice=invoice, made_before_us=before_us)
                ), None
            case ("POST", None, None):
                return self._create(request, key, now_us)
            case ("GET", str(), None):
                found = self.ledger.ticket(ticket, made_before_us=before_us)
                return (Answer.of(200, found) if found else _no_ticket()), None
            case ("POST", str(), "withdraw"):
                if self.ledger.ticket(ticket) is None:
                    return _no_ticket(), None
                withdrawn = self.ledger.withdraw(ticket)
                if withdrawn is None:
                    return Answer.of(409, {"detail": "the ticket is not open"}), None
                return Answer.of(200, withdrawn), "withdrawn"
            case ("PUT", str(), "note"):
                try:
                    text = request.json()["text"]
                except (ValueError, KeyError, TypeError):
                    return Answer.of(422, {"detail": "a note needs a text"}), None
                noted = self.ledger.set_note(ticket, str(text))
                return (Answer.of(200, noted), "noted") if noted else (_no_ticket(), None)
            case _:
                return Answer.of(405, {"detail": "not with this method"}), None

    def _create(self, request: Request, key: str | None, now_us: int) -> tuple[Answer, str | None]:
        try:
            fields = request.json()
        except ValueError:
            return Answer.of(400, {"detail": "the body is not JSON"}), None
        if (
            not isinstance(fields, dict)
            or not isinstance(fields.get("invoice"), str)
            or not fields["invoice"]
        ):
            return Answer.of(422, {"detail": "a ticket needs an invoice", "pointer": "/invoice"}), None
        try:
            amount = Decimal(str(fields.get("amount")))
        except InvalidOperation:
            amount = Decimal("nan")
        if not amount.is_finite() or amount <= 0:
            return Answer.of(
                422, {"detail": "the amount is not a number above 0", "pointer": "/amount"}
            ), None
        ticket = self.ledger.make_ticket(now_us=now_us, invoice=fields["invoice"], key=key, fields=fields)
        return Answer.of(201, ticket, location=f"/tickets/{ticket['id']}"), "created"

    async def _end(self, connection: Connection, number: int, rule: Rule, answer: Answer) -> bool:
        """End the call as the rule says; the log says so before the client can know."""
        if rule.delay_ms and rule.then != "trickle":
            await asyncio.sleep(rule.delay_ms / 1000)
        status = None if rule.then in ("hang", "reset", "close", "garbage") else answer.status
        gone = connection.gone.is_set()
        self.ledger.note(number, ending=rule.then, status=status, ended_us=_now_us(), client_gone=int(gone))
        self._tell()
        whole = answer.head() + answer.body
        match rule.then:
            case "answer":
                await connection.send(whole)
                return True
            case "half":
                await connection.send(answer.head(), answer.body[: len(answer.body) // 2])
            case "trickle":
                await connection.send(
                    *(whole[at : at + 1] for at in range(len(whole))), pause_s=rule.delay_ms / 1000
                )
                return True
            case "garbage":
                await connection.send(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            case "reset":
                connection.reset()
            case "close":
                pass  # returning False ends the connection in good order
            case "hang":
                await connection.gone.wait()
                self.ledger.note(number, client_gone=1)
                self._tell()
        return False

    async def _held(self, number: int, name: str) -> None:
        self.ledger.note(number, held=name)
        self._tell()
        await self._barrier(name).wait()
        self.ledger.note(number, held=None)
        self._tell()

    def _barrier(self, name: str) -> asyncio.Event:
        return self._barriers.setdefault(name, asyncio.Event())

    def _tell(self) -> None:
        # A new event each time: whoever waits on the old one is woken once and looks again.
        self._changed.set()
        self._changed = asyncio.Event()

    # ── the paths of the test ────────────────────────────────────────────────────────────────────

    async def _control(self, request: Request) -> Answer:
        handlers: dict[tuple[str, str], Callable[[Any], Awaitable[Any]]] = {
            ("GET", "/_log"): self._get_log,
            ("GET", "/_tickets"): self._get_tickets,
            ("POST", "/_plan"): self._post_plan,
            ("POST", "/_hold"): self._post_hold,
            ("POST", "/_release"): self._post_release,
            ("POST", "/_settings"): self._post_settings,
            ("POST", "/_wait"): self._post_wait,
            ("POST", "/_reset"): self._post_reset,
        }
        handler = handlers.get((request.method, request.path))
        if handler is None:
            return Answer.of(404, {"detail": "no such path"})
        try:
            value = await handler(request.json() if request.body else dict(request.query))
        except (ValueError, TypeError, KeyError) as error:
            return Answer.of(422, {"detail": f"{type(error).__name__}: {error}"})
        return value if isinstance(value, Answer) else Answer.of(200, value)

    async def _get_log(self, query: Mapping[str, str]) -> Any:
        return self.ledger.calls(int(query.get("after", "0")))

    async def _get_tickets(self, query: Mapping[str, str]) -> Any:
        return self.ledger.tickets()

    async def _post_plan(self, body: Mapping[str, Any]) -> Any:
        rules = [Rule.from_json(rule) for rule in body["rules"]]
        if body.get("instead"):
            self._plan.clear()
        self._plan.extend(_Planned(rule) for rule in rules)
        return {"planned": len(self._plan)}

    async def _post_hold(self, body: Mapping[str, Any]) -> Any:
        rule = Rule.from_json(body)
        if rule.hold is None:
            raise ValueError("a barrier needs a name")
        self._barrier(rule.hold).clear()
        self._plan.append(_Planned(rule))
        return {"held": rule.hold}

    async def _post_release(self, body: Mapping[str, Any]) -> Any:
        self._barrier(body["hold"]).set()
        return {"released": body["hold"]}

    async def _post_settings(self, body: Mapping[str, Any]) -> Any:
        for name, value in body.items():
            if name not in _Settings.__slots__:
                raise ValueError(f"no such setting: {name}")
            setattr(self._settings, name, value)
        return {}

    async def _post_wait(self, body: Mapping[str, Any]) -> Any:
        wanted = {name: value for name, value in body["where"].items() if value is not None}
        try:
            async with asyncio.timeout(body["timeout_s"]):
                while True:
                    changed = self._changed
                    calls = [call for call in self.ledger.calls() if _fits(call, wanted)]
                    if len(calls) >= body["calls"]:
                        return calls
                    await changed.wait()
        except TimeoutError:
            return Answer.of(408, self.ledger.calls())

    async def _post_reset(self, body: Mapping[str, Any]) -> Any:
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._plan.clear()
        self._barriers.clear()
        self._in_flight.clear()
        self._settings = _Settings()
        self.ledger.clear()
        self._tell()
        return {}


def _fits(call: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    for name, value in wanted.items():
        if name in ("acted", "ended"):
            if (call[f"{name}_at"] is not None) is not value:
                return False
        elif call[name] != value:
            return False
    return True


def _now_us() -> int:
    return time.time_ns() // 1000


def _key(header: str | None) -> str | None:
    """Read an idempotency key, bare or as a structured string (draft-ietf-httpapi-idempotency-key-header)."""
    if header is not None and len(header) >= 2 and header[0] == header[-1] == '"':
        return re.sub(r'\\(["\\])', r"\1", header[1:-1])
    return header


def _invoice(request: Request) -> str | None:
    """Read which invoice a call is about, from its body or else its query."""
    try:
        body = request.json() if request.body else None
    except ValueError:
        body = None
    invoice = body.get("invoice") if isinstance(body, dict) else None
    return invoice if isinstance(invoice, str) else request.query.get("invoice")


def _integer(header: str | None) -> int | None:
    return int(header) if header is not None and re.fullmatch(r"[0-9]{1,18}", header) else None


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _canonical(body: bytes) -> bytes:
    """Make two spellings of one JSON value equal; anything else stays as it is."""
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except ValueError:
        return body


def _logged_body(body: bytes) -> str | None:
    try:
        return json.dumps(json.loads(body)) if 0 < len(body) <= _LOGGED_BODY else None
    except ValueError:
        return None


def _no_ticket() -> Answer:
    return Answer.of(404, {"detail": "no such ticket"})


def _instead(rule: Rule) -> Answer:
    assert rule.status is not None
    if rule.body is None:
        answer = Answer.of(rule.status, {"detail": "as planned"})
        return Answer(status=rule.status, body=answer.body, headers={**answer.headers, **rule.headers})
    return Answer(status=rule.status, body=rule.body.encode(), headers=rule.headers)
