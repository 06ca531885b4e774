"""One tool call as a run sees it while it brings it to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.core import canonical, values
from outlast.core.budget import NOTHING, Usage
from outlast.core.operation import OperationKind
from outlast.core.record import record
from outlast.engine.registry import ToolSpec
from outlast.engine.series import Series
from outlast.store.entries import BusinessKey
from outlast.store.records import OperationRow


@dataclass(slots=True)
class Operation:
    """One call as this run sees it; attempt and turn mirror the row on disk.

    kind: ``tool``, or ``compensation`` for one that undoes another; those are never given up as failed, but
    left to a person. idempotency_key: what is sent, and asked with; a fork goes on with the key that was sent
    before. issued: such a call, not yet taken over. usage: what its attempts have spent so far.
    settled_by: who settled it last. repeat: a person wants it made although another call may have done it.
    earlier_open: an earlier attempt ended as unknown and nothing has said since whether it acted.
    sender_gone: whoever made that attempt cannot send any more. may_run_on: the last body was cut short in a
    send by its own means, which a thread may go on with. resend: why an unknown may be sent again; put
    on record together with the next intent, never before it. held: times in a row that the call was held
    back. plain: the arguments as JSON values, as they will be sent; an approver may have changed them, while
    ``request`` stays what the agent asked for. target: what the call is about, where the tool says so. ruled:
    standing rules have been met. replanned: people were asked about another call under this key, which was
    never made. unasked: times in a row that policy could not be asked. heard: of an undo, the run's facts
    before it was decided that this is the next one.
    """

    key: str
    position: int
    tool: ToolSpec
    arguments: dict[str, Any]
    text: str
    request: str
    decision: str
    attempt: int
    turn: int
    state: str
    epoch: int
    first_intent_at: int | None
    deadline_at: int | None
    series: Series
    business: BusinessKey | None
    settled_by: str = ""
    repeat: bool = False
    earlier_open: bool = False
    sender_gone: bool = False
    may_run_on: bool = False
    resend: str | None = None
    held: int = 0
    plain: Any = None
    target: Any = None
    ruled: bool = False
    replanned: bool = False
    unasked: int = 0
    kind: OperationKind = "tool"
    idempotency_key: str = ""
    issued: OperationRow | None = None
    usage: Usage = NOTHING
    heard: int | None = None

    @property
    def undoes(self) -> bool:
        """Whether it undoes another operation."""
        return self.kind == "compensation"

    def carry(self, text: str | None) -> None:
        """Take over the arguments that are sent in place of the agent's: those that an approver has decided
        on, or those that were sent before, since a key that has carried one request carries no other.

        text: plain, as JSON; None where none are on record. Raises InvalidInput where the tool takes no such
        arguments any more.
        """
        if text is None or text == self.text:
            return
        self.plain = values.decode(text)
        self.arguments = self.tool.signature.check(self.plain)
        self.text = text
        self.business = business_key(self.tool, self.plain)
        self.fix()

    def fix(self) -> None:
        """Say what exactly is to be decided on: what will be sent, of which version, about what."""
        sent = canonical.fingerprint(self.kind, self.tool.name, self.plain)
        self.decision = canonical.decision_digest(sent, self.tool.version, self.target)


def business_key(tool: ToolSpec, plain: dict[str, Any]) -> BusinessKey | None:
    """Answer what a call is about in the business's own words, where its tool names that."""
    rule = tool.business
    if rule is None:
        return None
    return BusinessKey(
        tool=tool.name,
        value=rule.value(plain),
        mode="lock" if rule.once_us is None else "once",
        window_us=rule.once_us,
    )


@record
class HeldBack:
    """A call that may not be made now.

    wait_s: when to try again, None when only news can move it (a settlement, a decision, a switch that is
    taken back). reason: what the task is said to wait for meanwhile. since: the run's facts before it was
    refused, where news may have come in between.
    """

    why: str
    wait_s: float | None
    reason: str = "timer"
    since: int | None = None
