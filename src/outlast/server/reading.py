"""Reading requests: bodies within a bound, JSON that does not change on the way, headers with a grammar."""

from __future__ import annotations

import asyncio
import email.message
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.core import ids
from outlast.core.values import MAX_INTEGER_DIGITS
from outlast.errors import InvalidKey
from outlast.server.problem import Refused, problem

MAX_WAIT_S: Final = 60
DROP_S: Final = 2.0
DROP_BYTES: Final = 50_000_000
"""How long, and how much, of a refused body is taken from a client that still sends it."""

# ── the body ─────────────────────────────────────────────────────────────────────────────────────


class BodyLimit:
    """ASGI middleware: refuse a body over ``limit`` bytes before anyone parses it.

    A stated length is refused unread; a body of unstated length (chunked) is counted as it arrives. What the
    client still sends is then taken and dropped, within bounds: a connection that is closed on unread bytes
    is reset, and the client would not see why.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        over = Refused(
            "body_too_large",
            f"the body is over the limit of {self._limit} bytes",
            headers={"Connection": "close"},
        )
        # A client that asked first sends nothing now.
        will_send = headers.get(b"expect", b"").lower() != b"100-continue"
        stated = headers.get(b"content-length", b"0")
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    raise over
            return message

        async def ending(message: Message) -> None:
            if (
                read > self._limit
                and message["type"] == "http.response.body"
                and not message.get("more_body")
            ):
                await send({**message, "more_body": True})
                if will_send:
                    await self._drop(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        if stated.isdigit() and (len(stated) > 18 or int(stated) > self._limit):
            read = self._limit + 1
            await problem(over.code, str(over.detail), headers=over.headers)(scope, receive, ending)
            return
        await self._app(scope, counted, ending)

    async def _drop(self, receive: Receive) -> None:
        dropped = 0
        try:
            async with asyncio.timeout(DROP_S):
                while dropped <= DROP_BYTES:
                    message = await receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    dropped += len(message.get("body", b""))
        except TimeoutError:
            return


class StrictRequest(Request):
    """A request whose JSON is read so that nothing changes without a word."""

    async def json(self) -> Any:
        """Read the body; see ``parse_json``."""
        return parse_json(await self.body())


class StrictRoute(APIRoute):
    """A route that takes JSON bodies only, read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Answer the handler, behind the check of the media type."""
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def strict(request: Request) -> Response:
            if takes_body:
                check_media_type(request)
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def check_media_type(request: Request) -> None:
    """Refuse a body that is not said to be JSON in UTF-8.

    Browsers send other types, or none, across origins without asking first; so this also keeps a web page
    from submitting tasks to a service on its reader's machine.
    """
    stated = request.headers.get("content-type", "")
    message = email.message.Message()
    message["content-type"] = stated or "none/none"
    kind = message.get_content_type()
    charset = message.get_content_charset("utf-8")
    if not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
        raise Refused(
            "unsupported_media_type",
            f"send Content-Type: application/json, not {stated[:100]!r}"
            if stated
            else "send Content-Type: application/json",
            headers={"Accept": "application/json"},
        )
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise Refused(
            "unsupported_media_type", "JSON is sent in UTF-8", headers={"Accept": "application/json"}
        )


def parse_json(body: bytes) -> Any:
    """Read JSON text (RFC 8259, in UTF-8): integers stay whole.

    Refused as ``bad_json``: what is no JSON, NaN and infinities, numbers too large for a float, a name that
    an object has twice (readers would differ on what it means), depth beyond what Python reads.
    """
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_float,
        )
    except UnicodeDecodeError as error:
        raise Refused("bad_json", f"the body is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Refused("bad_json", f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise Refused("bad_json", "the body is nested too deeply") from None
    except ValueError:
        # The interpreter's own bound on digits, the one error that has no type of its own.
        raise Refused("bad_json", f"an integer has more than {MAX_INTEGER_DIGITS} digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Refused("bad_json", f"an object has the name {json.dumps(twice[:100])} twice")
    return made


def _no_constant(text: str) -> NoReturn:
    raise Refused("bad_json", f"{text} is no JSON")


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Refused("bad_json", f"the number {text[:40]} is too large for a double")
    return number


# ── headers ──────────────────────────────────────────────────────────────────────────────────────

_WAIT: Final = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?:;.*)?", re.IGNORECASE)
_SF_STRING: Final = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_REVISION: Final = re.compile(r'"(\d{1,18})"')
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


def idempotency_key(request: Request) -> str | None:
    """Read ``Idempotency-Key``: a structured field string (RFC 9651), or bare, which means the same.

    Raises InvalidKey.
    """
    sent = request.headers.getlist("idempotency-key")
    if not sent:
        return None
    if len(sent) > 1:
        raise InvalidKey("Idempotency-Key is sent more than once")
    key = sent[0].strip(" \t")
    if key.startswith('"'):
        match = _SF_STRING.fullmatch(key)
        if match is None:
            raise InvalidKey("Idempotency-Key begins with a quote and is not a structured field string")
        key = re.sub(r'\\(["\\])', r"\1", match[1])
    if not key.isascii():
        raise InvalidKey("Idempotency-Key has a character outside ASCII; encode or hash it first")
    return ids.check_key(key, "Idempotency-Key")


def preferred_wait(request: Request) -> int | None:
    """Read ``Prefer: wait=N`` (RFC 7240) in seconds, bounded; None where it is absent or unreadable."""
    for line in request.headers.getlist("prefer"):
        for preference in line.split(","):
            match = _WAIT.fullmatch(preference)
            if match is not None:
                return min(int(match[1]), MAX_WAIT_S)
    return None


def traceparent(request: Request) -> str | None:
    """Read ``traceparent`` (W3C Trace Context); one that breaks the grammar is as good as none."""
    sent = request.headers.getlist("traceparent")
    if len(sent) != 1 or len(sent[0]) > 512:
        return None
    value = sent[0].strip(" \t")
    match = _TRACEPARENT.fullmatch(value)
    if match is None or (value.startswith("00-") and len(value) != 55):
        return None
    return value


def etag_matches(request: Request, etag: str) -> bool:
    """Whether ``If-None-Match`` names this entity tag (RFC 9110: by weak comparison)."""
    for line in request.headers.getlist("if-none-match"):
        for tag in line.split(","):
            if tag.strip() == "*" or tag.strip().removeprefix("W/") == etag.removeprefix("W/"):
                return True
    return False


def revision_tag(revision: int) -> str:
    """Write a revision as a strong entity tag."""
    return f'"{revision}"'


def expected_revision(request: Request) -> int | None:
    """Read which revision a change was asked for (RFC 9110): that of ``If-Match``, 0 for what must be new
    (``If-None-Match: *``), None where nothing is said.

    Raises Refused (400) for a header that names no revision of ours, or several.
    """
    matches = request.headers.getlist("if-match")
    others = request.headers.getlist("if-none-match")
    if not matches and not others:
        return None
    if [tag.strip() for tag in others] == ["*"] and not matches:
        return 0
    if len(matches) == 1 and not others and (found := _REVISION.fullmatch(matches[0].strip())):
        return int(found[1])
    raise Refused("bad_request", 'send If-Match: "<revision>", or If-None-Match: * for what must be new')


def wants_json(request: Request) -> bool:
    """Whether ``Accept`` asks for JSON rather than an event stream, which is the default of a stream."""
    best: dict[str, float] = {}
    for line in request.headers.getlist("accept"):
        for item in line.split(","):
            kind, *parameters = [part.strip().lower() for part in item.split(";")]
            quality = 1.0
            for parameter in parameters:
                if parameter.startswith("q="):
                    try:
                        quality = float(parameter[2:])
                    except ValueError:
                        quality = 0.0
            best[kind] = max(best.get(kind, 0.0), quality)
    return best.get("application/json", 0.0) > best.get("text/event-stream", 0.0)
