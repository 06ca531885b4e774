"""A task's stream as server-sent events.

``id`` is the event's number, ``event`` its kind, ``data`` the event as JSON. A comment keeps the connection
alive and never moves the position, nor do the two events without an id: ``stream.overrun`` (this client did
not read fast enough) and ``stream.stopping`` (the service goes away). After both, connect again with the last
id; after the task's final event there is nothing more to come.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from outlast.core import values
from outlast.server.closing import Closing, Stopping
from outlast.server.problem import MAX_ANSWER_BYTES
from outlast.server.schemas.tasks import event_body
from outlast.streams.tail import Overrun
from outlast.views import EventView

RETRY_MS: Final = 1_000
SEND_TIMEOUT_S: Final = 30.0
SEP: Final = "\n"
_frame = functools.partial(ServerSentEvent, sep=SEP)


class EventStream(EventSourceResponse):
    """Server-sent events of one task; a client that takes nothing for ``send_timeout_s`` is dropped."""

    def __init__(
        self,
        events: AsyncIterator[EventView],
        closing: Closing,
        *,
        keep_alive_s: float,
        send_timeout_s: float,
    ) -> None:
        super().__init__(
            _messages(events, closing),
            ping=keep_alive_s,
            ping_message_factory=lambda: _frame(comment="keep-alive"),
            send_timeout=send_timeout_s,
            sep=SEP,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream; a client that stopped reading is no fault of ours."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            return


async def _messages(events: Any, closing: Closing) -> AsyncIterator[ServerSentEvent]:
    yield _frame(comment="open", retry=RETRY_MS)
    async with aclosing(events):
        while True:
            try:
                event = await closing.unless_closed(anext(events))
            except StopAsyncIteration:
                return
            except Overrun as cut:
                yield _notice("stream.overrun", cut.code, str(cut))
                return
            except Stopping:
                yield _notice("stream.stopping", "stopping", "the service is stopping; connect again")
                return
            yield _frame(_text(event_body(event)), id=str(event.number), event=event.kind)


def _notice(kind: str, code: str, detail: str) -> ServerSentEvent:
    return _frame(_text({"code": code, "detail": detail}), event=kind)


def _text(value: Any) -> str:
    return values.encode(value, limit=MAX_ANSWER_BYTES, what="event")
