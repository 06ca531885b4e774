"""Whether those who live heed what they are told: answers reach the ledger, signals reach agents in time.

Purpose: some promises cost only time, or a question to the other side, when they are broken: tasks end all
the same. So it is noted who was told what, and when, and looked for in the end.

Identity: a call is its task, key, attempt and epoch; a signal its task and what was sent.

Clock: the world's.

Failure by failure: who has died since owes nothing. How long a signal takes is judged only where nothing fell
on workers and store; hints may get lost.

Not covered: answers that came while their sender was cut in the middle of its send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from outlast.core import values
from outlast.engine.hearing import POLL_S
from outlast.testing.simulation.loop import Node, current_node
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import World
from outlast.tools.call import ToolCall

__all__ = ["Heeding"]

LATEST_S: Final = POLL_S + 0.5
"""How long a signal to a task that runs and waits for it is on its way at most: a hint may get lost."""
Row = Mapping[str, Any]


class Heeding:
    """What was told to those who live in one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._calm = not (faults.crashes or faults.freezes or faults.drains or faults.store_is_unwell)
        self._answered: dict[tuple[str, str, int, int], Node] = {}
        self._waited: dict[str, float] = {}
        world.service.on_answer = self._answer
        world.on_waiting = self._wait
        world.on_heard = self._hear

    def _answer(self, call: ToolCall) -> None:
        """Note that the sender of a call has learnt that it is done."""
        key = call.idempotency_key.partition(":")[2]
        self._answered[call.task, key, call.attempt, call.epoch] = current_node()

    def _wait(self, task: str) -> None:
        self._waited[task] = self._world.loop.time()

    def _hear(self, task: str, sent: Any) -> None:
        """Look whether a signal was heard as soon as it was there and its task waited for it."""
        posted = self._world.acknowledged.get((task, sent))
        if not self._calm or posted is None:
            return
        took = self._world.loop.time() - max(posted, self._waited[task])
        if took > LATEST_S:
            self._world.accuse(f"{task}: signal {sent} was heard {took:.1f} s late, while the task waited")

    def judge(self, dump: Mapping[str, Sequence[Row]], living: set[Node]) -> Iterator[str]:
        """Tell which answers were lost though those who had them lived on. living: those."""
        told = {
            (row["task"], data["operation"], data["attempt"], row["epoch"])
            for row in dump["events"]
            if row["kind"] == "operation.succeeded" and "attempt" in (data := values.decode(row["data"]))
        }
        for row in dump["evidence"]:
            if row["source"] == "late":
                told.add((row["task"], row["key"], row["attempt"], values.decode(row["data"])["epoch"]))
        for call, node in self._answered.items():
            if node in living and call not in told:
                task, key, attempt, epoch = call
                yield f"{task}:{key} was answered to attempt {attempt} under epoch {epoch}, and nobody knows"
