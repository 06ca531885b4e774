"""A client of the API as it should be written: a bound on every question, and no answer is no answer."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx2

__all__ = ["KEYS", "Answer", "Client", "Lost"]

TIMEOUT_S: Final = 5.0
KEYS: Final = {"ann": "k-ann", "bob": "k-bob", "clerk": "k-clerk"}
"""Who may ask, by the keys of all campaigns; each has every role that the storm needs."""
_FAULTS: Final = (httpx2.HTTPError, OSError, json.JSONDecodeError)


class Lost(Exception):
    """No answer came that says what happened; it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered."""

    status: int
    body: Any
    replayed: bool = False


class Client:
    """Asks any of several API processes. ports: of the relays before them. chance: which one."""

    def __init__(self, ports: Sequence[int], chance: random.Random) -> None:
        self._ports = ports
        self._chance = chance
        self._http = httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT_S)

    async def close(self) -> None:
        """Give up every connection."""
        await self._http.aclose()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._chance.choice(self._ports)}/v1{path}"

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        who: str = "clerk",
        key: str | None = None,
        **query: str | int,
    ) -> Answer:
        """Ask once. Raises Lost, also for answers of the kind 5xx, which leave open what was done."""
        headers = {"Authorization": f"Bearer {KEYS[who]}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            reply = await self._http.request(
                method, self._url(path), json=body, headers=headers, params=query
            )
            if reply.status_code >= 500:
                raise Lost(f"{method} {path}: {reply.status_code}")
            told = reply.json() if reply.content else None
        except _FAULTS as error:
            raise Lost(f"{method} {path}: {type(error).__name__}") from error
        replayed = reply.headers.get("Idempotent-Replayed") == "true"
        return Answer(status=reply.status_code, body=told, replayed=replayed)

    async def follow(self, task: str, after: int) -> AsyncIterator[tuple[int, str]]:
        """Follow a task's stream on one connection; answer numbers and kinds. Raises Lost, also for the end
        of a connection before that of the stream."""
        headers = {
            "Authorization": f"Bearer {KEYS['clerk']}",
            "Accept": "text/event-stream",
            "Last-Event-ID": str(after),
        }
        try:
            async with self._http.stream("GET", self._url(f"/tasks/{task}/events"), headers=headers) as reply:
                if reply.status_code == 204:
                    return
                if reply.status_code != 200:
                    raise Lost(f"stream of {task}: {reply.status_code}")
                number = ""
                async for line in reply.aiter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        number = value
                    elif name == "event" and number:
                        yield int(number), value
                    elif not line:
                        number = ""
        except _FAULTS as error:
            raise Lost(f"stream of {task}: {type(error).__name__}") from error
        # Whether that was the stream's end is told by whoever is asked next.
        raise Lost(f"stream of {task}: its connection ended")
