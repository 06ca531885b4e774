"""The job in LangGraph: an entrypoint of tasks, with its PostgreSQL saver.

Ways. ``retry policy``: a task with ``RetryPolicy()``, its defaults (three attempts, the first again after
half a second). ``no policy``: a task as it is by default. ``retry policy, looks first``: the task asks the
service before it makes anything. Checkpoints are written with ``durability="sync"``, the safest mode.

Takeover. Whoever runs the graph invokes it again on the same thread with no input; LangGraph as a library
does not notice by itself that a process is gone.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.func import entrypoint, task
from langgraph.types import RetryPolicy

from bench.peers.part import Part, Report, Tickets, play


class OfLangGraph:
    """LangGraph with the job declared in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._config: Any = {"configurable": {"thread_id": part.run}}
        self._opened = PostgresSaver.from_conn_string(part.database)
        saver = self._opened.__enter__()
        saver.setup()
        tickets = Tickets(part)

        @task(retry_policy=RetryPolicy() if part.way.startswith("retry policy") else None)
        def create_ticket(call: int) -> str:
            found = tickets.find() if part.way.endswith("looks first") else None
            ticket = found or tickets.create(f"{part.run}:{call}")
            return str(ticket["id"])

        @entrypoint(checkpointer=saver)
        def reimburse(asks: int) -> str:
            ticket = ""
            for call in range(asks):
                ticket = create_ticket(call).result()
            return ticket

        self._graph = reimburse

    def begin(self) -> Report:
        """Invoke the graph on the job's thread."""
        return self._invoke(self._part.asks)

    def go_on(self) -> Report:
        """Invoke it again without input, which resumes the thread."""
        return self._invoke(None)

    def look(self) -> Report:
        """Answer the thread's state."""
        state = self._graph.get_state(self._config)
        if any(one.error for one in state.tasks):
            return Report(end="failed", words="the thread holds an error, and can be invoked again")
        if state.next:
            return Report(end="running", words=f"next: {', '.join(state.next)}")
        ticket = state.values if isinstance(state.values, str) else None
        return Report(end="succeeded", words="nothing is next", ticket=ticket)

    def _invoke(self, value: int | None) -> Report:
        ticket = self._graph.invoke(value, self._config, durability="sync")
        return Report(end="succeeded", words="invoke returns", ticket=ticket)


if __name__ == "__main__":
    play(OfLangGraph)
