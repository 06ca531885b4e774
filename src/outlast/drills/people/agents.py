"""The drill's app: tools under policies that its cells need, and agents that wait, ask and are cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from outlast.app import Outlast
from outlast.core.approval import Allow, Answer, Ask, Deny
from outlast.engine.context import TaskContext
from outlast.errors import OperationError, WaitTimeout
from outlast.tools.call import ToolCall

__all__ = ["CHOICES", "LIMIT", "Place", "build", "object_of", "policy_of"]

LIMIT: Final = Decimal("80.00")
CHOICES: Final = ("travel", "office")
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things are, and when.

    tickets: the ticket service. folder: where policies and objects lie, and steps leave their marks.
    generation: 1 before every process died, 2 after; what the agents plan, and one tool's version, change.
    """

    tickets: str
    folder: Path
    generation: int = 1

    def environ(self) -> dict[str, str]:
        """Answer the variables by which a process finds them."""
        return {
            "OUTLAST_DRILL_TICKETS_URL": self.tickets,
            "OUTLAST_DRILL_FOLDER": str(self.folder),
            "OUTLAST_DRILL_GENERATION": str(self.generation),
        }

    @classmethod
    def of_environ(cls) -> Place:
        """Read what ``environ`` answered."""
        return cls(
            tickets=os.environ["OUTLAST_DRILL_TICKETS_URL"],
            folder=Path(os.environ["OUTLAST_DRILL_FOLDER"]),
            generation=int(os.environ["OUTLAST_DRILL_GENERATION"]),
        )


def policy_of(folder: Path, invoice: str) -> Path:
    """Answer the file with the policy for one invoice: ``allow``, ``ask`` or ``deny``."""
    return folder / f"policy-{invoice}"


def object_of(folder: Path, invoice: str) -> Path:
    """Answer the file with the version of one invoice."""
    return folder / f"object-{invoice}"


def build(database_url: str, place: Place, *, secret: str | None = None) -> Outlast:
    """Make the app. secret: by default that of the environment."""
    app = Outlast("drill", database_url=database_url, secret=secret)
    _tools(app, place)
    app.step(executor="process")(compute)
    _callers(app, place)
    _waiters(app)
    _workers(app)
    return app


# -- tools ---------------------------------------------------------------------------------------------------


def over_limit(amount: Decimal) -> Answer:
    """Ask the supervisor about what is over the limit."""
    return Ask(f"over by {amount - LIMIT}") if amount > LIMIT else Allow()


def briefly(lasts_s: float) -> Answer:
    """Ask, but not for long."""
    return Ask("only for a moment", expires=lasts_s)


def of_finance(amount: Decimal) -> Answer:
    """Ask two people of the finance department, neither of them the one who wants it."""
    return Ask("a large amount", roles=("finance",), quorum=2, four_eyes=True)


def _tools(app: Outlast, place: Place) -> None:
    async def file(call: ToolCall, invoice: str, amount: Decimal) -> Any:
        """File a ticket."""
        reply = await call.http.post(
            f"{place.tickets}/tickets", json={"invoice": invoice, "amount": str(amount)}
        )
        return reply.json()

    async def file_soon(call: ToolCall, invoice: str, amount: Decimal, lasts_s: float) -> Any:
        """File a ticket, if it is agreed to in time."""
        return await file(call, invoice, amount)

    async def as_it_stands(invoice: str) -> dict[str, str]:
        """Read which version of the invoice there is."""
        return {"object": invoice, "version": object_of(place.folder, invoice).read_text()}

    def as_filed(invoice: str) -> Answer:
        """Ask the policy that lies in a file; where there is none, nobody can know."""
        verdict = policy_of(place.folder, invoice).read_text()
        answers: dict[str, Answer] = {
            "allow": Allow(),
            "ask": Ask("as the rules want it"),
            "deny": Deny("not any more"),
        }
        return answers[verdict]

    plain: dict[str, Any] = {"effect": "manual", "timeout": _TIMEOUT_S}
    app.tool(name="plain", **plain)(file)
    for name in ("file", "file_or_not", "file_although", "file_by_rule"):
        app.tool(name=name, approval=over_limit, **plain)(file)
    app.tool(name="file_version", approval=over_limit, version=str(place.generation), **plain)(file)
    app.tool(name="file_object", approval=over_limit, target=as_it_stands, **plain)(file)
    app.tool(name="file_strictly", approval=as_filed, **plain)(file)
    app.tool(name="file_large", approval=of_finance, **plain)(file)
    for name in ("file_soon", "file_late"):
        app.tool(name=name, approval=briefly, **plain)(file_soon)


# -- agents --------------------------------------------------------------------------------------------------


async def _told(work: Awaitable[Any]) -> Any:
    """Answer the amount of the ticket that was filed, or why there is none."""
    try:
        ticket = await work
    except OperationError as error:
        return {"code": error.code, "reason": error.reason}
    return ticket["amount"]


def _callers(app: Outlast, place: Place) -> None:
    @app.agent(version="1")
    async def calls(task: TaskContext, calls: list[Any], again: list[Any]) -> list[Any]:
        """Make calls one after the other; others after the restart, where it is told so."""
        planned = again if again and place.generation > 1 else calls
        return [await _told(task.call(one["tool"], key=one["key"], **one["arguments"])) for one in planned]

    @app.agent(version="1")
    async def calls_at_once(task: TaskContext, calls: list[Any]) -> list[Any]:
        """Make the calls of one turn side by side; go on when all are settled."""
        return list(
            await task.gather(
                *(_told(task.call(one["tool"], key=one["key"], **one["arguments"])) for one in calls)
            )
        )

    @app.agent(version="1")
    async def stubborn(task: TaskContext, invoice: str, over_s: float) -> None:
        """Call, ignore every cancellation until the deadline has been over for so long, and call again."""
        await task.call("plain", key="act-1", invoice=invoice, amount="1")
        assert task.deadline is not None
        while time.time() < task.deadline.timestamp() + over_s:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        await task.call("plain", key="act-2", invoice=invoice, amount="2")


def _waiters(app: Outlast) -> None:
    @app.agent(version="1")
    async def asks(task: TaskContext) -> Any:
        """Ask a person."""
        return await task.ask("Which account is it for?", choices=CHOICES)

    @app.agent(version="1")
    async def listens(task: TaskContext, count: int, pause_s: float) -> list[Any]:
        """Wait for so many signals, after a pause."""
        if pause_s:
            await task.step(asyncio.sleep, pause_s, name="pause")
        return [await task.wait("news") for _ in range(count)]

    @app.agent(version="1")
    async def calls_back(task: TaskContext) -> list[Any]:
        """Give away two places to answer to, the second for a moment only."""
        first, second = task.callback("payment"), task.callback("receipt", timeout=1.0)
        await task.emit("progress", {"first": first.token, "second": second.token})
        try:
            receipt = await second
        except WaitTimeout:
            receipt = "none in time"
        return [await first, receipt]

    @app.agent(version="1")
    async def keeps_time(task: TaskContext, invoice: str, seconds: float) -> list[Any]:
        """Use every kind of time limit once."""
        await task.sleep(seconds)
        try:
            news = await task.wait("news", timeout=seconds)
        except WaitTimeout:
            news = "none in time"
        arguments = {"invoice": invoice, "amount": "118.50", "lasts_s": seconds}
        return [news, await _told(task.call("file_soon", key="act-1", **arguments))]


def _workers(app: Outlast) -> None:
    @app.agent(version="1")
    async def works(task: TaskContext, seconds: float) -> str:
        """Do one step, then something in memory."""
        await task.step(asyncio.sleep, 0, name="begin")
        await asyncio.sleep(seconds)
        return "done"

    @app.agent(version="1")
    async def tree(task: TaskContext, depth: int, width: int) -> list[Any]:
        """Have children that have children, and wait for all of them."""
        if depth == 0:
            return [await task.wait("news")]
        children = [
            task.spawn("tree", {"depth": depth - 1, "width": width}, pool="steady") for _ in range(width)
        ]
        return [await child.result() for child in children]

    @app.agent(version="1")
    async def waits_for_child(task: TaskContext) -> Any:
        """Have a child in another pool, and wait for its end."""
        return await task.spawn("listens", {"count": 1, "pause_s": 0}, pool="steady", key="child").result()

    @app.agent(version="1")
    async def computes(task: TaskContext, invoice: str, folder: str) -> Any:
        """Compute in a process of its own, for ever in the first attempt, then file a ticket."""
        path = f"{folder}/computes-{task.attempt}-{invoice}"
        await task.step(compute, path, task.attempt == 1, name="compute", key=f"compute-{task.attempt}")
        return await _told(task.call("plain", key="act-1", invoice=invoice, amount="1"))


def compute(path: str, forever: bool) -> int:
    """Say that it began, then compute and never look whether it is to stop."""
    mark = Path(path)
    (mark.parent / f"{mark.name}.new").write_text(str(os.getpid()))
    (mark.parent / f"{mark.name}.new").rename(mark)
    digest = b""
    while forever:
        digest = hashlib.sha256(digest).digest()
        # The machine is for the others as well.
        time.sleep(0.002)
    return os.getpid()
