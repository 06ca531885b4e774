"""The storm's app: agents that do a little of everything, and tools of every effect class."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from outlast import app as app_module
from outlast import opening
from outlast.app import Outlast
from outlast.core.approval import Allow, Answer, Ask
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.errors import ConfigurationError, OperationError, WaitTimeout
from outlast.settings import Settings
from outlast.store.contract import Store
from outlast.tools.call import ToolCall

__all__ = ["AGENTS", "SIGNAL", "Place", "Theirs", "app_of", "build"]

SIGNAL: Final = "news"
AGENTS: Final = (
    "files", "fans_out", "transfers", "books", "listens", "asks", "has_children", "undoes", "fails_first",
    "rolls",
)  # fmt: skip
"""What clients submit."""
TIMEOUT_S: Final = 2.0
VISIBLE_S: Final = 0.5
_RETRY: Final = Backoff(base_s=0.2, max_s=1.0, jitter_s=0.3, attempts=20, total_s=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things are. keys, plain: the ticket service that honours keys, and the one that ignores them.
    generation: of the code; the second has another version of one agent beside the first. app: somebody's own
    instead of the storm's, as ``module:app``."""

    keys: str
    plain: str
    generation: int = 1
    app: str = ""

    def environ(self) -> dict[str, str]:
        """Answer the variables by which a process finds them."""
        return {
            "OUTLAST_DRILL_KEYS_URL": self.keys,
            "OUTLAST_DRILL_PLAIN_URL": self.plain,
            "OUTLAST_DRILL_GENERATION": str(self.generation),
            "OUTLAST_DRILL_APP": self.app,
        }

    @classmethod
    def of_environ(cls) -> Place:
        """Read what ``environ`` answered."""
        return cls(
            keys=os.environ["OUTLAST_DRILL_KEYS_URL"],
            plain=os.environ["OUTLAST_DRILL_PLAIN_URL"],
            generation=int(os.environ["OUTLAST_DRILL_GENERATION"]),
            app=os.environ["OUTLAST_DRILL_APP"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """Somebody's own app under a storm. app: as ``module:app``. agent, input: of every task."""

    app: str
    agent: str
    input: dict[str, Any]


def app_of(place: Place, witness: Callable[[Store], Store]) -> Outlast:
    """Answer the app that a process of the storm runs. witness: is put before its store.

    Raises ConfigurationError where somebody's own app names a database itself: a storm is not for that.
    """

    def store_of(url: str) -> Store:
        if url != Settings().database_url:
            raise ConfigurationError("a storm has a database of its own: leave it to OUTLAST_DATABASE_URL")
        return witness(opening.store_for(url))

    # From outside, since whose app it is has to make no difference to it.
    app_module.store_for = store_of  # type: ignore[attr-defined]
    if not place.app:
        return build(Outlast("storm"), place)
    module, _, name = place.app.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Outlast)
    return found


def build(app: Outlast, place: Place) -> Outlast:
    """Give an app the storm's tools and agents."""
    _tools(app, place)
    _callers(app)
    _waiters(app)
    _families(app)
    _versions(app, place.generation)
    return app


# -- tools ---------------------------------------------------------------------------------------------------


def over_limit(amount: int) -> Answer:
    """Ask people about odd amounts."""
    return Ask("an odd amount", expires=20) if amount % 2 else Allow()


def _tools(app: Outlast, place: Place) -> None:
    keyed: dict[str, Any] = {"effect": "keyed", "key_window": "24h"}

    async def by_key(call: ToolCall) -> Any:
        """Answer the tickets that were made under this key."""
        asked = {"idempotency_key": call.idempotency_key}
        return (await call.http.get(f"{place.keys}/tickets", params=asked)).json()

    async def by_invoice(call: ToolCall, invoice: str) -> Any:
        """Answer the tickets that there are for this invoice."""
        return (await call.http.get(f"{place.plain}/tickets", params={"invoice": invoice})).json()

    async def post(call: ToolCall, url: str, invoice: str, amount: int) -> Any:
        reply = await call.http.post(f"{url}/tickets", json={"invoice": invoice, "amount": amount})
        return reply.json()

    async def file(call: ToolCall, invoice: str, amount: int) -> Any:
        """File a ticket where keys are honoured, and that can be asked."""
        return await post(call, place.keys, invoice, amount)

    async def file_blindly(call: ToolCall, invoice: str, amount: int) -> Any:
        """File a ticket where keys are honoured; nobody asks."""
        return await post(call, place.keys, invoice, amount)

    async def file_if_agreed(call: ToolCall, invoice: str, amount: int) -> Any:
        """File a ticket, if people agree to it."""
        return await post(call, place.keys, invoice, amount)

    async def note(call: ToolCall, ticket: str, text: str) -> Any:
        """Put a note on a ticket."""
        return (await call.http.put(f"{place.keys}/tickets/{ticket}/note", json={"text": text})).json()

    async def look(call: ToolCall, invoice: str) -> int:
        """Count the tickets of an invoice."""
        reply = await call.http.get(f"{place.keys}/tickets", params={"invoice": invoice})
        return len(reply.json())

    async def book(call: ToolCall, invoice: str, amount: int) -> Any:
        """File a ticket where keys mean nothing, and that can be asked."""
        return await post(call, place.plain, invoice, amount)

    async def transfer(call: ToolCall, invoice: str, amount: int) -> Any:
        """File a ticket where keys mean nothing and nobody can ask."""
        return await post(call, place.plain, invoice, amount)

    async def withdraw(call: ToolCall, result: dict[str, Any]) -> Any:
        """Take a ticket back."""
        return (await call.http.post(f"{place.keys}/tickets/{result['id']}/withdraw", json={})).json()

    declared: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
        (file, {**keyed, "find": by_key, "undo": "withdraw"}),
        (file_blindly, keyed),
        (file_if_agreed, {**keyed, "approval": over_limit}),
        (note, {"effect": "idempotent"}),
        (look, {"effect": "read"}),
        (book, {"effect": "queryable", "find": by_invoice, "visible_within": VISIBLE_S}),
        (transfer, {"effect": "manual"}),
        (withdraw, keyed),
    )
    for function, options in declared:
        app.tool(timeout=TIMEOUT_S, retry=_RETRY, **options)(function)


# -- agents --------------------------------------------------------------------------------------------------


def read_invoice(invoice: str) -> str:
    """Compute something that is not computed twice."""
    return invoice.upper()


def _callers(app: Outlast) -> None:
    @app.agent(version="1")
    async def files(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """File one ticket, rest, and put a note on it."""
        read = await task.step(read_invoice, invoice)
        ticket = await task.call("file", invoice=read, amount=amount)
        await task.emit("progress", {"filed": ticket["id"]})
        await task.sleep(0.5)
        await task.call("note", ticket=ticket["id"], text=f"of {invoice}")
        return [ticket["id"]]

    @app.agent(version="1")
    async def fans_out(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Do three things side by side."""

        async def branch(number: int, tool: str) -> str:
            name = await task.step(read_invoice, f"{invoice}/{number}")
            await task.call("look", invoice=name)
            ticket = await task.call(tool, invoice=name, amount=amount)
            return str(ticket["id"])

        tools = ("file", "file_blindly", "file_blindly")
        return list(await task.gather(*(branch(number, tool) for number, tool in enumerate(tools))))

    @app.agent(version="1")
    async def transfers(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Do what only a person can settle."""
        ticket = await task.call("transfer", invoice=invoice, amount=amount, key="the-money")
        return [ticket["id"]]

    @app.agent(version="1")
    async def books(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Do what the other side can be asked about."""
        ticket = await task.call("book", invoice=invoice, amount=amount)
        return [ticket["id"]]

    @app.agent(version="1", retry=Backoff(base_s=0.2, max_s=1.0, jitter_s=0.2, attempts=6))
    async def fails_first(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Fail once after the call, and do nothing twice for it."""
        ticket = await task.call("file_blindly", invoice=invoice, amount=amount)
        if task.attempt == 1:
            raise ValueError("not yet")
        return [ticket["id"]]

    @app.agent(version="1", on_failure="undo")
    async def undoes(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """File two tickets, and find that it was all wrong."""
        first = await task.call("file", invoice=invoice, amount=amount)
        await task.call("file", invoice=f"{invoice}/2", amount=amount)
        if amount % 3:
            raise ValueError("it was all wrong")
        return [first["id"]]


def _waiters(app: Outlast) -> None:
    @app.agent(version="1")
    async def listens(task: TaskContext, invoice: str, amount: int) -> list[Any]:
        """Wait for a signal for as long as it takes, file, and wait for another one for a moment."""
        first = await task.wait(SIGNAL)
        ticket = await task.call("file_blindly", invoice=invoice, amount=amount)
        try:
            second = await task.wait(SIGNAL, timeout=1.0)
        except WaitTimeout:
            second = None
        return [ticket["id"], first, second]

    @app.agent(version="1")
    async def asks(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Ask about two calls, one after the other; live with every answer."""
        tickets = []
        for number in range(2):
            try:
                ticket = await task.call(
                    "file_if_agreed", invoice=f"{invoice}/{number}", amount=amount + number
                )
            except OperationError:
                continue
            tickets.append(ticket["id"])
        return tickets


def _families(app: Outlast) -> None:
    @app.agent(version="1")
    async def errand(task: TaskContext, invoice: str, amount: int) -> str:
        """Do a part of somebody's work."""
        await task.sleep(0.2 * (amount % 4))
        ticket = await task.call("file_blindly", invoice=invoice, amount=amount)
        return str(ticket["id"])

    @app.agent(version="1")
    async def has_children(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """Have two children and wait for them."""
        children = [
            task.spawn("errand", {"invoice": f"{invoice}/{number}", "amount": amount + number})
            for number in range(2)
        ]

        async def end(child: Any) -> str:
            try:
                return str(await child.result())
            except OperationError as error:
                return error.code

        return list(await task.gather(*(end(child) for child in children)))


def _versions(app: Outlast, generation: int) -> None:
    async def rolls(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """File under the first version."""
        ticket = await task.call("file", invoice=invoice, amount=amount, key="first")
        await task.sleep(0.6)
        return ["1", ticket["id"]]

    async def rolls_on(task: TaskContext, invoice: str, amount: int) -> list[str]:
        """File otherwise under the second version."""
        await task.sleep(0.3)
        ticket = await task.call("file_blindly", invoice=invoice, amount=amount, key="second")
        return ["2", ticket["id"]]

    app.agent(name="rolls", version="1")(rolls)
    if generation > 1:
        app.agent(name="rolls", version="2")(rolls_on)
