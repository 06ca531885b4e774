"""Asking the other side about an effect: the call of a tool's ``find``, and what its answer means.

Purpose: one way to ask, for the worker that holds the task and for the settler that holds none.

State: how long a provider asked a tenant to wait. It stands in the store, for all processes and for calls as
for questions; here only until it stands there, for the questions that this process has under way.

Failure by failure: ``find`` raises, hangs, or answers what cannot be stored: that is no evidence, never
absence. A wait that the other side asks for is handed on, to be stored with what is put back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from outlast import clock
from outlast.core import canonical, values
from outlast.core.record import record
from outlast.core.retry import sensible_wait
from outlast.core.settle import Answer, Asked, Open, Plan, plan
from outlast.engine.registry import ToolSpec
from outlast.errors import InvalidRequest, NotSent
from outlast.tools.call import ToolCall

FIND_TIMEOUT_S: Final = 30.0
AT_ONCE: Final = 8
"""Questions that one process asks one other side at the same time."""
MAX_DETAIL: Final = 500


@dataclass(frozen=True, slots=True)
class Found:
    """What ``find`` answers when a plain result does not say enough.

    result: what the tool would have returned. arguments: those that the effect over there was made with, by
    the tool's parameter names; where given they are compared with the operation's, and a difference goes to a
    person.
    """

    result: Any
    arguments: dict[str, Any] | None = None


@record
class Finding:
    """An answer. result: plain, of an effect that was found. wait_s: how long the other side asked to be left
    alone. asked: False where it was not asked, since it wants to be left alone."""

    answer: Answer
    result: Any = None
    detail: str = ""
    wait_s: float | None = None
    asked: bool = True


class Inquiries:
    """All questions that this process asks: few at once of one other side, and none while it wants to be left
    alone."""

    def __init__(self) -> None:
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._not_before: dict[tuple[str, str], float] = {}

    async def ask(
        self,
        tool: ToolSpec,
        query: Callable[[], ToolCall],
        arguments: dict[str, Any],
        *,
        tenant: str,
        held_s: Callable[[], Awaitable[float]],
    ) -> Finding:
        """Ask a tool's other side once, when it is its turn.

        query: makes the context of the call, then. arguments: those that were sent, typed; ``find`` gets
        those that it has parameters for. held_s: reads from the store how long the provider wants to be left
        alone, in seconds; the caller has just read it, so that it is read again only after others were asked
        before. Never raises what ``find`` raises; raises what ``held_s`` does.
        """
        gate = self._gates.setdefault(tool.provider, asyncio.Semaphore(AT_ONCE))
        others_first = gate.locked()
        async with gate:
            wait_s = self._left(tenant, tool.provider)
            if wait_s <= 0 and others_first:
                wait_s = await held_s()
            if wait_s > 0:
                return Finding(answer="no_evidence", wait_s=wait_s, asked=False)
            found = await _ask(tool, query(), arguments)
            if found.wait_s is not None:
                name, until = (tenant, tool.provider), clock.monotonic() + found.wait_s
                # Another question that was under way may have been told to wait longer.
                self._not_before[name] = max(until, self._not_before.get(name, until))
            return found

    def _left(self, tenant: str, provider: str) -> float:
        left = self._not_before.get((tenant, provider), 0.0) - clock.monotonic()
        if left <= 0:
            self._not_before.pop((tenant, provider), None)
        return left


async def _ask(tool: ToolSpec, query: ToolCall, arguments: dict[str, Any]) -> Finding:
    if tool.find is None or tool.find_signature is None:
        raise ValueError(f"tool {tool.name} has no find")
    given = {name: value for name, value in arguments.items() if name in tool.find_signature.names}
    try:
        async with asyncio.timeout(min(FIND_TIMEOUT_S, tool.timeout_us / 1_000_000)):
            answer = await tool.find(query, **given)
        return _read(tool, answer, arguments)
    except InvalidRequest as error:
        return Finding(answer="no_evidence", detail=f"the answer is of no use: {error}"[:MAX_DETAIL])
    except NotSent as error:
        # To be told to wait for no time is to be told nothing.
        wait_s = sensible_wait(error.retry_after) or None
        return Finding(answer="no_evidence", detail="the other side could not be asked", wait_s=wait_s)
    # ``find`` is the user's code; whatever it raises is no evidence.
    except Exception as error:
        return Finding(answer="no_evidence", detail=type(error).__name__)


def _read(tool: ToolSpec, answer: Any, arguments: dict[str, Any]) -> Finding:
    candidates = answer if isinstance(answer, list) else [] if answer is None else [answer]
    if not candidates:
        return Finding(answer="absent")
    if len(candidates) > 1:
        return Finding(answer="several", detail=f"{len(candidates)} effects could be this one")
    found = candidates[0] if isinstance(candidates[0], Found) else Found(candidates[0])
    plain = values.normalise(found.result)
    values.encode(plain, what="the result that find answered")
    if found.arguments is not None:
        made_with = tool.signature.plain(tool.signature.check(found.arguments))
        if canonical.digest(made_with) != canonical.digest(tool.signature.plain(arguments)):
            return Finding(answer="different", result=plain, detail="made with other arguments")
    return Finding(answer="found", result=plain)


def decide(facts: Open, found: Finding, *, asked_at: int, now: int, pause_us: int = 0) -> Plan:
    """Decide what follows from a question that was asked, or was not.

    Instants of the database's clock. pause_us: how long the retry policy waits before another send.
    """
    wait_us = None if found.wait_s is None else int(found.wait_s * 1_000_000)
    if not found.asked:
        return plan(replace(facts, held_until=now + (wait_us or 0)), now + pause_us)
    return plan(facts, now + pause_us, Asked(answer=found.answer, at=asked_at, wait_us=wait_us))


def was_held(decided: Plan, found: Finding | None) -> bool:
    """Answer whether it was not asked about for no other reason than a wait that stands."""
    return decided.action == "wait" if found is None else not found.asked


def shared_wait(tool: ToolSpec, found: Finding | None) -> tuple[str, int] | None:
    """Answer the wait, in microseconds, that a question was answered with, and of which provider: for
    everybody."""
    if found is None or not found.asked or found.wait_s is None:
        return None
    return tool.provider, int(found.wait_s * 1_000_000)


def as_evidence(found: Finding, *, by: str) -> str:
    """Write an answer as the JSON text that is kept of it."""
    seen: dict[str, Any] = {"asked": "find", "by": by, "answer": found.answer.replace("_", " ")}
    if found.detail:
        seen["detail"] = found.detail
    if found.answer in ("found", "different"):
        seen["result"] = found.result
    return values.encode(seen, limit=2 * values.MAX_VALUE_BYTES, what="evidence")
