"""The drill's app: tools that can be undone, and agents, in three generations of code.

Generation 1 is what tasks begin with. Generation 2 is a careless deploy: other code under the same version.
Generation 3 is a careful one: the old version as it was, and new ones beside it. Generation 4 is careful too,
of another agent, so that nobody else serves what its workers leave.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from outlast.app import Outlast
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.tools.call import ToolCall

__all__ = ["CARELESS", "OLD", "PROVIDER", "ROLLED", "SIDE_BY_SIDE", "Place", "build"]

OLD: Final = 1
CARELESS: Final = 2
SIDE_BY_SIDE: Final = 3
ROLLED: Final = 4
PROVIDER: Final = "acme"
_RETRY: Final = Backoff(base_s=0.1, max_s=0.4, jitter_s=0.1, attempts=8, total_s=90.0)
_ONCE: Final = Backoff(base_s=0.1, max_s=0.1, jitter_s=0.0, attempts=1)
_LONG_S: Final = 60.0
_BRIEF_S: Final = 2.0
"""Of calls that are to run into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the ticket service is, and which generation of the code runs."""

    tickets: str
    generation: int = OLD

    def environ(self) -> dict[str, str]:
        """Answer the variables by which a process finds them."""
        return {
            "OUTLAST_DRILL_TICKETS_URL": self.tickets,
            "OUTLAST_DRILL_GENERATION": str(self.generation),
        }

    @classmethod
    def of_environ(cls) -> Place:
        """Read what ``environ`` answered."""
        return cls(
            tickets=os.environ["OUTLAST_DRILL_TICKETS_URL"],
            generation=int(os.environ["OUTLAST_DRILL_GENERATION"]),
        )


def build(database_url: str, place: Place) -> Outlast:
    """Make the app of one generation."""
    app = Outlast("drill", database_url=database_url)
    _tools(app, place.tickets)
    _regretting(app)
    _trying(app)
    _deployed(app, place.generation)
    _conversing(app)
    return app


# -- tools ---------------------------------------------------------------------------------------------------


def _tools(app: Outlast, tickets: str) -> None:
    async def file(call: ToolCall, invoice: str, amount: str) -> Any:
        """File a ticket."""
        return (
            await call.http.post(f"{tickets}/tickets", json={"invoice": invoice, "amount": amount})
        ).json()

    async def find(call: ToolCall, invoice: str) -> Any:
        """Answer the tickets that were made under this key."""
        asked = {"idempotency_key": call.idempotency_key, "invoice": invoice}
        return (await call.http.get(f"{tickets}/tickets", params=asked)).json()

    async def withdraw(call: ToolCall, invoice: str, result: Any) -> Any:
        """Withdraw the ticket again."""
        url = f"{tickets}/tickets/{result['id']}/withdraw"
        return (await call.http.post(url, json={"invoice": invoice})).json()

    keyed: dict[str, Any] = {"effect": "keyed", "key_window": "24h", "retry": _RETRY}
    app.tool(name="withdraw", timeout=_LONG_S, **keyed)(withdraw)
    app.tool(name="withdraw_soon", timeout=_BRIEF_S, **keyed)(withdraw)
    app.tool(name="withdraw_manual", effect="manual", timeout=_LONG_S)(withdraw)
    keyed["find"] = find
    for name in ("file", "file_otherwise"):
        app.tool(name=name, undo="withdraw", timeout=_LONG_S, **keyed)(file)
    app.tool(name="file_soon", undo="withdraw_soon", timeout=_LONG_S, **keyed)(file)
    app.tool(name="file_for_good", undo="withdraw_manual", timeout=_LONG_S, **keyed)(file)
    app.tool(name="file_keyed", timeout=_LONG_S, **keyed)(file)
    app.tool(name="file_once", timeout=_LONG_S, **{**keyed, "retry": _ONCE})(file)
    app.tool(
        name="file_queryable",
        effect="queryable",
        find=find,
        visible_within=0.5,
        undo="withdraw",
        timeout=_LONG_S,
        retry=_RETRY,
    )(file)
    app.tool(name="file_manual", effect="manual", undo="withdraw", timeout=_LONG_S)(file)
    app.tool(name="file_in_vain", effect="manual", timeout=_BRIEF_S)(file)


# -- agents that regret --------------------------------------------------------------------------------------


def _regretting(app: Outlast) -> None:
    @app.agent(version="1", on_failure="undo")
    async def regrets(task: TaskContext, invoice: str, tools: list[str], waits: bool) -> None:
        """File a ticket with each tool, and fail, or wait until it is cancelled."""
        for number, tool in enumerate(tools, 1):
            await task.call(tool, invoice=invoice, amount=str(number), key=f"file-{number}")
        if waits:
            await task.wait("go")
        raise LookupError("no such invoice")

    @app.agent(version="1", on_failure="undo")
    async def regrets_both(task: TaskContext, invoice: str) -> None:
        """File two tickets at once, and fail when both are there."""
        calls = [
            task.call("file", invoice=invoice, amount=str(number), key=f"file-{number}") for number in (1, 2)
        ]
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
        raise LookupError("no such invoice")


# -- agents that are tried again, and forked -----------------------------------------------------------------


def _trying(app: Outlast) -> None:
    @app.agent(version="1")
    async def tries(task: TaskContext, invoice: str, tool: str, how: str) -> str:
        """File a ticket; fail in its first attempt as it is told to."""

        async def flaky() -> None:
            if task.attempt == 1:
                raise ConnectionError("not yet")

        ticket = await task.call(tool, invoice=invoice, amount="1", key="file")
        if how == "step":
            await task.step(flaky, name="flaky", key="flaky")
        if how == "raises" and task.attempt == 1:
            raise LookupError("not yet")
        if how == "waits":
            await task.wait("go", key="go")
        return str(ticket["id"])

    @app.agent(version="1")
    async def notes(task: TaskContext, invoice: str, tool: str) -> str:
        """Read, file a ticket, and note it."""

        async def read() -> str:
            return "1"

        async def note(ticket: str) -> str:
            return f"noted {ticket}"

        amount = await task.step(read, name="read", key="read")
        ticket = await task.call(tool, invoice=invoice, amount=amount, key="file")
        return str(await task.step(note, ticket["id"], name="note", key="note"))

    @app.agent(version="1")
    async def ticks(task: TaskContext) -> None:
        """Do what a schedule is for: one step."""
        await task.step(asyncio.sleep, 0, name="tick")


# -- agents that are deployed --------------------------------------------------------------------------------

Planned = list[tuple[str, str]]
_PLAN: Final[Planned] = [("file", "1"), ("file", "2")]
_CHANGES: Final[dict[str, Planned]] = {
    "none": _PLAN,
    "renamed": [("file_otherwise", "1"), ("file", "2")],
    "inserted": [("file", "9"), *_PLAN],
    "swapped": _PLAN[::-1],
    "removed": _PLAN[1:],
}


def _journey(change: Callable[[str], Planned], *more: str) -> Callable[..., Any]:
    async def journey(task: TaskContext, invoice: str, deploy: str) -> str:
        """Make the calls that are planned, numbered as a model numbers them; wait; make the last ones."""
        for number, (tool, amount) in enumerate(change(deploy), 1):
            await task.call(tool, invoice=invoice, amount=amount, key=f"call-{number}")
        await task.wait("go", key="go")
        for amount in ("3", *more):
            await task.call("file", invoice=invoice, amount=amount, key=f"last-{amount}")
        return "done"

    return journey


def _roll(version: str) -> Callable[..., Any]:
    async def rolls(task: TaskContext, invoice: str, waits: bool) -> list[str]:
        """Say which code runs, before and after a ticket, and a wait where it is told to."""

        async def mark() -> str:
            return version

        before = await task.step(mark, name="mark", key="before")
        await task.call("file", invoice=invoice, amount="1", key="file")
        if waits:
            await task.wait("go", key="go")
        return [before, await task.step(mark, name="mark", key="after")]

    return rolls


def _deployed(app: Outlast, generation: int) -> None:
    def as_it_was(deploy: str) -> Planned:
        return _PLAN

    def carelessly(deploy: str) -> Planned:
        return _CHANGES[deploy]

    app.agent(name="journey", version="1")(_journey(carelessly if generation == CARELESS else as_it_was))
    app.agent(name="rolls", version="1")(_roll("1"))
    if generation == SIDE_BY_SIDE:
        app.agent(name="journey", version="differs")(_journey(lambda deploy: _CHANGES["inserted"]))
        app.agent(name="journey", version="2")(_journey(as_it_was, "4"))
    if generation == ROLLED:
        app.agent(name="rolls", version="2")(_roll("2"))


# -- agents that hold conversations --------------------------------------------------------------------------


def _conversing(app: Outlast) -> None:
    @app.agent(version="1")
    async def holds(task: TaskContext, session: str, count: int) -> list[str]:
        """Hold a session at a provider, and hear so many events of it."""
        await task.attach(PROVIDER, session)
        return [(await task.events_of(PROVIDER)).id for _ in range(count)]

    @app.agent(version="1")
    async def polls(task: TaskContext, session: str, event: str) -> str:
        """Find an event where nobody sends any, and bring it to whoever holds the session."""

        async def poll() -> str:
            brought = await app.outside(PROVIDER, session, event_id=event, data={"text": event})
            return brought.kind

        return str(await task.step(poll, name="poll"))
