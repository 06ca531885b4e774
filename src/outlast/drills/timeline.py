"""What happened, in one order: a task's events, the other side's log and what the drill itself did.

Clocks: events carry the database's, calls the ticket service's, and the drill its own. All are told as
seconds after the drill's first moment; ``skew_s`` is how far the database's clock runs ahead of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlast.testing.recorder import Call
from outlast.views import EventView, EvidenceView

__all__ = ["Line", "merged", "of_call", "of_event", "of_evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. at: seconds since 1970 by our clock. who: worker, task, tickets, client, … tone: good, bad or
    empty."""

    at: float
    who: str
    what: str
    tone: str = ""


def merged(lines: Iterable[Line]) -> list[Line]:
    """Put lines into the order of time; what has one time stays in the order given."""
    return sorted(lines, key=lambda line: line.at)


def of_event(event: EventView, skew_s: float, *, who: str = "task") -> Line:
    """Tell an event of a task's stream. who: the task, where there are several."""
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    what, tone = _told(event, data)
    return Line(at=event.at.timestamp() - skew_s, who=who, what=what, tone=tone)


def _told(event: EventView, data: dict[str, Any]) -> tuple[str, str]:
    name, reason = data.get("name") or data.get("operation", ""), data.get("reason", "")
    match event.kind:
        case "task.submitted":
            return f"queued ({data.get('agent', '')}), {event.task}", ""
        case "attempt.started":
            return f"running: claimed by {data.get('worker', '?')}, epoch {event.epoch}", ""
        case "attempt.lost":
            return f"the lease of epoch {event.epoch} ran out; its worker is fenced off", "bad"
        case "task.queued":
            return "queued again", ""
        case "operation.started" if data.get("kind") in ("tool", "compensation"):
            return (
                f"{name} running: intent on disk, attempt {data.get('attempt')},"
                f" key {data.get('idempotency_key')}"
            ), ""
        case "operation.succeeded":
            return f"{name} succeeded, and that is on disk", "good"
        case "operation.unknown":
            return f"{name} unknown ({reason}); not sent again blindly", "bad"
        case "operation.retrying":
            return f"{name} planned again under the same key: {reason}", ""
        case "operation.settled":
            return f"{name} settled as {data.get('verdict')} by {data.get('by')}, from evidence", "good"
        case "approval.requested":
            return f"people are asked: {reason} ({_short(data.get('approval'))})", ""
        case "approval.approved" | "approval.rejected":
            verdict = event.kind.partition(".")[2]
            said = f"{_short(data.get('approval'))} {verdict} by {data.get('by')}"
            return f"{said}, for {str(data.get('fingerprint'))[:19]}… and nothing else", "good"
        case "approval.withdrawn":
            return f"{_short(data.get('approval'))} withdrawn: it does not apply, and was never used", "bad"
        case "operation.failed":
            return f"{name} failed: {reason}", "bad"
        case "task.woken":
            return f"queued again: what it waited for is there ({reason})", ""
        case "task.cancel_requested":
            return f"to be cancelled, says {data.get('by')}: {reason}; no call begins from now on", "bad"
        case "task.cancelled":
            return f"cancelled; effects that nobody knows of yet: {data.get('effects_open', 0)}", "bad"
        case "progress":
            return f"“{data.get('text', '')}”", ""
        case "task.succeeded":
            return "succeeded", "good"
        case "task.failed":
            return f"failed: {data['code']}" if data.get("code") else "failed", "bad"
        case _:
            words = [f"{key}={value}" for key, value in data.items() if value not in ("", None)]
            return " ".join((event.kind, *words)), ""


def _short(approval: object) -> str:
    """Name a question by its operation and number."""
    return str(approval).partition(":")[2]


def of_call(call: Call) -> list[Line]:
    """Tell a call in the ticket service's log: what came, what was done, what was answered."""
    asked = "" if not call.query else "?" + "&".join(f"{key}={value}" for key, value in call.query.items())
    came = f"{call.method} {call.path}{asked}"
    if call.method == "POST":
        came += f" under key {call.key}, sent under epoch {call.epoch}"
    lines = [Line(at=call.arrived_at, who="tickets", what=came)]
    if call.effect is not None and call.acted_at is not None:
        lines.append(Line(at=call.acted_at, who="tickets", what=f"{call.effect} {call.ticket}", tone="good"))
    if call.ended_at is not None:
        if call.ending != "answer":
            lines.append(
                Line(at=call.ended_at, who="tickets", what=f"and never answers ({call.ending})", tone="bad")
            )
        elif call.status is not None and call.status >= 400:
            what = f"answers {call.status}, and has done nothing"
            lines.append(Line(at=call.ended_at, who="tickets", what=what, tone="bad"))
        elif call.replayed:
            what = f"knows the key: answers {call.ticket} again, makes nothing"
            lines.append(Line(at=call.ended_at, who="tickets", what=what, tone="good"))
    return lines


def of_evidence(evidence: EvidenceView, skew_s: float) -> Line:
    """Tell a piece of evidence."""
    data: dict[str, Any] = evidence.data if isinstance(evidence.data, dict) else {}
    at = evidence.at.timestamp() - skew_s
    if evidence.source == "late":
        what = f"late answer of epoch {data.get('epoch')} kept as evidence; it changes nothing"
        return Line(at=at, who="task", what=what)
    if "answer" in data:
        return Line(at=at, who="task", what=f"evidence: {data.get('asked', '')} → {data['answer']}")
    return Line(at=at, who="task", what=f"evidence: {data.get('reason') or evidence.source}")
