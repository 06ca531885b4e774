"""The middleware; ``outlast.otherside`` says what it guarantees."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from outlast import clock, telemetry
from outlast.core.durations import Duration, microseconds
from outlast.errors import ConfigurationError, Unavailable
from outlast.otherside import keys
from outlast.otherside.answers import Gathering, Whole, kept, replayed
from outlast.otherside.asgi import App, Message, Receive, Scope, Send
from outlast.otherside.holding import Claim, Holding
from outlast.otherside.problems import Refused
from outlast.store.shelf import KeyAnswer, KeyHold, KeyRequest, KeyVerdict, Shelf

__all__ = ["IdempotencyMiddleware"]

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
RELEASE_ON: Final = (425, 429, 503)
_POLL_S: Final = 0.1
"""How often a twin of another process is looked for."""
_GRACE_S: Final = 1.0
"""How long a handler that was told to stop may take before its time limit is answered."""


class IdempotencyMiddleware:
    """Answer every request under one ``Idempotency-Key`` by one run of the handler.

    Args:
        app: The ASGI application.
        shelf: Where keys and answers are kept; ``outlast.otherside.shelf_for``. Prepared and closed by you.
        methods: Methods that are looked at; others pass.
        required: Refuse requests of these methods without a key (400) instead of letting them pass.
        scope_of: Says whose key it is, from the request's ASGI scope; plain or async. By default a digest of
            the ``Authorization`` header: give your own where one client's credentials change.
        wait: How long a twin waits for the first answer before it gets 409.
        lease: How long a process that works under a key is believed dead or alive without a sign.
        retention: How long a key and its answer are known.
        epoch_retention: How long a task's fencing epoch is known after it was last seen.
        timeout: Bound of the handler; None for none.
        release_on: Statuses that say that nothing was processed, so that the key is given back.
        max_body: Largest body of a request, in bytes.
        max_answer: Largest answer that is kept, in bytes; larger ones and event streams pass.
        sweep: How often this process forgets what was kept for its time; None for never.
    """

    def __init__(
        self,
        app: App,
        shelf: Shelf,
        *,
        methods: Collection[str] = METHODS,
        required: bool = False,
        scope_of: Callable[[Scope], str | Awaitable[str]] = keys.authorization_digest,
        wait: Duration = 0,
        lease: Duration = "30s",
        retention: Duration = "24h",
        epoch_retention: Duration = "7d",
        timeout: Duration | None = None,
        release_on: Collection[int] = RELEASE_ON,
        max_body: int = 1 << 20,
        max_answer: int = 1 << 20,
        sweep: Duration | None = "10m",
    ) -> None:
        if isinstance(methods, str):
            raise ConfigurationError("methods is a collection of methods, not one text")
        self.app = app
        self._shelf = shelf
        self._methods = frozenset(method.upper() for method in methods)
        self._required = required
        self._scope_of = scope_of
        self._wait_s = microseconds(wait, what="wait", zero=True) / 1_000_000
        self._lease_us = microseconds(lease, what="lease")
        self._keep_us = microseconds(retention, what="retention")
        self._keep_epoch_us = microseconds(epoch_retention, what="epoch_retention")
        self._timeout_s = None if timeout is None else microseconds(timeout, what="timeout") / 1_000_000
        self._release_on = frozenset(release_on)
        self._max_body = max_body
        self._max_answer = max_answer
        self._sweep_s = None if sweep is None else microseconds(sweep, what="sweep") / 1_000_000
        self._swept_at = clock.monotonic()
        self._holding = Holding(shelf, self._lease_us)
        self._working: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server, as ASGI 3 says."""
        if scope["type"] == "lifespan":
            await self.app(scope, self._draining(receive), send)
            return
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self.app(scope, receive, send)
            return
        try:
            asked = keys.read(scope["headers"])
            if asked.key is None and self._required:
                raise Refused("idempotency_key_missing", "send a header Idempotency-Key")
            body = None if asked.key is None else await self._read(scope, receive)
        except Refused as refused:
            await refused.answer().send(send)
            return
        if asked.key is None:
            await self.app(scope, receive, send)
            return
        if body is None:
            return
        # A task of its own, so that a client that goes away, and a server that cancels, cut nothing.
        work = asyncio.get_running_loop().create_task(self._serve(scope, asked, body, receive, send))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        await asyncio.shield(work)

    async def drain(self) -> None:
        """Wait until the handlers under way have ended, for one lease at most; done at the app's shutdown."""
        if self._working:
            await asyncio.wait(set(self._working), timeout=self._lease_us / 1_000_000)
        self._holding.stop()

    def _draining(self, receive: Receive) -> Receive:
        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        return received

    # -- before the handler ----------------------------------------------------------------------------------

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the request's body; None when its client has gone. Raises Refused (``body_too_large``)."""
        refused = Refused("body_too_large", f"at most {self._max_body} bytes are taken under a key")
        for length in keys.values_of(scope["headers"], b"content-length"):
            if length.isdigit() and int(length) > self._max_body:
                raise refused
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise refused
            if not message.get("more_body", False):
                return bytes(body)

    async def _serve(
        self, scope: Scope, asked: keys.Asked, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Claim the key and work, or answer what stands under it."""
        assert asked.key is not None
        found = self._scope_of(scope)
        whose = await found if inspect.isawaitable(found) else found
        request = KeyRequest(
            hold=KeyHold(scope=whose, key=asked.key, holder=clock.new_id("hold")),
            fingerprint=keys.fingerprint(scope, body),
            lease_us=self._lease_us,
            keep_us=self._keep_us,
            subject=asked.subject,
            epoch=asked.epoch,
            keep_epoch_us=self._keep_epoch_us,
        )
        try:
            verdict = await self._claim(request, asked)
        except Exception as error:
            # Whatever it is: nothing was done, and nothing is done without a claim.
            telemetry.emit(telemetry.StoreAway(duty="otherside claim", detail=type(error).__name__))
            wait = error.retry_after if isinstance(error, Unavailable) else 1.0
            detail = "nothing was done; try again later"
            await Refused("store_unavailable", detail, retry_after=wait).answer().send(send)
            return
        if verdict.kind != "claimed":
            await _standing(verdict).send(send)
            return
        claim = Claim(self._shelf, request.hold, takeover=verdict.takeovers, epoch=asked.epoch)
        self._holding.begin(claim)
        try:
            await self._work(scope, body, claim, receive, send)
        finally:
            self._holding.end(claim)
            self._sweep_when_due()

    async def _claim(self, request: KeyRequest, asked: keys.Asked) -> KeyVerdict:
        """Claim the key; while a twin works, ask again for as long as a twin may wait."""
        most = self._wait_s if asked.remaining_s is None else min(self._wait_s, asked.remaining_s)
        give_up = clock.monotonic() + most
        while True:
            twin = self._holding.of(request.hold.scope, request.hold.key)
            verdict = await self._shelf.claim(request)
            left = give_up - clock.monotonic()
            if verdict.kind != "in_flight" or left <= 0:
                return verdict
            pause = min(left, _POLL_S)
            if twin is None:
                await asyncio.sleep(pause)
            else:
                try:
                    await asyncio.wait_for(twin.done.wait(), pause)
                except TimeoutError:
                    pass  # it may have lost its claim to another process

    # -- the handler -----------------------------------------------------------------------------------------

    async def _work(self, scope: Scope, body: bytes, claim: Claim, receive: Receive, send: Send) -> None:
        gathering = Gathering(
            receive,
            send,
            body=body,
            max_bytes=self._max_answer,
            settle=lambda answer: self._settle(claim, answer),
            pass_by=lambda status: self._pass_by(claim, status),
        )
        told = {"key": claim.key, "takeover": claim.takeover, "epoch": claim.epoch, "claim": claim}
        # What a server offers besides would go past the gathering.
        inner = {**scope, "extensions": {}, "outlast": told}
        try:
            await self._run(inner, gathering)
        except _TooLate:
            detail = "the time for this request is over; it may have been processed"
            await gathering.end(Refused("handler_timeout", detail).answer())
            if gathering.passing:
                raise TimeoutError("the handler's time was over while it streamed") from None
        except Exception:
            # The handler's own fault, whatever it is: answered and kept here, then the server's to log.
            await gathering.end(Refused("handler_failed", _FAILED).answer())
            raise
        else:
            await gathering.end(Refused("handler_failed", _FAILED).answer())

    async def _run(self, scope: Scope, gathering: Gathering) -> None:
        """Run the handler for its time. Raises _TooLate when that is over before its answer is complete."""
        if self._timeout_s is None:
            await self.app(scope, gathering.receive, gathering.send)
            return
        call = asyncio.ensure_future(self.app(scope, gathering.receive, gathering.send))
        await asyncio.wait({call}, timeout=self._timeout_s)
        if call.done() or gathering.ended:
            # What it does after its answer has no bound of ours.
            await call
            return
        call.cancel()
        await asyncio.wait({call}, timeout=_GRACE_S)
        call.add_done_callback(_read_end)
        if not gathering.ended:
            raise _TooLate

    async def _settle(self, claim: Claim, answer: Whole) -> Whole:
        """Keep the handler's answer, or give the key back; say what its client gets."""
        try:
            if answer.status in self._release_on:
                await self._give_up(claim)
                return answer
            if await self._keep(claim, kept(answer)):
                return answer
            claim.lost = True
            found = await self._shelf.look(claim.hold)
        except Exception as error:
            # The handler has acted: its answer is true, whether it could be kept or not.
            telemetry.emit(telemetry.StoreAway(duty="otherside answer", detail=type(error).__name__))
            return answer
        finally:
            self._holding.end(claim)
        return _standing(found or KeyVerdict(kind="in_flight"))

    async def _pass_by(self, claim: Claim, status: int) -> None:
        """Note the status of an answer that is not kept."""
        try:
            claim.lost = not await self._keep(claim, KeyAnswer(status=status, headers="[]", body=None))
        except Exception as error:
            # Most of it is sent already; the lease will run out.
            telemetry.emit(telemetry.StoreAway(duty="otherside answer", detail=type(error).__name__))
        finally:
            self._holding.end(claim)

    async def _give_up(self, claim: Claim) -> None:
        try:
            await self._shelf.give_up(claim.hold)
        except Exception as error:
            # The lease will run out.
            telemetry.emit(telemetry.StoreAway(duty="otherside give up", detail=type(error).__name__))

    async def _keep(self, claim: Claim, answer: KeyAnswer) -> bool:
        """Keep an answer; while the database is away, try again for one lease. Fenced by the holder."""
        give_up = clock.monotonic() + self._lease_us / 1_000_000
        pause = 0.05
        while True:
            try:
                return await self._shelf.answer(claim.hold, answer)
            except Unavailable:
                if clock.monotonic() + pause >= give_up:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _sweep_when_due(self) -> None:
        if self._sweep_s is None or clock.monotonic() - self._swept_at < self._sweep_s:
            return
        self._swept_at = clock.monotonic()
        sweeping = asyncio.get_running_loop().create_task(self._sweep())
        self._working.add(sweeping)
        sweeping.add_done_callback(self._working.discard)

    async def _sweep(self) -> None:
        try:
            await self._shelf.sweep()
        except Exception as error:
            # Rows that stay a while longer harm nobody.
            telemetry.emit(telemetry.StoreAway(duty="otherside sweep", detail=type(error).__name__))


_FAILED: Final = "the service failed; it may have processed the request"


class _TooLate(Exception):
    """The handler's time is over."""


def _read_end(call: asyncio.Future[Any]) -> None:
    if not call.cancelled():
        call.exception()


def _standing(verdict: KeyVerdict) -> Whole:
    """Answer what stands under a key that is not ours to work under."""
    match verdict.kind:
        case "answered":
            assert verdict.answer is not None
            return replayed(verdict.answer)
        case "not_kept":
            assert verdict.answer is not None
            status = verdict.answer.status
            detail = (
                f"the first request was answered with {status}; its answer was too large to keep, or streamed"
            )
            return Refused("answer_not_kept", detail, first_status=status).answer()
        case "other_content":
            return Refused(
                "idempotency_conflict", "this key stands for a request with another content"
            ).answer()
        case "stale_epoch":
            detail = f"epoch {verdict.epoch} has been seen; nothing was done for an older one"
            return Refused("stale_epoch", detail, epoch=verdict.epoch).answer()
        case _:
            return Refused(
                "in_flight", "the first request under this key is being processed", retry_after=1
            ).answer()
