"""The job in nexura-runtime: a workflow of nodes, on its PostgreSQL store.

Ways, named after what the handler declares. ``idempotent``: may be repeated with the same key, with a retry
of three attempts. ``reconcilable``: is asked about by a probe, which answers applied or not applied, by what
is found. ``reconcilable, careful``: the same with a probe that takes an absence as unknown.
``non_idempotent``, its default: is never repeated, a person is asked. ``idempotent, looks first``: the
handler asks the service before it makes anything.

Takeover. Another process calls ``recover`` once the run's lease may be taken: at once when the owner's
process is dead on this host, otherwise after the lease.
"""

from __future__ import annotations

import time
from typing import Any

from nexura_agents.contracts.execution import Applied, NotApplied, Unknown
from nexura_postgres import PostgresWorkflowStore
from nexura_runtime.workflow import (
    ModuleRegistry,
    WorkflowEngine,
    WorkflowError,
    WorkflowNode,
    WorkflowRunResult,
    WorkflowSpec,
    step_idempotency_key,
)

from bench.peers.part import LEASE_S, EventLoop, Part, Report, Tickets, play


class OfNexura:
    """nexura-runtime with the job declared in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._loop = EventLoop()
        tickets = Tickets(part)
        registry = ModuleRegistry()

        def probe(state: dict[str, Any], intent: object) -> Applied | NotApplied | Unknown:
            found = tickets.find()
            if found:
                return Applied({"ticket": found["id"]})
            return Unknown() if part.way.endswith("careful") else NotApplied()

        effect = part.way.partition(",")[0]

        @registry.register_handler(
            "create_ticket", effect=effect, reconcile=probe if effect == "reconcilable" else None
        )
        def create_ticket(state: dict[str, Any]) -> dict[str, Any]:
            key = step_idempotency_key()
            assert key is not None
            found = tickets.find() if part.way.endswith("looks first") else None
            return {"ticket": (found or tickets.create(key))["id"]}

        names = [f"call-{number}" for number in range(part.asks)]
        nodes = {
            name: WorkflowNode(
                id=name,
                handler="create_ticket",
                default_transition=after,
                retry={"max_attempts": 3} if effect == "idempotent" else {},
            )
            for name, after in zip(names, [*names[1:], None], strict=True)
        }
        self._engine = WorkflowEngine(
            WorkflowSpec(name="reimburse", entry_node=names[0], nodes=nodes, terminal_nodes=[names[-1]]),
            registry,
            store=PostgresWorkflowStore(part.database),
            lease_ttl=LEASE_S,
        )

    def begin(self) -> Report:
        """Run the workflow under the job's name."""
        first = self._loop.do(self._engine.run({}, workflow_run_id=self._part.run))
        if first.status == "paused":
            # What the call has left open is decided by recovering, as after a crash: a probe asks then.
            return self.go_on()
        return _report(first)

    def go_on(self) -> Report:
        """Recover the run as soon as its lease can be taken."""
        while True:
            try:
                return _report(self._loop.do(self._engine.recover(self._part.run)))
            except WorkflowError as error:
                if "being executed by another worker" not in str(error):
                    raise
                time.sleep(0.2)

    def look(self) -> Report:
        """Answer the run's result as it is stored."""
        return _report(self._loop.do(self._engine.get_result(self._part.run)))


def _report(result: WorkflowRunResult) -> Report:
    if result.pause_reason == "effect_unknown":
        return Report(end="unknown", words="paused, effect_unknown")
    ends = {"completed": "succeeded", "failed": "failed"}
    status = str(result.status)
    return Report(end=ends.get(status, "running"), words=status, ticket=result.state.get("ticket"))


if __name__ == "__main__":
    play(OfNexura)
