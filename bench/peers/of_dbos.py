"""The job in DBOS: a workflow of steps, on PostgreSQL.

Ways. ``retries``: the step may be retried, with the defaults of ``retries_allowed`` (three attempts, the
first again after a second). ``no retries``: the default of a step. ``retries, looks first``: the step asks
the service before it makes anything. ``named child``: a ticket is made by a workflow whose id is the
invoice, which is how DBOS makes an operation idempotent.

Takeover. A process that starts with the same executor id recovers what that executor had pending. The
hosted Conductor, which notices dead executors by itself, is not run here.
"""

from __future__ import annotations

import dbos
from dbos import DBOS, SetWorkflowID

from bench.peers.part import Part, Report, Tickets, play


class OfDbos:
    """DBOS with the job declared in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        tickets = Tickets(part)
        DBOS(
            config={
                "name": "peers",
                "system_database_url": part.database,
                "application_version": "1",
                "executor_id": part.run,
                "log_level": "WARNING",
            }
        )

        @DBOS.step(retries_allowed=part.way.startswith("retries"))
        def create_ticket() -> str:
            found = tickets.find() if part.way.endswith("looks first") else None
            ticket = found or tickets.create(f"{DBOS.workflow_id}:{DBOS.step_id}")
            return str(ticket["id"])

        @DBOS.workflow()
        def file_ticket() -> str:
            return create_ticket()

        @DBOS.workflow()
        def reimburse(asks: int) -> str:
            ticket = ""
            for _ in range(asks):
                if part.way == "named child":
                    with SetWorkflowID(f"ticket-{part.run}"):
                        ticket = file_ticket()
                else:
                    ticket = create_ticket()
            return ticket

        self._job = reimburse
        DBOS.launch()

    def begin(self) -> Report:
        """Start the workflow under the job's name."""
        with SetWorkflowID(self._part.run):
            handle = DBOS.start_workflow(self._job, self._part.asks)
        return self._follow(handle)

    def go_on(self) -> Report:
        """Follow what was recovered as this executor was launched."""
        return self._follow(DBOS.retrieve_workflow(self._part.run))

    def look(self) -> Report:
        """Answer the workflow's status."""
        status = DBOS.get_workflow_status(self._part.run)
        assert status is not None
        ends = {"SUCCESS": "succeeded", "ERROR": "failed", "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "failed"}
        ticket = status.output if status.status == "SUCCESS" else None
        return Report(end=ends.get(status.status, "running"), words=status.status, ticket=ticket)

    def _follow(self, handle: dbos.WorkflowHandle[str]) -> Report:
        try:
            handle.get_result()
        except Exception as error:
            seen = self.look()
            return Report(end=seen.end, words=f"{seen.words}, {type(error).__name__}")
        return self.look()


if __name__ == "__main__":
    play(OfDbos)
