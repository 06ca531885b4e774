"""The gateway as an ASGI application; ``outlast.gateway`` says what it guarantees."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import httpx2

from outlast import clock, probes, telemetry, tokens
from outlast.core import destinations, ids
from outlast.core.destinations import Address
from outlast.errors import ConfigurationError, InvalidToken, Unavailable
from outlast.gateway.asking import Asked, RawHeaders, end_to_end, read_asked, read_body, token_of
from outlast.gateway.checks import check
from outlast.gateway.crossing import Crossing, says_of, sent_headers
from outlast.gateway.noting import Notes, note_of
from outlast.gateway.refusals import LASTING, Refused
from outlast.gateway.resolving import Resolver, address_of, system_resolver
from outlast.gateway.settings import GatewaySettings
from outlast.gateway.upstream import Sending, Upstream, refusal_of
from outlast.otherside.answers import Whole
from outlast.otherside.asgi import Message, Receive, Scope, Send
from outlast.store.contract import Store
from outlast.store.passing import Passage
from outlast.tools.passing import ANSWER_HEADER, Pass

__all__ = ["Gateway"]

HEALTH: Final = b"/healthz"
_REMEMBERED: Final = 10_000
"""Tokens whose refusal never ends that are remembered, so that they cost the store nothing."""
_REFUSALS_NOTED: Final = 100
"""Refusals of one operation that are noted by one process."""
_ANSWER_HEADER: Final = ANSWER_HEADER.lower().encode()


class Gateway:
    """Pass requests of running operations on, as an ASGI 3 application.

    Args:
        store: An opened store; closed by whoever opened it.
        secret: What the app signs with.
        settings: Where requests may go, and bounds.
        resolver: Looks names up; the system by default.

    Raises ConfigurationError for a secret that is too short. ``close`` it when it has served.
    """

    def __init__(
        self,
        store: Store,
        secret: str,
        settings: GatewaySettings,
        *,
        resolver: Resolver = system_resolver,
    ) -> None:
        if len(secret) < tokens.LEAST_SECRET:
            raise ConfigurationError(
                "a gateway checks what the app has signed: set OUTLAST_SECRET to the app's own secret"
            )
        self._store = store
        self._secret = secret
        self._settings = settings
        self._resolver = resolver
        self._rules = destinations.read_rules(settings.allow)
        self._ranges = destinations.read_networks(settings.ranges)
        self._upstream = Upstream(settings.ca_file, settings.connect_s)
        self._notes = Notes(store)
        self._over: OrderedDict[str, Refused] = OrderedDict()
        self._refusals: OrderedDict[str, int] = OrderedDict()

    async def close(self) -> None:
        """Close the connections to the other sides."""
        await self._upstream.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of the server."""
        if scope["type"] != "http":
            return
        if scope["raw_path"] == HEALTH and scope["method"] == "GET":
            await (await self._health()).send(send)
            return
        crossing: Crossing | None = None
        try:
            asked = read_asked(scope)
            token = token_of(asked.headers)
            crossing = Crossing(asked=asked, token=token, said=self._read(token))
            await self._serve(crossing, receive, send)
        except Refused as refused:
            if crossing is not None:
                await self._note_end(crossing, refused)
            if crossing is not None and crossing.answering:
                # It has its status already. The server closes the connection of an answer that is not whole.
                return
            await refused.answer().send(send)

    # -- before it is sent -----------------------------------------------------------------------------------

    def _read(self, token: str) -> Pass:
        """Read a token. Raises Refused."""
        over = self._over.get(token)
        if over is not None:
            raise Refused(over.code, str(over))
        try:
            # Its time is judged by the database's clock, with the rest.
            return Pass.of(tokens.read(self._secret, "gateway", token, now=0))
        except InvalidToken as error:
            raise Refused("invalid_token", str(error)) from None

    async def _serve(self, crossing: Crossing, receive: Receive, send: Send) -> None:
        asked, said, settings = crossing.asked, crossing.said, self._settings
        self._check_host(asked, said)
        body = await read_body(asked.headers, receive, settings.max_request_bytes, settings.receive_s)
        if body is None:
            return
        address = await address_of(asked.to, self._resolver, self._ranges, settings.resolve_s)
        crossing.fingerprint = asked.fingerprint(body)
        crossing.read_key()
        await self._admit(crossing, len(body))
        probes.reach("gateway.after_note")
        await self._pass(crossing, address, body, send)

    def _check_host(self, asked: Asked, said: Pass) -> None:
        try:
            theirs = destinations.read_rules(said.hosts)
        except ConfigurationError as error:
            raise Refused("invalid_token", str(error)) from None
        if not destinations.covered(asked.to, self._rules):
            raise Refused("forbidden_host", f"this gateway lets this not through to {asked.to.authority}")
        if not destinations.covered(asked.to, theirs):
            raise Refused("forbidden_host", f"the token is not for this at {asked.to.authority}")

    async def _admit(self, crossing: Crossing, size: int) -> None:
        """Put the request on record, and look whether it may leave. Raises Refused."""
        asked = crossing.asked
        note = note_of(
            crossing.said,
            phase="passed",
            request=crossing.id,
            acts=asked.acts,
            method=asked.method,
            host=asked.to.authority,
            path=asked.to.path,
            fingerprint=crossing.fingerprint,
            key=crossing.key,
            bytes=size,
        )
        asked_at = clock.monotonic()
        try:
            found = await self._notes.admit(note)
        except Exception as error:
            # Whatever it is: what is not on record, and what cannot be looked up, is not sent.
            raise _store_away(error) from None
        crossing.noted = found is not None
        self._judge(crossing, found, asked_at)

    async def _look(self, crossing: Crossing) -> None:
        """Look once more. Raises Refused."""
        said = crossing.said
        asked_at = clock.monotonic()
        try:
            found = await self._store.read_passage(said.tenant, said.task, said.key)
        except Exception as error:
            # Whatever it is: what cannot be looked up is not sent.
            raise _store_away(error) from None
        self._judge(crossing, found, asked_at)

    def _judge(self, crossing: Crossing, found: Passage | None, asked_at: float) -> None:
        """Judge what the store said when it was asked at an instant. Raises Refused."""
        try:
            check(crossing.said, found)
        except Refused as refused:
            if refused.code in LASTING:
                self._remember(crossing.token, refused)
            raise
        assert found is not None
        assert found.deadline_at is not None
        crossing.found = found
        crossing.looked_at = asked_at
        crossing.ends_at = asked_at + (found.deadline_at - found.now) / 1_000_000

    async def _look_again(self, crossing: Crossing) -> None:
        """Make sure, where the connection stands, that the look is fresh. Raises Refused."""
        probes.reach("gateway.after_check")
        if clock.monotonic() - crossing.looked_at > self._settings.fresh_s:
            await self._look(crossing)
        if clock.monotonic() >= crossing.ends_at:
            raise Refused("deadline_over", "the time of the operation is over")

    def _remember(self, token: str, refused: Refused) -> None:
        self._over[token] = refused
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)

    # -- sending ---------------------------------------------------------------------------------------------

    async def _pass(self, crossing: Crossing, address: Address, body: bytes, send: Send) -> None:
        """Send the request and pass its answer on. Raises Refused."""
        asked = crossing.asked
        sending = Sending(before=lambda: self._look_again(crossing))
        seconds = max(0.0, crossing.ends_at - clock.monotonic())
        answered = False
        try:
            async with (
                asyncio.timeout(seconds),
                self._upstream.send(
                    asked.method, asked.to, address, sent_headers(crossing, seconds), body, sending, seconds
                ) as response,
            ):
                answered = True
                probes.reach("gateway.after_answer")
                await self._answer(crossing, response, send)
        except Refused:
            raise
        # Of the transport, of the time limit, of the library: what it means is its kind's to say.
        except Exception as error:
            refused = refusal_of(error, sent=sending.sent or answered, what=crossing.what)
            raise refused from None

    async def _answer(self, crossing: Crossing, response: httpx2.Response, send: Send) -> None:
        """Pass an answer on, and record its end before it is complete. Raises Refused."""
        crossing.status = response.status_code
        bound = self._settings.max_answer_bytes
        length = response.headers.get("content-length", "")
        left = int(length) if length.isdigit() else None
        if left is not None and left > bound and crossing.asked.method != "HEAD":
            raise Refused("answer_too_large", f"{crossing.what}: {response.status_code}, and {length} bytes")
        headers = list(end_to_end(response.headers.raw, frozenset({_ANSWER_HEADER})))
        headers += [(_ANSWER_HEADER, b"passed"), (b"via", b"1.1 outlast")]
        start = {"type": "http.response.start", "status": crossing.status, "headers": headers}
        await _tell(crossing, send, start)
        crossing.answering = True
        held = b""
        async for piece in response.aiter_raw():
            crossing.bytes += len(piece)
            if crossing.bytes > bound:
                raise Refused("answer_too_large", f"{crossing.what}: more than {bound} bytes")
            if left is not None and crossing.bytes >= left:
                # The client takes the answer for complete with this piece.
                held = piece
            else:
                await _tell(crossing, send, {"type": "http.response.body", "body": piece, "more_body": True})
        await self._note_end(crossing, None)
        await _tell(crossing, send, {"type": "http.response.body", "body": held, "more_body": False})

    # -- notes -----------------------------------------------------------------------------------------------

    async def _note_end(self, crossing: Crossing, refused: Refused | None) -> None:
        """Record how a request ended; what cannot be recorded counts as open."""
        asked, said = crossing.asked, crossing.said
        if crossing.ended:
            return
        crossing.ended = True
        says = says_of(crossing, refused)
        sent = refused is None or refused.verdict == "unknown"
        _tell_watchers(crossing, refused)
        if not sent and not self._may_note_refusal(crossing):
            return
        note = note_of(
            said,
            # Among other requests one that did nothing says nothing of the operation.
            says if asked.acts and (says == "happened" or crossing.alone) else None,
            phase="ended" if sent else "refused",
            request=crossing.id,
            acts=asked.acts,
            method=asked.method,
            host=asked.to.authority,
            path=asked.to.path,
            status=crossing.status,
            how="answered" if refused is None else refused.code,
            bytes=crossing.bytes if sent else None,
            says=says if asked.acts else None,
            client_gone=crossing.client_gone or None,
        )
        try:
            if not sent and not crossing.noted and not await self._is_ours(said):
                return
            await self._notes.keep(note)
        except Exception as error:
            # It is done, or refused, whether that is on record or not.
            telemetry.emit(telemetry.StoreAway(duty="gateway note", detail=type(error).__name__))

    def _may_note_refusal(self, crossing: Crossing) -> bool:
        """Answer whether a refusal is noted: always when the passage was, else up to a bound."""
        if crossing.noted:
            return True
        operation = ids.operation_id(crossing.said.task, crossing.said.key)
        count = self._refusals.pop(operation, 0) + 1
        self._refusals[operation] = count
        while len(self._refusals) > _REMEMBERED:
            self._refusals.popitem(last=False)
        return count <= _REFUSALS_NOTED

    async def _is_ours(self, said: Pass) -> bool:
        """Answer whether there is an operation to note something of."""
        return await self._store.read_passage(said.tenant, said.task, said.key) is not None

    # -- health ----------------------------------------------------------------------------------------------

    async def _health(self) -> Whole:
        health = await self._store.health()
        headers: RawHeaders = [(b"content-type", b"application/json")]
        body = b'{"store":"reachable"}' if health.reachable else b'{"store":"unreachable"}'
        return Whole(status=200 if health.reachable else 503, headers=headers, body=body)


def _tell_watchers(crossing: Crossing, refused: Refused | None) -> None:
    of = {"tenant": crossing.said.tenant, "task": crossing.said.task, "key": crossing.said.key}
    host = crossing.asked.to.authority
    if refused is not None and refused.verdict != "unknown":
        telemetry.emit(telemetry.GatewayRefused(**of, host=host, code=refused.code))
        return
    telemetry.emit(
        telemetry.GatewayPassed(
            **of,
            host=host,
            status=crossing.status or 0,
            detail="" if refused is None else refused.code,
            seconds=clock.monotonic() - crossing.began_at,
        )
    )


async def _tell(crossing: Crossing, send: Send, message: Message) -> None:
    """Tell the client; one that is gone is told nothing more."""
    if crossing.client_gone:
        return
    try:
        await send(message)
    except OSError:
        # ASGI's way to say that nobody is there any more. The end is recorded all the same.
        crossing.client_gone = True


def _store_away(error: Exception) -> Refused:
    telemetry.emit(telemetry.StoreAway(duty="gateway", detail=type(error).__name__))
    wait = error.retry_after if isinstance(error, Unavailable) else 1.0
    return Refused("store_unavailable", "nothing was sent; try again later", retry_after=wait)
