"""Every state machine of Outlast as a table: (state, command) -> state, or a named refusal.

The tables are the single source: both schemas' check lists, the diagrams in the docs and the test that
drives every pair through both stores are made from them. A command that a state does not take is refused
by name; nothing else in the code decides what may follow what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from outlast.core.record import record


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command does not apply to a state."""

    name: str


@record
class Machine:
    """A complete transition table.

    ``moves`` lists the accepted pairs; every other pair is refused: with ``already_final`` in a final state,
    with ``not_<what the command needs>`` elsewhere.
    """

    name: str
    states: tuple[str, ...]
    final: frozenset[str]
    commands: tuple[str, ...]
    moves: Mapping[tuple[str, str], str]

    def apply(self, state: str, command: str) -> str | Refusal:
        """Answer the state after ``command``, or the refusal.

        Raises KeyError for a state or command that the machine does not have: that is a broken promise of
        the caller, not a refusal.
        """
        if state not in self.states or command not in self.commands:
            raise KeyError((self.name, state, command))
        target = self.moves.get((state, command))
        if target is not None:
            return target
        if state in self.final:
            return Refusal("already_final")
        needed = sorted({source for source, name in self.moves if name == command})
        return Refusal("not_" + "_or_".join(needed))

    def pairs(self) -> Iterator[tuple[str, str, str | Refusal]]:
        """Yield every (state, command, answer)."""
        for state in self.states:
            for command in self.commands:
                yield state, command, self.apply(state, command)


def _machine(
    name: str, states: tuple[str, ...], final: tuple[str, ...], moves: dict[tuple[str, str], str]
) -> Machine:
    commands = tuple(dict.fromkeys(command for _, command in moves))
    return Machine(
        name=name,
        states=states,
        final=frozenset(final),
        commands=commands,
        moves=MappingProxyType(moves),
    )


WAITING_REASONS = ("timer", "signal", "approval", "reconciliation", "child", "limit", "operator")
"""Why a waiting task waits; several at once are named by the first of this order."""

TASK = _machine(
    "task",
    ("queued", "running", "waiting", "succeeded", "failed", "cancelled"),
    ("succeeded", "failed", "cancelled"),
    {
        ("queued", "claim"): "running",
        ("running", "release"): "queued",
        ("running", "lose"): "queued",
        ("running", "suspend"): "waiting",
        ("waiting", "wake"): "queued",
        ("running", "succeed"): "succeeded",
        ("running", "fail"): "failed",
        ("queued", "cancel"): "cancelled",
        ("waiting", "cancel"): "cancelled",
        # A running task takes the mark and ends at its next boundary.
        ("running", "cancel"): "running",
        ("running", "end_cancelled"): "cancelled",
        # A cancel of what has begun and is to undo what it has done: a worker does that, then ends it.
        ("queued", "undo"): "queued",
        ("waiting", "undo"): "queued",
        ("running", "undo"): "running",
        # Bound to another version of its agent.
        ("queued", "adopt"): "queued",
        ("waiting", "adopt"): "queued",
        ("queued", "expire"): "failed",
        ("running", "expire"): "failed",
        ("waiting", "expire"): "failed",
        ("running", "park"): "failed",
        ("failed", "retry"): "queued",
        ("cancelled", "retry"): "queued",
    },
)
"""A task. Final states stand within a round; ``retry`` opens the next round."""

ATTEMPT = _machine(
    "attempt",
    ("running", "succeeded", "failed", "suspended", "released", "cancelled", "lost"),
    ("succeeded", "failed", "suspended", "released", "cancelled", "lost"),
    {
        ("running", "succeed"): "succeeded",
        ("running", "fail"): "failed",
        ("running", "suspend"): "suspended",
        ("running", "release"): "released",
        ("running", "cancel"): "cancelled",
        ("running", "lose"): "lost",
    },
)
"""One claim of a task by one worker."""

OPERATION = _machine(
    "operation",
    ("planned", "approved", "running", "succeeded", "failed", "unknown"),
    ("succeeded", "failed"),
    {
        ("planned", "approve"): "approved",
        ("planned", "start"): "running",
        ("approved", "start"): "running",
        # A refusal before anything was sent: by policy, rejection, expiry, precondition or deadline.
        ("planned", "refuse"): "failed",
        ("approved", "refuse"): "failed",
        ("running", "succeed"): "succeeded",
        ("running", "fail"): "failed",
        ("running", "lose"): "unknown",
        # Not sent, and to be tried again under the same key.
        ("running", "back_off"): "planned",
        ("unknown", "settle_happened"): "succeeded",
        ("unknown", "settle_did_not_happen"): "failed",
        # Said by a person, or where a resend is declared and provably safe: unknown until its intent.
        ("unknown", "send_again"): "unknown",
        ("unknown", "resend"): "running",
        # Late evidence contradicts what was settled; or says that what is to be sent again has happened.
        ("succeeded", "contradict"): "unknown",
        ("failed", "contradict"): "unknown",
        ("planned", "contradict"): "unknown",
        ("approved", "contradict"): "unknown",
        # A failed retryable operation is opened again under the same id and key.
        ("failed", "reopen"): "planned",
    },
)
"""One durable thing an agent does. A recorded outcome changes only by ``contradict`` and ``reopen``."""

APPROVAL = _machine(
    "approval",
    ("pending", "approved", "rejected", "expired", "withdrawn", "used"),
    ("rejected", "expired", "withdrawn", "used"),
    {
        ("pending", "approve"): "approved",
        ("pending", "reject"): "rejected",
        ("pending", "expire"): "expired",
        ("pending", "withdraw"): "withdrawn",
        ("approved", "expire"): "expired",
        ("approved", "withdraw"): "withdrawn",
        ("approved", "use"): "used",
    },
)
"""A question bound to exact parameters; ``use`` happens in the transaction that commits the intent."""

MESSAGE = _machine(
    "message",
    ("pending", "parked", "published"),
    ("published",),
    {
        ("pending", "publish"): "published",
        ("pending", "park"): "parked",
        ("parked", "unpark"): "pending",
    },
)
"""An outbox row; a published one is deleted."""

MACHINES = (TASK, ATTEMPT, OPERATION, APPROVAL, MESSAGE)
LIVE_TASK_STATES = tuple(state for state in TASK.states if state not in TASK.final)
