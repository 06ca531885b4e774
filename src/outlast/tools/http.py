"""HTTP from a tool body: sends key, epoch, deadline and trace, and says what the answer means.

Purpose. ``HttpCall`` is the way to the outside that needs no care: nothing is sent after the lease or the
deadline is over, nothing is sent twice, and a lost answer is never taken for a failure.

Headers. ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header), ``Outlast-Task`` and
``Outlast-Epoch`` (whose fencing number it is, and the number), ``Outlast-Deadline`` (milliseconds that
remain), ``traceparent`` (W3C). The key is sent bare. The draft writes it as a quoted string, but the services
in use (Stripe, Adyen, Square and their followers) take the field as it stands, quotes included, and list and
look it up so; ``find`` then asks by the same characters. A service that insists on the draft gets
``quoted_key=True``, and a header of the caller's own wins over ours. Our middleware reads both.

Once. The client is built without retries, and a request that may act is not redirected. GET and HEAD follow
up to five redirects inside one origin.

Time. A request ends at the deadline of its call or at its own ``timeout``, whichever comes first, whatever it
is doing: waiting for a connection, connecting, sending, reading the body. The connection is closed then.

Several requests in one call. A failure of a later one does not mean that nothing was done. When an earlier
request that may act went out, the call is *unknown* unless the tool says otherwise. Give each its ``part``,
which becomes a part of its key: one key may not stand for two requests.

Through a gateway. A tool declared with ``gateway=True`` sends everything to the gateway, with a token for
this very request; the gateway checks again as it sends. What it refuses was not sent. Redirects come back as
they are, since only the gateway knows where a request may go.

Not covered. Services that act on GET; say ``changes=True`` for those.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import httpx2

from outlast import clock, probes
from outlast.core.outcome import Failed, Unknown
from outlast.errors import ConfigurationError, DeadlineExceeded, LeaseLost
from outlast.tools.classify import classify_exception, classify_response, describe, failed_answer
from outlast.tools.client import ToolClient, make_client, unlogged
from outlast.tools.passing import TOKEN_HEADER, refused_by_gateway, through
from outlast.tools.verdicts import verdict

if TYPE_CHECKING:
    from outlast.tools.call import ToolCall

__all__ = ["MAX_ANSWER_BYTES", "HttpCall", "Options", "ToolClient", "make_client"]

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_REDIRECTS: Final = 5
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NONE: Final[frozenset[int]] = frozenset()


class _Watch:
    """Learn from the transport when a request leaves; ask the guard at that moment."""

    def __init__(self, call: ToolCall, *, began: bool, acts: bool) -> None:
        self.sent = False
        self.token = object()
        self._call = call
        self._began = began
        self._acts = acts

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            if info["request"].method in (b"CONNECT", "CONNECT"):
                return  # asks a proxy for a tunnel; our request follows through it
            self._call.leave(self.token, began=self._began, acts=self._acts)
            self.sent = True
        elif event.endswith(".send_request_headers.failed"):
            # Its headers break HTTP, so it was never put into bytes. By name: the layer below is not ours to
            # import.
            self.sent = type(info["exception"]).__name__ != "LocalProtocolError"


class Options(TypedDict, total=False):
    """What a request can be told.

    json, data, content, params, headers: as in httpx2; of headers with one name the caller's wins. timeout:
    seconds for the whole exchange; never longer than the call's deadline. part: names this request among
    several of one call, and becomes a part of its key. quoted_key: send the key as a structured string.
    changes: False for a look-up: its failure is an ordinary one, whatever the tool's effect. True for a GET
    that acts.
        By default every request counts as begun, and all but GET, HEAD and OPTIONS as able to act.
    raises: False to get every answer back, whatever its status. An exchange without an answer raises all the
    same. accepted, declined, not_sent, unknown: statuses that mean something else here than in the table.
    max_bytes: bound on the body of the answer; a done call with a larger one is unknown.
    """

    json: Any
    data: Mapping[str, Any]
    content: str | bytes
    params: Mapping[str, str | int | float | bool | Sequence[str | int | float | bool | None] | None]
    headers: Mapping[str, str]
    timeout: float
    part: str
    quoted_key: bool
    changes: bool
    raises: bool
    accepted: Collection[int]
    declined: Collection[int]
    not_sent: Collection[int]
    unknown: Collection[int]
    max_bytes: int


class HttpCall:
    """Make HTTP requests on behalf of one tool call; see the module for what that means."""

    def __init__(self, call: ToolCall, client: ToolClient) -> None:
        self._call = call
        self._client = client

    async def get(self, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send GET; see ``request``."""
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send POST; see ``request``."""
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send PUT; see ``request``."""
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send PATCH; see ``request``."""
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send DELETE; see ``request``."""
        return await self.request("DELETE", url, **options)

    async def request(self, method: str, url: str, **options: Unpack[Options]) -> httpx2.Response:
        """Send one request and answer the response with its whole body read.

        Args:
            method: Any HTTP method.
            url: An absolute URL.
            options: See ``Options``.

        Raises:
            ToolVerdict: The subclass that the table in ``outlast.tools.classify`` says, for an answer that is
            not
                2xx and for an exchange without a whole answer. Let it pass: the engine records it.
            LeaseLost: This process may not send any more; nothing of this request was sent.
            DeadlineExceeded: The time was over; nothing of this request was sent.
        """
        with unlogged():
            return await self._request(method.upper(), url, options)

    async def _request(self, method: str, url: str, options: Options) -> httpx2.Response:
        call = self._call
        call.check()
        changes, raises = options.get("changes"), options.get("raises", True)
        watch = _Watch(
            call, began=changes is not False, acts=method not in _SAFE if changes is None else changes
        )
        seconds = min(call.remaining(), options.get("timeout", math.inf))
        what = method
        said: Failed | Unknown | None
        response = None
        by_gateway = call.way_out is not None and call.way_out.through and not call.query
        try:
            request = self._build(method, url, options, watch, seconds)
            what = describe(method, request.url)
            if by_gateway:
                self._divert(request)
            async with asyncio.timeout(seconds):
                response, whole = await self._exchange(
                    request, options, follow=method in _SAFE and not changes and not by_gateway
                )
        except (LeaseLost, DeadlineExceeded):
            raise
        except Exception as exc:
            said = _of_exception(exc, watch, what)
            if said is None:
                raise
        else:
            probes.reach("http.after_answer")
            said = refused_by_gateway(response, _code(response), what) if by_gateway else None
            if said is not None:
                raises = True
            else:
                said = _of_answer(response, options, what)
            if not whole and (said is None or not raises):
                said = Unknown(reason=f"{what}: the answer is too large", clue=f"HTTP {response.status_code}")
                raises = True
        if changes is False and isinstance(said, Unknown):
            said = Failed(kind="not_sent", reason=said.reason, retryable=True)
        if isinstance(said, Failed):
            call.mark_undone(watch.token)
        if response is None or (said is not None and raises):
            assert said is not None
            # Out here, so that it has no cause: that one holds the request, with its headers and its body.
            raise verdict(said, call.others_open)
        return response

    def _build(
        self, method: str, url: str, options: Options, watch: _Watch, seconds: float
    ) -> httpx2.Request:
        call = self._call
        key = call.idempotency_key
        if part := options.get("part"):
            key = f"{key}.{part}"
        if options.get("quoted_key"):
            # RFC 9651 section 3.3.3.
            key = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        headers = httpx2.Headers(
            {
                "Idempotency-Key": key,
                "Outlast-Task": call.task,
                "Outlast-Epoch": str(call.epoch),
                "Outlast-Deadline": str(int(seconds * 1000)),
            }
        )
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        headers.update(options.get("headers"))
        return self._client.build_request(
            method,
            url,
            json=options.get("json"),
            data=options.get("data"),
            content=options.get("content"),
            params=options.get("params"),
            headers=headers,
            timeout=httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT_S)),
            extensions={"trace": watch},
        )

    def _divert(self, request: httpx2.Request) -> None:
        """Send a request to the gateway instead, with a token for where it was going."""
        way_out = self._call.way_out
        assert way_out is not None
        if way_out.url is None:
            raise ConfigurationError("this tool goes through a gateway: set OUTLAST_GATEWAY_URL")
        url = request.url
        if url.scheme not in ("http", "https"):
            raise httpx2.UnsupportedProtocol("the URL has a scheme that is not HTTP")
        request.headers[TOKEN_HEADER] = way_out.sign((f"{url.scheme}://{url.netloc.decode('ascii')}/",))
        request.url = through(way_out.url, url)
        request.headers["Host"] = request.url.netloc.decode("ascii")

    async def _exchange(
        self, request: httpx2.Request, options: Options, *, follow: bool
    ) -> tuple[httpx2.Response, bool]:
        """Send and read; answers the response, and whether its whole body is in it."""
        for hop in range(_MAX_REDIRECTS + 1):
            streamed = await self._client.send(request, stream=True)
            target = streamed.next_request
            if (
                not follow
                or target is None
                or hop == _MAX_REDIRECTS
                or not _same_origin(request.url, target.url)
            ):
                body, whole = await _read(streamed, options.get("max_bytes", MAX_ANSWER_BYTES))
                return self._response(streamed, body), whole
            await streamed.aclose()
            request = target
        raise AssertionError("unreachable")

    def _response(self, streamed: httpx2.Response, body: bytes) -> httpx2.Response:
        headers = streamed.headers.copy()
        for name in ("content-encoding", "content-length", "transfer-encoding"):
            headers.pop(name, None)  # the body is decoded
        return httpx2.Response(
            streamed.status_code,
            headers=headers,
            content=body,
            request=streamed.request,
            extensions={"outlast.others_open": self._call.others_open},  # for its ``raise_for_status``
        )


async def _read(streamed: httpx2.Response, max_bytes: int) -> tuple[bytes, bool]:
    """Read at most so many bytes of the decoded body; says whether that was all."""
    body = bytearray()
    try:
        async for piece in streamed.aiter_bytes():
            body += piece
            if len(body) > max_bytes:
                return bytes(body[:max_bytes]), False
    finally:
        await streamed.aclose()
    return bytes(body), True


def _code(response: httpx2.Response) -> str:
    """Answer the code of a gateway's own answer, a problem document; empty where there is none."""
    try:
        code = response.json().get("code")
    except (ValueError, AttributeError):
        return ""
    return code if isinstance(code, str) else ""


def _same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def _of_exception(exc: Exception, watch: _Watch, what: str) -> Failed | Unknown | None:
    if isinstance(exc, httpx2.LocalProtocolError) and not watch.sent:
        return Failed(kind="error", reason=f"{what}: its headers break HTTP", retryable=False)
    said = classify_exception(exc, watch.sent, request=what)
    if isinstance(said, Unknown) and not watch.sent:
        # Whatever it looks like: the transport had not begun.
        return Failed(
            kind="not_sent",
            reason=f"{what}: failed before it was sent ({type(exc).__name__})",
            retryable=True,
        )
    return said


def _of_answer(response: httpx2.Response, options: Options, what: str) -> Failed | Unknown | None:
    status, headers, now = response.status_code, response.headers, clock.unix_us() / 1_000_000
    text = f"{status} from {what}"
    if status in options.get("accepted", _NONE):
        return None
    if status in options.get("declined", _NONE):
        return failed_answer("rejected", text, status, headers, now, retryable=False)
    if status in options.get("not_sent", _NONE):
        return failed_answer("not_sent", text, status, headers, now, retryable=True)
    if status in options.get("unknown", _NONE):
        return Unknown(reason=text, clue=f"HTTP {status}")
    return classify_response(status, headers, now, request=what)
