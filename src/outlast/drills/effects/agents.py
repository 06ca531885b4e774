"""The drill's app: one agent, and a tool for every cell, declared as its effect class and fault need it."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from outlast.app import Outlast
from outlast.core.retry import Backoff
from outlast.drills.effects.matrix import CELLS, Cell
from outlast.engine.context import TaskContext
from outlast.engine.declaring import ToolOptions
from outlast.tools.call import ToolCall

__all__ = ["VISIBLE_S", "Places", "build"]

VISIBLE_S: Final = 0.5
"""How long after its deadline an effect may take to be found in the ticket service."""
_RETRY: Final = Backoff(base_s=0.1, max_s=0.4, jitter_s=0.1, attempts=8, total_s=90.0)
_TIMEOUT_S: Final = {"act_hang": 1.0, "swallowed": 1.0, "frozen": 1.0}
"""Of calls that are to run into it."""
_LONG_S: Final = {"late_answer", "late_refusal", "killed"}
"""Faults whose calls are held for as long as a freeze lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are. keys, plain: the ticket service that honours keys, and the one that ignores them.
    closed: a port that refuses every connection."""

    keys: str
    plain: str
    closed: str

    def environ(self) -> dict[str, str]:
        """Answer the variables by which a worker finds them."""
        return {
            "OUTLAST_DRILL_KEYS_URL": self.keys,
            "OUTLAST_DRILL_PLAIN_URL": self.plain,
            "OUTLAST_DRILL_CLOSED_URL": self.closed,
        }

    @classmethod
    def of_environ(cls) -> Places:
        """Read what ``environ`` answered."""
        return cls(
            keys=os.environ["OUTLAST_DRILL_KEYS_URL"],
            plain=os.environ["OUTLAST_DRILL_PLAIN_URL"],
            closed=os.environ["OUTLAST_DRILL_CLOSED_URL"],
        )


def build(database_url: str, places: Places) -> Outlast:
    """Make the app."""
    app = Outlast("drill", database_url=database_url)
    for cell in CELLS:
        url = places.keys if cell.effect == "keyed" else places.plain
        app.tool(**_options(cell, url))(_body(cell, url, places.closed))

    @app.agent(version="1")
    async def act(task: TaskContext, tool: str, invoice: str, ticket: str, call_ids: list[str]) -> list[Any]:
        """Call one tool, once under each call id that the model comes up with."""
        return [await task.call(tool, invoice=invoice, ticket=ticket, key=call) for call in call_ids]

    return app


def _options(cell: Cell, url: str) -> ToolOptions:
    fault = cell.fault.name
    options: ToolOptions = {
        "name": cell.tool,
        "effect": cell.effect,  # type: ignore[typeddict-item]
        "timeout": 60.0 if fault in _LONG_S else _TIMEOUT_S.get(fault, 5.0),
        "retry": _RETRY,
    }
    if cell.effect == "keyed":
        options["key_window"] = "24h"
        if cell.fault.keyed_asks:
            options["find"] = _find_by_key(url)
    if cell.effect == "queryable":
        options["find"] = _find_by_invoice(url)
        options["visible_within"] = VISIBLE_S
    if cell.fault.family == "repeats" and cell.effect != "read":
        options["business_key"] = "{invoice}"
        options["once"] = "90d"
        options["on_repeat"] = "first"
    return options


def _find_by_key(url: str) -> Callable[..., Any]:
    async def find(call: ToolCall, invoice: str) -> Any:
        """Answer the tickets that were made under this key."""
        asked = {"idempotency_key": call.idempotency_key, "invoice": invoice}
        return (await call.http.get(f"{url}/tickets", params=asked)).json()

    return find


def _find_by_invoice(url: str) -> Callable[..., Any]:
    async def find(call: ToolCall, invoice: str) -> Any:
        """Answer the tickets that there are for this invoice."""
        return (await call.http.get(f"{url}/tickets", params={"invoice": invoice})).json()

    return find


def _body(cell: Cell, url: str, closed: str) -> Callable[..., Any]:
    async def body(call: ToolCall, invoice: str, ticket: str) -> Any:
        """Do what the effect class stands for."""
        base = closed if cell.fault.name == "refused" and call.attempt == 1 else url
        path, value = "/tickets", {"invoice": invoice, "amount": "118.50"}
        if cell.effect == "idempotent":
            path, value = f"/tickets/{ticket}/note", {"invoice": invoice, "text": "seen by the drill"}
        if cell.fault.name == "frozen":
            return await _in_one_piece(call, cell.method, base, path, value)
        if cell.effect == "read":
            return (await call.http.get(f"{base}/tickets", params={"invoice": invoice})).json()
        return (await call.http.request(cell.method, f"{base}{path}", json=value)).json()

    return body


async def _in_one_piece(call: ToolCall, method: str, base: str, path: str, value: dict[str, str]) -> Any:
    """Send with a client of one's own that nothing can cut.

    What is frozen between the last look at the lease and the send then really sends when it thaws; a request
    through ``call.http`` would notice that its time is over.
    """
    async with call.sending():
        connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=5.0)
        try:
            headers = {"Idempotency-Key": call.idempotency_key, "Outlast-Epoch": str(call.epoch)}
            if method == "GET":
                connection.request("GET", f"{path}?invoice={value['invoice']}", headers=headers)
            else:
                connection.request(method, path, json.dumps(value).encode(), headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
