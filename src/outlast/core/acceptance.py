"""What a checker says of a task's work: that it can be accepted, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from outlast.core.record import record
from outlast.errors import InvalidRequest

CHECK_KEY: Final = "check!"
"""Key of the step in which an agent's own check looks at the result."""
MAX_REASON: Final = 2_000
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Accept:
    """The work can be accepted. evidence: what shows it; it has a JSON form."""

    reason: str = ""
    evidence: Any = None


@dataclass(frozen=True, slots=True)
class Reject:
    """The work cannot be accepted. reason: what is wrong. evidence: what shows it; it has a JSON form."""

    reason: str
    evidence: Any = None


@record
class Verdict:
    """A checker's answer, read."""

    verdict: Literal["accepted", "rejected"]
    reason: str
    evidence: Any


def read_verdict(answer: Any) -> Verdict:
    """Read what a checker answered: True, a text that says what is wrong, ``Accept`` or ``Reject``.

    False says that something is wrong, and not what. Raises InvalidRequest for anything else, None included:
    a checker that forgot to answer has accepted nothing.
    """
    if answer is True:
        answer = Accept()
    elif answer is False:
        answer = Reject("the check says no")
    elif isinstance(answer, str) and answer:
        answer = Reject(answer)
    if isinstance(answer, Accept):
        return Verdict(verdict="accepted", reason=answer.reason[:MAX_REASON], evidence=answer.evidence)
    if isinstance(answer, Reject):
        return Verdict(verdict="rejected", reason=answer.reason[:MAX_REASON], evidence=answer.evidence)
    raise InvalidRequest(
        "a check answers True, a text that says what is wrong, Accept or Reject,"
        f" and not {type(answer).__name__}"
    )
