"""The frozen records of the reconciliation queue and of what people decide beside it.

Units and payloads are those of ``outlast.store.records``.
"""

from __future__ import annotations

from outlast.core.record import record
from outlast.store.records import OperationRow

# -- settling without a lease ------------------------------------------------------------------------------


@record
class OpenRequest:
    """Ask for unknown operations that nobody works on: their task has no lease and no settler holds them.

    session: who asks. tools: names of the tools that it knows. lease_us: how long they are its own.
    """

    session: str
    tools: tuple[str, ...]
    limit: int
    lease_us: int


@record
class OpenItem:
    """An unknown operation, its turn taken by whoever asked (``operation.turn`` is the turn to settle with).

    trace: of its task. What the queue knows of it is read behind its evidence; see ``Store.read_open``.
    """

    operation: OperationRow
    trace: str | None
    task_ended: bool


@record
class Postponement:
    """Put an unknown operation back: ask again in ``ask_in_us`` (None: only a person can settle it now).

    Compare-and-set on the turn. unusable: whether the question brought no evidence; why: the plan, for
    people. seen: number of the newest evidence that was considered; where newer says something of the
    operation, it is due at once, whatever ``ask_in_us`` says. Whoever puts it back does not send it: a mark
    to send it again goes. wait: (provider, microseconds) that a provider asked everybody to wait, instead of
    answering; the longer of that and what stands is kept, and it is not asked about before. A postponement
    that is refused, or repeated, brings none. held: it was not asked about, since such a wait stands; that
    counts as no question.
    """

    tenant: str
    task: str
    key: str
    turn: int
    ask_in_us: int | None
    unusable: bool
    why: str
    seen: int = 0
    wait: tuple[str, int] | None = None
    held: bool = False


@record
class OpenState:
    """An item of the reconciliation queue as people see it.

    ask_at: when it is asked about next, None where nobody asks any more. resend: it was settled as to be sent
    again, and waits for its task to do so. held_until: until when the provider that the reader named wants to
    be left alone, None where it does not or none was named.
    """

    since: int
    asked: int
    unusable: int
    ask_at: int | None
    sender_gone: bool
    why: str
    resend: bool = False
    held_until: int | None = None

    @property
    def needs_person(self) -> bool:
        """Whether nobody but a person can settle it."""
        return self.ask_at is None and not self.resend


COUNT_BOUND = 10_000
"""So many open items at most are counted for one view."""


@record
class SettledCounts:
    """How the unknowns of one tool of a tenant were settled, each time counted once; unknown: open now.

    Whoever settled them: the worker, the settler or a person. Open ones are counted up to COUNT_BOUND in a
    tenant.
    """

    tool: str
    unknown: int
    happened: int
    did_not_happen: int
    sent_again: int


@record
class UnknownCount:
    """How many calls of one tool are unknown, in all tenants."""

    tool: str
    unknown: int


# -- switches, keys, audit ---------------------------------------------------------------------------------


EVERY_TENANT = "*"
"""The tenant of a switch that stands for all of them."""


@record
class Pause:
    """A switch that stops new intents. scope: ``all`` (of the tenant, or of everybody with EVERY_TENANT) or
    ``tool:<name>``."""

    tenant: str
    scope: str
    reason: str
    by: str
    at: int = 0


@record
class KeyHolder:
    """Who holds a business key. state: ``held`` or ``done``; until: end of the window of one that is done."""

    task: str
    key: str
    state: str
    until: int | None


@record
class AuditRow:
    """Who did what to what, and why; append-only."""

    number: int
    at: int
    who: str
    what: str
    subject: str
    reason: str
    data: str
