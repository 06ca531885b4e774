"""Requests over HTTP: what is sent, when it is sent again, and streams that go on where they broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from outlast import clock
from outlast.connecting.refusals import refusal
from outlast.core import values
from outlast.core.record import record
from outlast.errors import ConfigurationError, OutlastError, Unavailable

AWAY: Final = (502, 503, 504)
"""Nobody has served the request, or nobody says so."""
ANSWER_S: Final = 30.0
"""How long an answer may take, beyond what it was asked to wait."""
SILENCE_S: Final = 60.0
"""How long a stream may say nothing, not even that it is there."""
LONGEST_PAUSE_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.05
NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
ACCEPT: Final = "application/json, application/problem+json"


@record
class Answer:
    """What the service answered. body: its JSON value, None where it has none."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Wire:
    """Connections to one service.

    url: where its API is, without ``/v1``. patience_s: how long the service may be away, in a row.
    """

    def __init__(self, url: str, api_key: str | None, patience_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"{url!r} is not where a service is: write http://host:port or https://…"
            )
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._client: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Be ready to ask. Idempotent."""
        if self._client is None:
            self._client = httpx2.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=httpx2.Timeout(ANSWER_S, connect=5.0, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            )

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def get(self, path: str, *, wait: int | None = None, **query: Any) -> Any:
        """Read something; answer its body. wait: seconds that the service may hold the answer."""
        headers = {} if wait is None else {"Prefer": f"wait={wait}"}
        return (await self.ask("GET", path, query=query, headers=headers, wait=wait or 0, again=True)).body

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait: int = 0,
        again: bool,
    ) -> Answer:
        """Ask the service. body: a value to send as JSON; content: a body as it stands. again: whether to
        repeat it is harmless.

        Raises what the service refuses it with, by its code, and Unavailable while it is away.
        """
        sent = dict(headers or {}, Accept=ACCEPT)
        if body is not None:
            content = values.encode(values.normalise(body), what="the request").encode()
        if content is not None:
            sent["Content-Type"] = "application/json"
        params = {name: _written(value) for name, value in (query or {}).items() if value is not None}
        away = _Away(self._patience_s)
        while True:
            try:
                response = await self._ready().request(
                    method,
                    path,
                    content=content,
                    params=params,
                    headers=sent,
                    timeout=httpx2.Timeout(ANSWER_S + wait, connect=5.0, pool=None),
                )
            except NOT_SENT as error:
                await away.pause(self._unreached(error))
                continue
            except httpx2.TransportError as error:
                if not again:
                    raise Unavailable(
                        f"{method} {path}: the answer was lost ({type(error).__name__}); it may have been"
                        " done, so look before you ask again"
                    ) from error
                await away.pause(self._unreached(error))
                continue
            if response.status_code < 400:
                return self._answer(response)
            refused = refusal(response.status_code, response.headers, response.text)
            if not again or response.status_code not in AWAY:
                raise refused
            await away.pause(refused)

    async def events(self, path: str, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """Follow a stream of events above ``after`` until the service says that there is nothing more."""
        away = _Away(self._patience_s)
        while True:
            lost: OutlastError | None = None
            try:
                async with self._ready().stream(
                    "GET",
                    path,
                    headers={"Accept": "text/event-stream", "Last-Event-ID": str(after)},
                    timeout=httpx2.Timeout(SILENCE_S, connect=5.0, pool=None),
                ) as response:
                    if response.status_code == 204:
                        return
                    if response.status_code != 200:
                        await response.aread()
                        lost = refusal(response.status_code, response.headers, response.text)
                        if response.status_code not in AWAY:
                            raise lost
                    else:
                        async for frame in _frames(response):
                            away.back()
                            number = frame.get("id", "")
                            # One without a number says that the stream ends here, and not why the task would.
                            if number and int(number) > after:
                                after = int(number)
                                yield values.decode(frame["data"])
            except httpx2.TransportError as error:
                lost = self._unreached(error)
            await away.pause(lost or Unavailable(f"{self.url}: {path} streams nothing", retry_after=0.0))

    def _ready(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise ConfigurationError(
                f"the connection to {self.url} is not open: use 'async with Outlast.connect(…) as app:'"
            )
        return self._client

    def _answer(self, response: httpx2.Response) -> Answer:
        try:
            found = values.decode(response.text) if response.content else None
        except ValueError:
            raise ConfigurationError(
                f"{response.url} did not answer in JSON: is {self.url} the API of a service?"
            ) from None
        return Answer(status=response.status_code, headers=response.headers, body=found)

    def _unreached(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self.url} cannot be reached: {type(error).__name__}", retry_after=0.0)


class _Away:
    """How long the service has been away, and how long to leave it alone."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None
        self._tries = 0

    def back(self) -> None:
        """Note that it has answered."""
        self._since, self._tries = None, 0

    async def pause(self, error: OutlastError) -> None:
        """Wait before it is asked again; raise the error where patience is over by then."""
        now = clock.monotonic()
        if self._since is None:
            self._since = now
        pause = clock.uniform() * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._tries)
        pause = max(pause, min(error.retry_after, LONGEST_PAUSE_S) if isinstance(error, Unavailable) else 0.0)
        self._tries += 1
        if now + pause > self._since + self._patience_s:
            raise error
        await asyncio.sleep(pause)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _frames(response: httpx2.Response) -> AsyncIterator[dict[str, str]]:
    """Read server-sent events frame by frame; one that only keeps the connection alive is empty.

    By lines that end as the service ends them: JSON may hold other characters that some would end a line at.
    """
    frame: dict[str, str] = {}
    async for line in _lines(response):
        if not line:
            yield frame
            frame = {}
            continue
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            frame[name] = f"{frame[name]}\n{value}" if name == "data" and name in frame else value


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
