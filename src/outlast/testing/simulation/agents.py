"""The small app that schedules run: agents of several shapes, tools of several effect classes.

``refund`` is the plain one: a step, one keyed tool call with ``find``, a sleep that suspends. ``fan`` does
three side by side under three effect classes, ``transfer`` moves what only a person can settle, ``flaky``
fails and is run again, ``hurried`` has a deadline that may well pass. ``patient`` waits for signals,
``attentive`` does so while something else goes on, ``asker`` waits for people, ``family`` for children;
``racer`` takes what comes first, and ``undone`` takes back what it did. ``booker`` asks a service that knows
no keys, ``exclusive`` waits for others with its business key. Each answers the tickets that it made.
"""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.app import Outlast
from outlast.core.approval import Answer, Ask
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.engine.offers import Offers
from outlast.errors import OperationError, StoreUnavailable, WaitTimeout
from outlast.testing.simulation.world import Member, current_world
from outlast.tools.call import ToolCall

__all__ = [
    "AGENTS",
    "APP",
    "LISTENERS",
    "MAY_DO_AGAIN",
    "MAY_FAIL",
    "MAY_MAKE_MORE",
    "MUST_BE_ASKED",
    "PROVIDER",
    "SIGNAL",
    "TOOL_TIMEOUT_S",
    "open_app",
]

TOOL_TIMEOUT_S = 5
PROVIDER = "tickets"
"""All tools are one service's: where one is told to leave it alone, all are."""
VISIBLE_S = 16
"""After what time an effect shows at the latest; requests are late by less."""
STEP_S = 6
"""How long the one step takes that takes any time."""
APP = Outlast("simulation")
"""One registry for every world; bodies find their world by the context that they run in."""
AGENTS = (
    "refund", "fan", "transfer", "flaky", "hurried", "patient", "asker", "family", "racer", "undone",
    "booker", "exclusive", "attentive",
)  # fmt: skip
MAY_FAIL = frozenset({"hurried", "undone", "buyer"})
"""Agents whose tasks may fail although nothing is wrong."""
MAY_MAKE_MORE = frozenset({"racer", "undone"})
"""Agents whose calls may go on when they do not look any more."""
MAY_DO_AGAIN = frozenset({"family", "undone"})
"""Agents of which a fork rightly does again what was done: by other children, or since it was undone."""
MUST_BE_ASKED = frozenset({"pay"})
"""Tools about which policy always asks."""
SIGNAL = "news"
LISTENERS = frozenset({"patient", "racer", "attentive"})
"""Agents that wait for signals of that name."""


async def open_app(member: Member, offers: Offers | None = None) -> Outlast:
    """Answer the app as somebody has it who is no worker, as soon as the store lets them open it.

    offers: of the workers in the same process, where there are any.
    """
    app = Outlast("people", store=member.store)
    if offers is not None:
        app._offers = offers
    app.registry = APP.registry
    while True:
        try:
            await app.open()
        except StoreUnavailable:
            await asyncio.sleep(0.5)
            continue
        return app


# -- tools --------------------------------------------------------------------------------------------------


async def find_ticket(call: ToolCall) -> dict[str, Any] | None:
    """Look a ticket up by the call's key."""
    return await current_world().service.find(call)


async def _make(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


@APP.tool(effect="keyed", key_window="1h", find=find_ticket, timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def create_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; the service can be asked and deduplicates."""
    return await _make(call, invoice, amount)


@APP.tool(
    effect="keyed",
    key_window="1h",
    find=find_ticket,
    retry=Backoff(attempts=1),
    timeout=TOOL_TIMEOUT_S,
    provider=PROVIDER,
)
async def create_once(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket, and leave it to the agent to try again."""
    return await _make(call, invoice, amount)


@APP.tool(effect="keyed", key_window=8, timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def create_soon(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; the service cannot be asked, and promises to know the key for a short time."""
    return await _make(call, invoice, amount)


@APP.tool(effect="idempotent", timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def put_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; twice is once."""
    return await _make(call, invoice, amount)


@APP.tool(effect="manual", timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def move_money(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; whoever does not know whether it was made has to ask a person."""
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount}, forgetful=True)


@APP.tool(
    effect="queryable", find=find_ticket, visible_within=VISIBLE_S, timeout=TOOL_TIMEOUT_S, provider=PROVIDER
)
async def book(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; the service can be asked and knows no keys. Its client gives up before the call is cut,
    so that it is known to send nothing any more while the request may still be under way."""
    return await current_world().service.create(
        call, {"invoice": invoice, "amount": amount}, forgetful=True, patience_s=TOOL_TIMEOUT_S - 1
    )


@APP.tool(
    effect="keyed",
    key_window="1h",
    find=find_ticket,
    business_key="{till}",
    lock="wait",
    timeout=TOOL_TIMEOUT_S,
    provider=PROVIDER,
)
async def make_alone(call: ToolCall, till: str, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket while nobody else does."""
    return await _make(call, invoice, amount)


@APP.tool(effect="read", timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def look_up(call: ToolCall) -> bool:
    """Look whether there is a ticket under a key that never has one."""
    return await current_world().service.find(call) is None


async def withdraw(call: ToolCall, result: dict[str, Any]) -> dict[str, Any]:
    """Take a ticket back: a ticket of its own, that says which."""
    return await current_world().service.create(call, {"withdraws": result["ticket"]})


withdraw_surely = APP.tool(
    name="withdraw_surely", effect="idempotent", timeout=TOOL_TIMEOUT_S, provider=PROVIDER
)(withdraw)
withdraw_by_hand = APP.tool(
    name="withdraw_by_hand", effect="manual", timeout=TOOL_TIMEOUT_S, provider=PROVIDER
)(withdraw)


@APP.tool(
    effect="keyed",
    key_window="1h",
    find=find_ticket,
    undo="withdraw_surely",
    timeout=TOOL_TIMEOUT_S,
    provider=PROVIDER,
)
async def file_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket that can be taken back."""
    return await _make(call, invoice, amount)


@APP.tool(effect="idempotent", undo="withdraw_by_hand", timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def file_again(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket that can be taken back, if nobody has to know whether it was."""
    return await _make(call, invoice, amount)


def asks(amount: int) -> Answer:
    """Ask two people about odd amounts, one about others; not for long."""
    return Ask("an amount", quorum=1 + amount % 2, expires=5)


@APP.tool(
    effect="keyed",
    key_window="1h",
    find=find_ticket,
    approval=asks,
    timeout=TOOL_TIMEOUT_S,
    provider=PROVIDER,
)
async def pay(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket if people agree."""
    return await _make(call, invoice, amount)


# -- agents -------------------------------------------------------------------------------------------------


def check_invoice(invoice: str) -> str:
    """Compute something that is not computed twice."""
    return invoice.upper()


@APP.agent(name="refund")
async def refund(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Refund an invoice: check it, make the ticket, wait a little, tell."""
    checked = await task.step(check_invoice, invoice)
    ticket = await task.call(create_ticket, invoice=checked, amount=amount)
    await task.sleep(2)
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="fan")
async def fan(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do three at a time, some of which wait long enough to suspend the whole."""

    async def branch(number: int, tool: Any) -> str:
        checked = await task.step(check_invoice, f"{invoice}/{number}")
        ticket = await task.call(tool, invoice=checked, amount=amount + number)
        await task.sleep(0.4 * number)
        return str(ticket["ticket"])

    tools = (create_ticket, create_soon, put_ticket)
    tickets = await task.gather(*(branch(number, tool) for number, tool in enumerate(tools)))
    await task.emit("progress", {"tickets": len(tickets)})
    await task.sleep(1)
    return {"tickets": tickets}


@APP.agent(name="transfer")
async def transfer(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Read, then do what only a person can settle."""
    assert await task.call(look_up)
    ticket = await task.call(move_money, invoice=invoice, amount=amount, key="the-money")
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="flaky", retry=Backoff(base_s=0.5, max_s=2.0, jitter_s=0.5, attempts=8))
async def flaky(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Fail twice, once in a step and once after the call, and do nothing twice for it."""

    def sometimes() -> str:
        if task.attempt == 1:
            raise ValueError("not yet")
        return "done"

    ticket = await task.call(create_once, invoice=invoice, amount=amount)
    await task.step(sometimes)
    if task.attempt == 2:
        raise ValueError("not yet either")
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="hurried", deadline=6)
async def hurried(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Make two tickets with a pause between them, in too little time if anything goes wrong."""
    first = await task.call(create_ticket, invoice=invoice, amount=amount)
    await task.sleep(3)
    second = await task.call(move_money, invoice=invoice, amount=amount + 1)
    return {"tickets": [first["ticket"], second["ticket"]]}


@APP.agent(name="patient")
async def patient(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Wait for signals, each for a while, with a call in between."""
    heard = [await _hear(task, 3)]
    ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
    heard += [await _hear(task, 2), await _hear(task, 0)]
    return {"tickets": [ticket["ticket"]], "heard": [each for each in heard if each is not None]}


async def _hear(task: TaskContext, seconds: float) -> Any:
    world = current_world()
    world.on_waiting(task.id)
    try:
        heard = await task.wait(SIGNAL, timeout=seconds)
    except WaitTimeout:
        return None
    world.on_heard(task.id, heard)
    return heard


async def take_time() -> None:
    """Compute for a while, as what holds a task in its worker."""
    await asyncio.sleep(STEP_S)


@APP.agent(name="attentive")
async def attentive(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Hear signals while something else takes its time."""

    async def listen() -> list[Any]:
        return [await _hear(task, STEP_S) for _ in range(3)]

    _, heard = await task.gather(task.step(take_time), listen())
    ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
    return {"tickets": [ticket["ticket"]], "heard": [each for each in heard if each is not None]}


@APP.agent(name="asker")
async def asker(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Ask people a question, and whether two calls may be made; live with every answer."""
    tickets: list[str] = []
    try:
        account = await task.ask("Which account?", choices=["travel", "office"], timeout=5)
    except OperationError as error:
        account = error.code
    for number in range(2):
        try:
            ticket = await task.call(pay, invoice=f"{invoice}/{number}", amount=amount + number)
        except OperationError:
            continue
        tickets.append(ticket["ticket"])
    return {"tickets": tickets, "account": account}


@APP.agent(name="errand")
async def errand(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do a part of somebody's work."""
    await task.sleep(0.2 * (amount % 5))
    ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="family")
async def family(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Have three children, one of which goes on by itself, and wait for the others."""
    children = [
        task.spawn("errand", {"invoice": f"{invoice}/{number}", "amount": amount + number})
        for number in range(2)
    ]
    task.spawn("errand", {"invoice": f"{invoice}/alone", "amount": amount + 4}, detached=True)
    ticket = await task.call(put_ticket, invoice=invoice, amount=amount)

    async def end(child: Any) -> str:
        try:
            return str((await child.result())["tickets"])
        except OperationError as error:
            return error.code

    ends = await task.gather(*(end(child) for child in children))
    return {"tickets": [ticket["ticket"]], "children": ends}


@APP.agent(name="racer")
async def racer(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Take whichever comes first: a signal, some time, or a call."""

    async def act() -> list[str]:
        await task.sleep(0.3 * (amount % 4))
        ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
        return [ticket["ticket"]]

    async def hear() -> list[str]:
        await task.wait(SIGNAL)
        return []

    async def rest() -> list[str]:
        await task.sleep(1.0)
        return []

    _, tickets = await task.first(act(), hear(), rest())
    ticket = await task.call(put_ticket, invoice=f"{invoice}/2", amount=amount)
    return {"tickets": [*tickets, ticket["ticket"]]}


@APP.agent(name="undone", on_failure="undo")
async def undone(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Make three tickets, some side by side, and find that it was all wrong."""
    first = await task.call(file_ticket, invoice=invoice, amount=amount)
    await task.gather(
        task.call(file_again, invoice=f"{invoice}/1", amount=amount),
        task.call(file_ticket, invoice=f"{invoice}/2", amount=amount),
    )
    await task.sleep(0.3)
    if amount % 3:
        raise ValueError("it was all wrong")
    return {"tickets": [first["ticket"]]}


@APP.agent(name="booker")
async def booker(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Book two things side by side, which nobody may book twice."""
    tickets = await task.gather(
        *(task.call(book, invoice=f"{invoice}/{number}", amount=amount) for number in range(2))
    )
    return {"tickets": [ticket["ticket"] for ticket in tickets]}


@APP.agent(name="exclusive")
async def exclusive(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do two things, each while nobody else does."""
    first = await task.call(make_alone, till="one", invoice=invoice, amount=amount)
    await task.sleep(0.2)
    second = await task.call(make_alone, till="one", invoice=f"{invoice}/2", amount=amount)
    return {"tickets": [first["ticket"], second["ticket"]]}
