"""Policy that cannot be had at times, and standing rules that people make and take back under way.

Purpose: no call is made against what stands at the moment of its intent: policy, then a person's decision
about this very call, then a rule that denies, then one that allows. Policy that cannot be asked, and a rule
that nobody can read, mean no.

Identity: one agent with two tools, one under a policy, one under rules alone.

State: what stands is looked at with other eyes at the very moment of each intent, and weighed here again.

Failure by failure: the policy function raises for a while; a rule is written that cannot be read, and taken
back later; rules change between the look and the gate. Once the world has healed, no such rule is left.

Not covered: policy that changes its version.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from outlast.app import Outlast
from outlast.core import values
from outlast.core.approval import Allow, Answer, Ask, Deny
from outlast.engine.context import TaskContext
from outlast.engine.registry import PolicyCall
from outlast.errors import OperationError, OutlastError, StoreUnavailable
from outlast.store.approving import Rule
from outlast.store.contract import Store
from outlast.store.entries import CommitIntent
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import APP, PROVIDER, TOOL_TIMEOUT_S, find_ticket, open_app
from outlast.testing.simulation.intents import Intents
from outlast.testing.simulation.people import People
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World, current_world
from outlast.tools.call import ToolCall

__all__ = ["Ruling"]

SHAPE: Final = "payer"
TOOLS: Final = ("spend", "spend_freely")
UNREADABLE: Final = '{"amount":{"about":100}}'
"""Bounds that no reader knows."""
RULE_S: Final = 12.0
"""For how long people change rules."""
DOWN: Final = 0.3
"""Share of times at which policy cannot be asked, as long as the world has not healed."""


def says(amount: int) -> Literal["allow", "deny", "ask"]:
    """Answer what policy says of an amount."""
    return ("allow", "deny", "ask", "ask")[amount % 4]


def policy(call: PolicyCall, amount: int) -> Answer:
    """Say so, if it can be asked at all."""
    world = current_world()
    if not world.policy_answers(call.task, call.operation):
        raise RuntimeError("the policy's own store is away")
    answers: dict[str, Answer] = {
        "allow": Allow(),
        "deny": Deny("an amount that nobody likes"),
        "ask": Ask("an amount", expires=5),
    }
    return answers[says(amount)]


@APP.tool(
    effect="keyed",
    key_window="1h",
    find=find_ticket,
    approval=policy,
    timeout=TOOL_TIMEOUT_S,
    provider=PROVIDER,
)
async def spend(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket as policy and rules have it."""
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


@APP.tool(effect="idempotent", timeout=TOOL_TIMEOUT_S, provider=PROVIDER)
async def spend_freely(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket if no rule is against it."""
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


@APP.agent(name=SHAPE)
async def payer(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Spend some amounts, one after the other; live with every answer."""
    tickets: list[str] = []
    for number in range(4):
        tool = spend if number % 2 == 0 else spend_freely
        try:
            ticket = await task.call(tool, invoice=f"{invoice}/{number}", amount=amount + number)
        except OperationError:
            continue
        tickets.append(ticket["ticket"])
        await task.sleep(0.4)
    return {"tickets": tickets}


class _Gate:
    """Weighs each intent of those tools anew."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: Counter[tuple[str, str]] = Counter()
        """How often policy has answered of each operation since its last intent."""

    async def judge(self, store: Store, task: str, entry: CommitIntent) -> None:
        """Look whether an intent may be, and say so if not."""
        amount = int(values.decode(entry.arguments)["amount"])
        rules = [rule for rule in await store.list_rules(DEFAULT_TENANT) if rule.tool == entry.name]
        against = await self._against(store, task, entry, amount, rules)
        if entry.name == "spend" and not self.answers[task, entry.key]:
            against = against or "policy had not answered"
        del self.answers[task, entry.key]
        if against:
            self._world.accuse(f"{task}:{entry.key} was let through with {amount}, though {against}: {rules}")

    async def _against(
        self, store: Store, task: str, entry: CommitIntent, amount: int, rules: Sequence[Rule]
    ) -> str:
        """Answer what is against a call, from what stands now."""
        said = says(amount) if entry.name == "spend" else "allow"
        if any(rule.bounds == UNREADABLE for rule in rules):
            return "a rule stands that cannot be read"
        if said == "deny":
            return "policy denies it"
        if entry.consent is not None and entry.consent.approval is not None:
            return ""
        for row in await store.read_approvals(DEFAULT_TENANT, task):
            about = (row.key, row.fingerprint) == (entry.key, entry.decision)
            if about and row.state == "rejected" and not row.spent:
                return "a person has refused it"
        standing = {rule.verdict for rule in rules if _covers(values.decode(rule.bounds), amount)}
        if "deny" in standing:
            return "a rule denies it"
        return "nobody had agreed to it" if said == "ask" and "allow" not in standing else ""


def _covers(bounds: dict[str, dict[str, int]], amount: int) -> bool:
    bound = bounds.get("amount", {})
    return (
        bound.get("min", amount) <= amount <= bound.get("max", amount)
        and bound.get("equals", amount) == amount
    )


class Ruling:
    """Those who make rules in one world, and those who live under them; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults, people: People) -> None:
        self._world, self._count, self._people = world, faults.rules, people
        self._fate = world.random("ruling")
        self._healed = self._done = False
        self._keeping: list[asyncio.Task[Any]] = []
        self._put: set[int] = set()
        self._withdrawn: set[int] = set()
        """Rules that people were told stand, and that they were told do not any more."""
        self._gate = _Gate(world)
        world.database = Intents(world, self._gate.judge, TOOLS)
        world.policy_answers = self._answers

    def _answers(self, task: str, operation: str) -> bool:
        """Whether policy can be asked now; keeps that it was."""
        if not self._healed and self._fate.random() < DOWN:
            self._world.weather.played.add("policy away")
            return False
        self._gate.answers[task, operation] += 1
        return True

    # -- people ---------------------------------------------------------------------------------------------

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let people submit tasks and change rules; answer those who come to an end."""
        self._keeping.append(self._begin("rulekeeper", self._keep, 0))
        ending = [self._begin(f"ruler{number}", self._rule, number) for number in (1, 2)]
        return ending + [
            self._begin(f"payee{number}", self._submit, number) for number in range(1, self._count + 1)
        ]

    def _begin(self, name: str, work: Any, number: int) -> asyncio.Task[Any]:
        member = self._world.add(name)
        task: asyncio.Task[Any] = self._world.start(member.node, work(member, number), name=name)
        return task

    async def _submit(self, member: Member, number: int) -> None:
        await asyncio.sleep(self._fate.uniform(0.0, 3.0))
        app = await open_app(member)
        given = {"invoice": f"paid-{number}", "amount": 100 + self._fate.randrange(20)}
        while True:
            try:
                handle = await app.submit(SHAPE, given, key=f"paid-{number}")
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self._people.took(handle.id, SHAPE)
            return

    async def _rule(self, member: Member, number: int) -> None:
        """Make rules and take them back for a while."""
        app, loop, fate = await open_app(member), self._world.loop, self._fate
        until = loop.time() + fate.uniform(RULE_S / 2, RULE_S)
        while loop.time() < until and not self._healed:
            await asyncio.sleep(fate.uniform(0.0, 2.0))
            what = fate.choice((self._make, self._make, self._take_back, self._garble))
            try:
                await what(app, f"person:ruler{number}")
            except StoreUnavailable:
                continue
            except OutlastError as error:
                self._world.note(f"ruler{number} was refused: {error.code}")

    async def _make(self, app: Outlast, who: str) -> None:
        fate = self._fate
        bounds: dict[str, Any] = {fate.choice(("min", "max", "equals")): 100 + fate.randrange(24)}
        self._put.add(
            await app.rules.put(
                fate.choice(TOOLS),
                fate.choice(("allow", "deny")),
                reason="so it is",
                by=who,
                bounds=fate.choice(({}, {"amount": bounds}, {"amount": bounds})),
            )
        )

    async def _take_back(self, app: Outlast, who: str) -> None:
        rules = await app.rules.list()
        if rules:
            await self._withdraw(app, self._fate.choice(rules).number, who)

    async def _withdraw(self, app: Outlast, number: int, who: str) -> None:
        await app.rules.withdraw(number, reason="no longer", by=who)
        self._withdrawn.add(number)

    async def _garble(self, app: Outlast, who: str) -> None:
        """Write a rule as another version of the product may, which this one cannot read."""
        rule = Rule(
            tenant=DEFAULT_TENANT,
            tool=self._fate.choice(TOOLS),
            verdict="allow",
            by=who,
            reason="newer",
            bounds=UNREADABLE,
        )
        self._put.add(await app.store.put_rule(rule))
        await asyncio.sleep(self._fate.uniform(0.5, 3.0))

    async def _keep(self, member: Member, number: int) -> None:
        """Take back what cannot be read, at last; the others may stand."""
        app = await open_app(member)
        while not self._done:
            await asyncio.sleep(1.0)
            if not self._world.there_is(f"rules where withdrawn_at is null and bounds = '{UNREADABLE}'"):
                continue
            try:
                for rule in await member.store.list_rules(DEFAULT_TENANT):
                    if rule.bounds == UNREADABLE and (self._healed or self._fate.random() < 0.2):
                        await self._withdraw(app, rule.number, "person:rulekeeper")
            except StoreUnavailable:
                continue
            except OutlastError as error:
                self._world.note(f"the rulekeeper was refused: {error.code}")

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """From now on policy answers, and what cannot be read is taken back."""
        self._healed = True

    async def rest(self) -> None:
        """Nothing goes on here when every task has ended."""

    def leave(self) -> None:
        """Let the keeper go, and say who could not do what they had to."""
        self._done = True
        self._world.accuse_failed(self._keeping)

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Look whether rules stand as people were told."""
        standing = {row["number"] for row in dump["rules"] if row["withdrawn_at"] is None}
        if not self._put <= {row["number"] for row in dump["rules"]}:
            yield f"of the rules {sorted(self._put)} some are not there"
        if self._withdrawn & standing:
            yield f"rules {sorted(self._withdrawn & standing)} stand, and were taken back"
