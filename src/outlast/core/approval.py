"""Whether a call may be made: what policy says, what standing rules say, what a person decided.

Purpose: one pure judgement for every attempt at every call, so that nothing weighs the three differently.

The order: policy's *deny*; then a person's explicit decision about this very call, either way; then a rule
that denies; then a rule that allows; then what policy said (allow, or ask). An explicit decision beats a
standing rule in both directions; no decision opens what policy has closed.

Failure by failure: policy that raises or answers nonsense is no answer, and without an answer nothing runs. A
bound that cannot be compared with the argument does not let a call pass: an allowing rule does not cover it,
a denying one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from outlast.core.durations import Duration, microseconds
from outlast.core.record import record
from outlast.errors import InvalidRequest

MAX_SHOWN_BYTES: Final = 65_536
"""What people are shown of a call; larger arguments cannot be read by anybody, and are not put to a
decision."""
MAX_QUORUM: Final = 20
_BOUNDS: Final = ("max", "min", "equals", "one_of")


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call may not be made, whoever decides otherwise."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """People have to decide.

    reason: shown to them. roles: who may decide, everybody with the role ``approver`` by default. quorum: how
    many have to agree. four_eyes: whether whoever submitted the task may not decide. expires: for how long
    the question, and a decision that is not used, stand; None for as long as the task lives.
    """

    reason: str
    roles: tuple[str, ...] = ()
    quorum: int = 1
    four_eyes: bool = False
    expires: Duration | None = None

    @property
    def expires_us(self) -> int | None:
        """``expires`` in microseconds."""
        return None if self.expires is None else microseconds(self.expires, what="expires")


Answer = Allow | Deny | Ask


@record
class StandingRule:
    """A rule as the judgement sees it; ``bounds`` by argument name."""

    number: int
    verdict: Literal["allow", "deny"]
    bounds: Mapping[str, Mapping[str, Any]]


@record
class Judgement:
    """What follows. by: ``policy``, ``person``, ``rule <number>``. ask: the question to put, with ``ask``."""

    verdict: Literal["allow", "deny", "ask"]
    by: str
    reason: str = ""
    ask: Ask | None = None


def read_answer(answer: object) -> Answer:
    """Read what a policy function answered: an Allow, Deny or Ask; or True, False, or the text of a question.

    Raises InvalidRequest for anything else, None included: a policy that forgets to answer allows nothing.
    """
    if isinstance(answer, Deny):
        return answer if answer.reason else Deny("policy does not allow it")
    if isinstance(answer, Allow):
        return answer
    if isinstance(answer, Ask):
        _check_ask(answer)
        return answer
    if answer is True:
        return Allow()
    if answer is False:
        return Deny("policy does not allow it")
    if isinstance(answer, str) and answer.strip():
        return Ask(answer)
    raise InvalidRequest(
        "a policy answers Allow, Deny, Ask, True, False or the text of a question, not"
        f" {type(answer).__name__}"
    )


def _check_ask(ask: Ask) -> None:
    if not ask.reason.strip():
        raise InvalidRequest("a policy that asks has to say why: people read the reason")
    roles: object = ask.roles
    if not isinstance(roles, tuple) or not all(isinstance(role, str) and role for role in roles):
        raise InvalidRequest("Ask(roles=…) takes a tuple of names")
    if not 1 <= ask.quorum <= MAX_QUORUM:
        raise InvalidRequest(f"Ask(quorum=…) is 1 to {MAX_QUORUM}, not {ask.quorum}")
    _ = ask.expires_us


def judge(
    policy: Answer,
    rules: Sequence[StandingRule],
    arguments: Mapping[str, Any],
    decided: Literal["approved", "rejected"] | None = None,
) -> Judgement:
    """Weigh policy, standing rules and a person's decision about this very call.

    arguments: plain JSON values by name. decided: what a person said of exactly these, if anybody did.
    """
    if isinstance(policy, Deny):
        return Judgement(verdict="deny", by="policy", reason=policy.reason)
    if decided is not None:
        return Judgement(verdict="allow" if decided == "approved" else "deny", by="person")
    for verdict in ("deny", "allow"):
        for rule in rules:
            covered = covers(rule.bounds, arguments)
            if rule.verdict == verdict and (covered or (covered is None and verdict == "deny")):
                return Judgement(verdict=rule.verdict, by=f"rule {rule.number}")
    if isinstance(policy, Ask):
        return Judgement(verdict="ask", by="policy", reason=policy.reason, ask=policy)
    return Judgement(verdict="allow", by="policy")


def check_bounds(bounds: object) -> dict[str, dict[str, Any]]:
    """Check the bounds of a rule, ``{"amount": {"max": 100}}``. Raises InvalidRequest."""
    if not isinstance(bounds, Mapping):
        raise InvalidRequest("bounds are an object from argument names to bounds")
    checked: dict[str, dict[str, Any]] = {}
    for name, bound in bounds.items():
        if not isinstance(name, str) or not name or not isinstance(bound, Mapping) or not bound:
            raise InvalidRequest(f"the bounds of {name!r} are an object such as {{'max': 100}}")
        for word, value in bound.items():
            if word not in _BOUNDS:
                raise InvalidRequest(f"{word!r} of {name!r} is no bound; there are {', '.join(_BOUNDS)}")
            if word in ("max", "min") and _number(value) is None:
                raise InvalidRequest(f"the {word} of {name!r} is a number, not {value!r}")
            if word == "one_of" and not isinstance(value, list | tuple):
                raise InvalidRequest(f"one_of of {name!r} is a list")
        checked[name] = dict(bound)
    return checked


def covers(bounds: Mapping[str, Mapping[str, Any]], arguments: Mapping[str, Any]) -> bool | None:
    """Answer whether a call lies inside a rule's bounds; None where an argument cannot be compared."""
    inside: bool | None = True
    for name, bound in bounds.items():
        for word, limit in bound.items():
            within = _within(word, limit, arguments.get(name))
            if within is False:
                return False
            if within is None:
                inside = None
    return inside


def _within(word: str, limit: Any, value: Any) -> bool | None:
    if word == "equals":
        return _same(limit, value)
    if word == "one_of":
        return any(_same(one, value) for one in limit)
    number, bound = _number(value), _number(limit)
    if number is None or bound is None:
        return None
    return number <= bound if word == "max" else number >= bound


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is not true, and amounts written as text are equal as amounts."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if one == other:
        return True
    left, right = _number(one), _number(other)
    return left is not None and left == right


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
