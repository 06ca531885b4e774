"""What a fault is played with: the store, the ticket service, worker processes, and people who decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from outlast.drills import crew
from outlast.drills.fleet import Process
from outlast.drills.following import STEADY, Following, Played, invoice_of, posts_of
from outlast.drills.people.restart import Restart
from outlast.views import ApprovalView

__all__ = ["AMOUNT", "BOSS", "STEADY", "WORKER", "Played", "Scene", "invoice_of", "posts_of"]


WORKER: Final = "outlast.drills.people.worker"
BOSS: Final = "boss"
AMOUNT: Final = "118.50"


@dataclass(slots=True, kw_only=True)
class Scene(Following):
    """Everything that a fault is played with; see ``Following``. folder: see ``Place``."""

    WORKER: ClassVar[str] = WORKER

    restart: Restart

    # -- tasks -----------------------------------------------------------------------------------------------

    async def call(
        self,
        cell: str,
        tool: str,
        *amounts: str,
        number: int | None = None,
        again: str | None = None,
        pool: str = STEADY,
        user: str | None = None,
        **more: Any,
    ) -> str:
        """Submit a task that calls a tool once for each amount, and answer its id.

        number: of several tasks of the cell. again: the amount that it wants after the restart instead. more:
        further arguments of the tool.
        """

        def one(place: int, amount: str) -> dict[str, Any]:
            arguments = {"invoice": invoice_of(cell, number), "amount": amount, **more}
            return {"tool": tool, "key": f"act-{place}", "arguments": arguments}

        planned = [one(place, amount) for place, amount in enumerate(amounts or (AMOUNT,), 1)]
        input = {"calls": planned, "again": [] if again is None else [one(1, again)]}
        return await self.submit("calls", input, pool=pool, user=user)

    # -- people ----------------------------------------------------------------------------------------------

    async def approvals(self, task: str) -> list[ApprovalView]:
        """Answer everything that people were asked about a task, whatever became of it, oldest first."""
        return list(await self.app.approvals.list(task=task, state=None))

    async def asked(self, task: str, count: int = 1, *, suspended: bool = True) -> list[ApprovalView]:
        """Wait until people are asked so many things about a task at once; answer them, oldest first.

        suspended: wait until the task has given up its worker as well.
        """

        async def look() -> list[ApprovalView] | None:
            pending = await self.app.approvals.list(task=task)
            return list(pending) if len(pending) == count else None

        found = await self.until(look, f"nobody was asked {count} things")
        if suspended:
            await self.suspended(task, "approval")
        return found

    async def decide(
        self,
        approval: ApprovalView,
        verdict: Literal["approve", "reject"] = "approve",
        *,
        by: str = BOSS,
        arguments: Mapping[str, Any] | None = None,
        roles: Sequence[str] = ("approver",),
    ) -> ApprovalView:
        """Decide on what was shown. Raises as ``Approvals.decide``."""
        return await self.app.approvals.decide(
            approval.id,
            verdict,
            fingerprint=approval.fingerprint,
            by=by,
            reason="agreed" if verdict == "approve" else "no",
            arguments=arguments,
            roles=roles,
        )

    # -- the other side --------------------------------------------------------------------------------------

    async def sent(self, cell: str) -> list[str]:
        """Answer the amounts that were sent, in order."""
        return [call.body["amount"] for call in await self.posts(cell)]

    # -- workers ---------------------------------------------------------------------------------------------

    async def steady(self, name: str, *pools: str, generation: int) -> Process:
        """Start a worker that stays, and wait until it serves."""
        environ = {**self.environ, "OUTLAST_DRILL_GENERATION": str(generation)}
        return await crew.start(self.fleet, WORKER, name, pools, "steady", environ=environ)

    async def succeed(self, *pools: str) -> None:
        """Start the successor of the doomed workers."""
        await self.steady("successor", *pools, generation=2)
