"""What an operation is: its kind, its effect class, and what each effect class allows after an unknown."""

from __future__ import annotations

from typing import Literal, get_args

from outlast.core.record import record

OperationKind = Literal["step", "model", "tool", "timer", "signal", "child", "compensation", "value"]
"""``value`` is a recorded reading: the clock, a random number, an id."""
OPERATION_KINDS: tuple[str, ...] = get_args(OperationKind)

OperationState = Literal["planned", "approved", "running", "succeeded", "failed", "unknown"]

Effect = Literal["read", "idempotent", "keyed", "queryable", "manual"]
"""What a tool does to the outside; undeclared means ``manual``."""
EFFECTS: tuple[str, ...] = get_args(Effect)


@record
class AfterUnknown:
    """What may follow an unknown outcome of an effect class.

    call_again: the call may simply be made again.
    may_ask: ``find``, where the tool has one, is asked first.
    resend_with_key: the call may be made again with the same key, inside the key window.
    """

    call_again: bool
    may_ask: bool
    resend_with_key: bool


AFTER_UNKNOWN: dict[str, AfterUnknown] = {
    "read": AfterUnknown(call_again=True, may_ask=False, resend_with_key=False),
    "idempotent": AfterUnknown(call_again=True, may_ask=False, resend_with_key=False),
    "keyed": AfterUnknown(call_again=False, may_ask=True, resend_with_key=True),
    "queryable": AfterUnknown(call_again=False, may_ask=True, resend_with_key=False),
    "manual": AfterUnknown(call_again=False, may_ask=False, resend_with_key=False),
}


def changes_something(effect: str) -> bool:
    """Answer whether a call of this effect class may leave a trace outside."""
    return effect != "read"
