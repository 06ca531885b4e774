"""What clients and people do during a storm, all over HTTP, and what they were told.

Nobody is told everything: whoever got no answer asks again with the same key where there is one, and leaves
the other question open in the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from outlast.core.transitions import TASK
from outlast.drills.storm.agents import AGENTS, SIGNAL, Theirs
from outlast.drills.storm.asking import Answer, Client, Lost
from outlast.drills.storm.world import World
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.history import History

__all__ = ["Load", "Tracked"]

_PEOPLE: Final = ("ann", "bob")
_FINAL: Final = frozenset(f"task.{state}" for state in TASK.final)
_STANDS: Final = {"approved": "approve", "used": "approve", "rejected": "reject"}


@dataclass(slots=True, eq=False)
class Tracked:
    """A task that was acknowledged. ended: as somebody was told. told: what readers of its stream were."""

    task: str
    key: str
    agent: str
    ended: str | None = None
    told: list[list[tuple[int, str]]] = field(default_factory=list)


class Load:
    """All clients of one campaign.

    most: tasks that are under way at a time. chance: what they draw from. theirs: somebody's own app instead
    of the storm's. history: of keys and decisions.
    """

    def __init__(
        self, world: World, name: str, chance: random.Random, *, most: int, theirs: Theirs | None = None
    ) -> None:
        self.history = History(time.monotonic)
        self.tracked: list[Tracked] = []
        self.lost = 0
        """Questions without an answer."""
        self.on_their_way = 0
        """Submits and retries that nobody was told anything of yet: a task may still begin by each."""
        self.wrong: list[str] = []
        """Answers that nobody should get."""
        self.acknowledged: list[tuple[str, str]] = []
        """What else was: ``cancel`` with its task, ``signal`` with task and key, ``settle`` with its call."""
        self._world, self._name, self._chance, self._most = world, name, chance, most
        self._theirs = theirs
        self._submitting = True
        self._healed = False
        self._signals = 0
        self._client = Client([relay.listens_on for relay in world.apis], chance)

    # -- the campaign's side ---------------------------------------------------------------------------------

    @property
    def accepted(self) -> list[tuple[str, str]]:
        """Tenant and task of everything that was acknowledged."""
        return [(DEFAULT_TENANT, one.task) for one in self.tracked]

    @property
    def live(self) -> list[Tracked]:
        """What nobody was told the end of."""
        return [one for one in self.tracked if one.ended is None]

    def calm_down(self) -> None:
        """Let no new tasks come; whatever is there goes on."""
        self._submitting = False

    def heal(self) -> None:
        """Tell people that nothing is frozen or on its way any more: what is not there never will be."""
        self._healed = True

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Answer what clients do, for ever, each."""
        paced = {self._read: 0.1, self._approve: 0.3, self._signal: 0.4, self._settle: 0.5, self._meddle: 0.5}
        return [
            *(self._submit(number) for number in range(3)),
            *(self._insist(work, pause_s) for work, pause_s in paced.items()),
        ]

    async def close(self) -> None:
        """Give up every connection."""
        await self._client.close()

    # -- clients ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _on_its_way(self) -> Iterator[None]:
        self.on_their_way += 1
        try:
            yield
        finally:
            self.on_their_way -= 1

    async def _insist(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while True:
            try:
                await work()
            except Lost:
                self.lost += 1
            await asyncio.sleep(pause_s)

    async def _submit(self, client: int) -> None:
        number = 0
        async with asyncio.TaskGroup() as followers:
            while self._submitting:
                if len(self.live) >= self._most:
                    await asyncio.sleep(0.1)
                    continue
                number += 1
                with self._on_its_way():
                    tracked = await self._submit_one(client, number)
                if tracked is not None and self._chance.random() < 0.3:
                    followers.create_task(self._follow(tracked))

    async def _submit_one(self, client: int, number: int) -> Tracked | None:
        key = f"{self._name}-{client}-{number}"
        agent = self._chance.choice(AGENTS) if self._theirs is None else self._theirs.agent
        input = {"invoice": key, "amount": self._chance.randrange(1, 100)}
        body = {"agent": agent, "input": input if self._theirs is None else self._theirs.input}
        while True:
            place = self.history.invoke(f"client{client}", ("life", key), "submit")
            try:
                reply = await self._client.ask("POST", "/tasks", body, key=key)
            except Lost:
                self.lost += 1
                await asyncio.sleep(0.2)
                continue
            if not self._is_fine("a submit", reply, 202, refused=(429,)):
                if reply.status != 429:
                    return None
                await asyncio.sleep(0.5)
                continue
            self.history.answered(place, (reply.body["id"], reply.replayed))
            tracked = Tracked(reply.body["id"], key, agent)
            self.tracked.append(tracked)
            return tracked

    async def _read(self) -> None:
        live = self.live
        some = self._chance.sample(live, min(len(live), 8))
        some += self._chance.sample(self.tracked, min(len(self.tracked), 2))
        for tracked in some:
            place = self.history.invoke("reader", ("life", tracked.key), "read", tracked.task)
            reply = await self._client.ask("GET", f"/tasks/{tracked.task}")
            if reply.status == 404:
                self.history.answered(place, "missing")
                continue
            state = reply.body["state"]
            ended = state if state in TASK.final else None
            self.history.answered(place, (reply.body["round"], ended or "live"))
            tracked.ended = ended

    async def _follow(self, tracked: Tracked) -> None:
        told: list[tuple[int, str]] = []
        tracked.told.append(told)
        while True:
            after = told[-1][0] if told else 0
            with contextlib.suppress(Lost):
                async for event in self._client.follow(tracked.task, after):
                    told.append(event)
                return
            if told and told[-1][1] in _FINAL and not self._submitting:
                return
            await asyncio.sleep(0.3)

    async def _meddle(self) -> None:
        """Cancel a task, or try one again, now and then."""
        if not self._submitting or not self.tracked:
            return
        tracked = self._chance.choice(self.tracked)
        if tracked.ended in ("failed", "cancelled"):
            place = self.history.invoke("operator", ("life", tracked.key), "retry", tracked.task)
            path, reason = f"/tasks/{tracked.task}/retry", {"reason": "once more"}
            with self._on_its_way():
                reply = await self._client.ask("POST", path, reason)
                # What has been undone cannot be tried again; nor what lives by now.
                if self._is_fine("a retry", reply, 202, refused=(409,)):
                    self.history.answered(place, reply.body["round"])
                    tracked.ended = None
                else:
                    self.history.answered(place, "refused")
        elif tracked.ended is None and self._chance.random() < 0.3:
            undo = self._chance.random() < 0.5
            body = {"reason": "not any more", "undo": undo}
            reply = await self._client.ask("POST", f"/tasks/{tracked.task}/cancel", body)
            if self._is_fine("a cancel", reply, 200, 202, refused=(409,)):
                self.acknowledged.append(("cancel", tracked.task))

    # -- people ----------------------------------------------------------------------------------------------

    async def _approve(self) -> None:
        reply = await self._client.ask("GET", "/approvals", state="pending")
        decisions = []
        for approval in reply.body["items"]:
            people = self._chance.sample(_PEOPLE, self._chance.randint(1, 2))
            decisions += [self._decide(who, approval) for who in people]
        await asyncio.gather(*decisions)

    async def _decide(self, who: str, approval: Any) -> None:
        verdict = "approve" if self._chance.random() < 0.8 else "reject"
        register = ("decision", approval["id"])
        place = self.history.invoke(who, register, "decide", verdict, who)
        body = {"verdict": verdict, "fingerprint": approval["fingerprint"], "reason": "as I see it"}
        try:
            reply = await self._client.ask(
                "POST", f"/approvals/{quote(approval['id'])}/decision", body, who=who
            )
        except Lost:
            self.lost += 1
            return
        decided = self._is_fine("a decision", reply, 200, refused=(409,))
        if reply.status not in (200, 409):
            return
        told = reply.body if decided else reply.body["approval"]
        stands = _STANDS.get(told["state"], "void")
        taken = decided and stands == verdict
        self.history.answered(place, "taken" if taken else stands)

    async def _signal(self) -> None:
        waiting = [one for one in self.live if one.agent == "listens"]
        for tracked in self._chance.sample(waiting, min(len(waiting), 4)):
            self._signals += 1
            path, number = f"/tasks/{tracked.task}/signals/{SIGNAL}", self._signals
            key = f"signal-{number}"
            reply = await self._client.ask("POST", path, {"number": number}, key=key)
            if self._is_fine("a signal", reply, 202, refused=(409, 429)):
                self.acknowledged.append(("signal", f"{tracked.task} {key}"))

    async def _settle(self) -> None:
        """Be the person who looks at the ticket services' books and says what is there."""
        reply = await self._client.ask("GET", "/operations")
        places = [one for one in reply.body["items"] if one["queue"] and one["queue"]["needs_person"]]
        if not places:
            return
        made = {
            ticket["idempotency_key"]: ticket
            for recorder in (self._world.keys, self._world.plain)
            for ticket in await recorder.tickets()
        }
        # What was noted on a ticket, or withdrawn, is no ticket of its own.
        acted = {call.key for call in await self._world.log() if call.effect is not None}
        for one in places:
            ticket = made.get(one["idempotency_key"])
            if ticket is not None or one["idempotency_key"] in acted:
                body = {"verdict": "happened", "reason": "it is in the book", "result": ticket or {}}
            elif self._healed and self._theirs is None:
                body = {"verdict": "did_not_happen", "reason": "it is not in the book"}
            else:
                # Whoever is frozen may still send; and what somebody's own tools did is in another book.
                continue
            reply = await self._client.ask(
                "POST", f"/operations/{quote(one['id'])}/settle", {**body, "turn": one["turn"]}
            )
            # Refused while it may be under way, or when somebody was faster: the next look tells.
            if self._is_fine("a settlement", reply, 200, refused=(409,)):
                self.acknowledged.append(("settle", one["id"]))

    def _is_fine(self, what: str, reply: Answer, *fine: int, refused: Collection[int]) -> bool:
        """Whether something was done. fine, refused: statuses that say so, or not; all others are wrong."""
        if reply.status not in (*fine, *refused):
            self.wrong.append(f"{what} was answered {reply.status}: {str(reply.body)[:200]}")
        return reply.status in fine
