"""Tasks that may only spend so much, and a judge that adds up what they have spent.

Purpose: no intent passes a bound of its task, on operations, tokens or money, and no family goes deeper than
it may; and nothing is held back that a bound still allows. That holds for what a worker has counted itself,
and for what it finds on record when it takes a task over, or when people try one again.

Identity: one agent that buys until it is held back, and one that has an heir who has an heir.

State: what is on record is added up anew at the very moment of each intent.

Failure by failure: those that fall on workers and the store. What an attempt has spent whose outcome nobody
knows is on no record, and not counted.

Not covered: what is under way side by side when a bound is passed; what forks take over; checks of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from outlast.core import values
from outlast.engine.context import TaskContext
from outlast.errors import BudgetExceeded, OperationError, StoreUnavailable
from outlast.store.contract import Store
from outlast.store.entries import CommitIntent
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import APP, PROVIDER, TOOL_TIMEOUT_S, find_ticket, open_app
from outlast.testing.simulation.intents import Intents
from outlast.testing.simulation.people import People
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World, current_world
from outlast.tools.call import ToolCall

__all__ = ["Budgeting"]

BUYER: Final = "buyer"
HEIR: Final = "heir"
COUNTED: Final = ("step", "tool", "model", "child")
PRICE: Final = Decimal("0.25")
DEEPEST: Final = 4
"""After how many generations a family ends by itself."""
Row = Mapping[str, Any]


@APP.tool(effect="keyed", key_window="1h", find=find_ticket, timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def buy(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; it costs as many tokens as the amount says, and a fixed price."""
    call.spent(tokens=amount, cost=PRICE)
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


@APP.agent(name=BUYER)
async def buyer(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Buy until there is nothing left to spend; odd ones fail of that, for people to try again."""
    tickets: list[str] = []
    for number in range(6):
        try:
            if number % 2:
                await task.step(str.upper, invoice)
            ticket = await task.call(buy, invoice=f"{invoice}/{number}", amount=amount)
        except BudgetExceeded:
            if amount % 2:
                raise
            break
        except OperationError:
            continue
        tickets.append(ticket["ticket"])
        await task.sleep(0.3 * (number % 3))
    return {"tickets": tickets}


@APP.agent(name=HEIR)
async def heir(task: TaskContext, generation: int) -> dict[str, Any]:
    """Have an heir, as long as that is allowed."""
    if generation < DEEPEST:
        try:
            await task.spawn(HEIR, {"generation": generation + 1}).result()
        except BudgetExceeded:
            pass
    return {"tickets": []}


class _Spent:
    """What a task has spent, as it is on record. rows: its operations, as (kind, error, usage)."""

    def __init__(self, rows: Sequence[tuple[str, str | None, str | None]]) -> None:
        errors = [values.decode(error) if error else {} for _, error, _ in rows]
        self.held_back = [error["reason"] for error in errors if error.get("code") == BudgetExceeded.code]
        self.operations = sum(kind in COUNTED for kind, _, _ in rows) - len(self.held_back)
        used = [values.decode(usage) for _, _, usage in rows if usage]
        self.tokens = sum(int(one["tokens"]) for one in used)
        self.cost = sum((Decimal(one["cost"]) for one in used), Decimal())

    def reached(self, budget: Mapping[str, Any]) -> set[str]:
        """Answer the bounds that leave nothing more to be begun."""
        bounds = {
            "operations": Decimal(self.operations),
            "tokens": Decimal(self.tokens),
            "cost": self.cost,
        }
        return {name for name, spent in bounds.items() if name in budget and spent >= Decimal(budget[name])}


def _was_told(row: Row) -> bool:
    """Whether a call's outcome is what its own worker was told."""
    return row["state"] == "succeeded" and row["settled_by"] is None


class Budgeting:
    """Those who submit tasks with budgets in one world; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults, people: People) -> None:
        self._world, self._count, self._people = world, faults.budgets, people
        self._fate = world.random("budgeting")
        world.database = Intents(world, self._look, ("buy",))

    async def _look(self, store: Store, task: str, entry: CommitIntent) -> None:
        """Look whether an intent, which is on record by now, passes a bound."""
        of_task = "select budget from inputs where tenant = ? and task = ? and forked_from is null"
        budgets = self._world.read(of_task, DEFAULT_TENANT, task)
        if not budgets or budgets[0][0] is None:
            return
        budget = values.decode(budgets[0][0])
        spent = _Spent(
            self._world.read(
                "select kind, error, usage from operations where tenant = ? and task = ?",
                *(DEFAULT_TENANT, task),
            )
        )
        # Of operations it may be the last one itself; what it spends is known only afterwards.
        over = spent.reached(budget) - {"operations"}
        if over or spent.operations > int(budget.get("operations", spent.operations)):
            self._world.accuse(
                f"{task}:{entry.key} was begun over its budget {budget}: {spent.operations} operations,"
                f" {spent.tokens} tokens, cost {spent.cost}"
            )

    # -- people ---------------------------------------------------------------------------------------------

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let people submit tasks with budgets; answer those who come to an end."""
        found: list[asyncio.Task[Any]] = []
        for number in range(1, self._count + 1):
            member = self._world.add(f"saver{number}")
            work = self._submit(member, number)
            found.append(self._world.start(member.node, work, name=f"saver{number}"))
        return found

    async def _submit(self, member: Member, number: int) -> None:
        fate = self._fate
        await asyncio.sleep(fate.uniform(0.0, 3.0))
        app = await open_app(member)
        if fate.random() < 0.3:
            shape, budget = HEIR, {"depth": fate.randrange(DEEPEST)}
            given: dict[str, Any] = {"generation": 0}
        else:
            shape, amount = BUYER, 100 + fate.randrange(20)
            given = {"invoice": f"bought-{number}", "amount": amount}
            bounds: list[dict[str, Any]] = [
                {"operations": fate.randrange(8)},
                {"tokens": amount * fate.randrange(5) + fate.randrange(2)},
                {"cost": str(PRICE * fate.randrange(5) + Decimal("0.1") * fate.randrange(2))},
            ]
            budget = fate.choice(bounds) | fate.choice([{}, *bounds])
        while True:
            try:
                handle = await app.submit(shape, given, key=f"bought-{number}", budget=budget)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self._people.took(handle.id, shape)
            return

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong here by itself."""

    async def rest(self) -> None:
        """Nothing goes on here when every task has ended."""

    def leave(self) -> None:
        """Nobody stays here."""

    def judge(self, dump: Mapping[str, Sequence[Row]]) -> Iterator[str]:
        """Add everything up, and look whether what was held back had to be."""
        inputs = {row["task"]: row for row in dump["inputs"]}
        for task, row in inputs.items():
            if row["budget"] is None or row["forked_from"] is not None:
                continue
            budget = values.decode(row["budget"])
            of_task = [one for one in dump["operations"] if one["task"] == task]
            spent = _Spent([(one["kind"], one["error"], one["usage"]) for one in of_task])
            if spent.operations > int(budget.get("operations", spent.operations)):
                yield f"{task}: has made {spent.operations} operations, over its budget {budget}"
            for one in of_task:
                if one["name"] == "buy" and _was_told(one) and not one["usage"]:
                    yield f"{task}:{one['key']} is on record without what it spent, over its budget {budget}"
            for bound in set(spent.held_back) - spent.reached(budget):
                if bound != "depth":
                    yield f"{task}: was held back by {bound}, over its budget {budget} it was not: {of_task}"
            if row["parent"] is None and "depth" in budget:
                yield from self._depth(inputs, task, int(budget["depth"]), "depth" in spent.held_back)

    @staticmethod
    def _depth(inputs: Mapping[str, Row], task: str, most: int, held_back: bool) -> Iterator[str]:
        """Look how many generations there are below a task."""
        below, generation = 0, {task}
        while generation := {one for one, row in inputs.items() if row["parent"] in generation}:
            below += 1
        if below > most:
            yield f"{task}: has {below} generations below it, over its budget of {most}"
        elif held_back and most > 0:
            yield f"{task}: was held back by depth, over its budget of {most} generations it was not"
