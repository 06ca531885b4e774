"""How the Recorder is told to misbehave: one rule for one kind of call, matched in the order of planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

__all__ = ["Ending", "Rule"]

Ending = Literal[
    "answer",  # a whole answer
    "hang",  # nothing, until the client goes or the recorder stops
    "reset",  # the connection is broken (RST)
    "close",  # the connection is ended in good order (FIN), without an answer
    "half",  # the head of the answer and half of its body, then FIN
    "trickle",  # the answer byte by byte, ``delay_ms`` between two bytes
    "garbage",  # bytes that are not HTTP
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Say what happens to calls that fit, beside or instead of what an honest service would do.

    A call fits when ``method``, ``path`` (a glob), ``key`` and ``invoice`` (of its body or its query) are
    equal or None. ``nth`` counts the fitting calls from 1, beginning when the rule was planned: the rule
    waits for that one. It serves ``times`` calls, or all of them for None. Of several rules that want a call
    the one planned first takes it.

    In the order of time: the rule holds the call at the barrier ``hold`` if ``hold_at`` is "arrived"; waits
    ``act_after_ms``; lets the service act, or not (``act``); holds it if ``hold_at`` is "acted"; waits
    ``delay_ms``; and ends the call as ``then`` says. A ``status`` replaces the service's answer, and
    ``headers`` and ``body`` go with it. ``stale_ms`` hides tickets younger than that from this call.

    Acting does not need the client: a call whose client has gone is acted on all the same, as by any service
    that had already read it.
    """

    method: str | None = "POST"
    path: str | None = None
    key: str | None = None
    invoice: str | None = None
    nth: int | None = None
    times: int | None = 1
    act: bool = True
    act_after_ms: int = 0
    hold: str | None = None
    hold_at: Literal["arrived", "acted"] = "acted"
    delay_ms: int = 0
    then: Ending = "answer"
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    stale_ms: int = 0

    @classmethod
    def hang(cls) -> Rule:
        """Neither act nor answer."""
        return cls(act=False, then="hang")

    @classmethod
    def act_then_hang(cls) -> Rule:
        """Act and never answer."""
        return cls(then="hang")

    @classmethod
    def act_then_reset(cls) -> Rule:
        """Act and break the connection."""
        return cls(then="reset")

    @classmethod
    def act_then_close(cls) -> Rule:
        """Act and end the connection in good order, without an answer."""
        return cls(then="close")

    @classmethod
    def act_then_half(cls) -> Rule:
        """Act and send half of the answer's body."""
        return cls(then="half")

    @classmethod
    def act_then_trickle(cls, delay_ms: int) -> Rule:
        """Act and answer byte by byte, with ``delay_ms`` milliseconds between two bytes."""
        return cls(then="trickle", delay_ms=delay_ms)

    @classmethod
    def act_then_garbage(cls) -> Rule:
        """Act and answer with something that is not HTTP."""
        return cls(then="garbage")

    @classmethod
    def act_then_late(cls, delay_ms: int) -> Rule:
        """Act at once and answer ``delay_ms`` milliseconds later."""
        return cls(delay_ms=delay_ms)

    @classmethod
    def act_late(cls, act_after_ms: int) -> Rule:
        """Leave the call in a queue for ``act_after_ms`` milliseconds, then act and answer."""
        return cls(act_after_ms=act_after_ms)

    @classmethod
    def act_then_answer(
        cls, status: int, *, headers: Mapping[str, str] | None = None, body: str = ""
    ) -> Rule:
        """Act, and answer as if something else had happened."""
        return cls(status=status, headers=dict(headers or {}), body=body or None)

    @classmethod
    def refuse(cls, status: int, *, retry_after: str | None = None, body: str = "") -> Rule:
        """Answer ``status`` without acting; ``retry_after`` is sent as it stands, sense or nonsense."""
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return cls(act=False, status=status, headers=headers, body=body or None)

    @classmethod
    def reset_before_acting(cls) -> Rule:
        """Break the connection without acting."""
        return cls(act=False, then="reset")

    @classmethod
    def stale(cls, stale_ms: int) -> Rule:
        """Answer every query as a replica would that lags ``stale_ms`` milliseconds behind."""
        return cls(method="GET", stale_ms=stale_ms, times=None)

    def on(
        self,
        *,
        method: str | None = "POST",
        path: str | None = None,
        key: str | None = None,
        invoice: str | None = None,
        nth: int | None = None,
        times: int | None = 1,
    ) -> Rule:
        """Make a copy that fits other calls; see the class for the arguments."""
        return replace(self, method=method, path=path, key=key, invoice=invoice, nth=nth, times=times)

    def fits(self, method: str, path: str, key: str | None, invoice: str | None) -> bool:
        """Answer whether a call is of the kind that this rule is for."""
        return (
            self.method in (None, method)
            and (self.path is None or fnmatchcase(path, self.path))
            and self.key in (None, key)
            and self.invoice in (None, invoice)
        )

    def as_json(self) -> dict[str, Any]:
        """Answer the rule as ``POST /_plan`` takes it: only what differs from the defaults."""
        plain = Rule()
        return {name: value for name, value in asdict(self).items() if value != getattr(plain, name)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rule:
        """Read what ``as_json`` wrote. Raises ``ValueError`` for a name that no rule has."""
        unknown = set(value) - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"a rule has no {', '.join(sorted(unknown))}")
        return cls(**value)
