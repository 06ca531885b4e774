"""What is known of an unknown operation before anybody is asked: one gathering for whoever has to decide.

Purpose: the worker, the settler and ``operations plan`` decide by the same facts, stored evidence among them.

Identity: evidence is of an attempt. What is of the last one says what became of the operation, and so does
that an earlier one happened, unless a person has settled it since: all attempts are one call, under one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from outlast.core import passages, values
from outlast.core.record import record
from outlast.core.settle import Late, Open
from outlast.engine.registry import ToolSpec
from outlast.store.rows import EvidenceRow


class Sent(Protocol):
    """An operation with an intent, as a row or as a run sees it."""

    @property
    def kind(self) -> str:
        """``tool``, or ``compensation``."""
        ...

    @property
    def attempt(self) -> int:
        """The last one."""
        ...

    @property
    def first_intent_at(self) -> int | None:
        """Of the first attempt."""
        ...

    @property
    def deadline_at(self) -> int | None:
        """Of the last attempt."""
        ...


class Place(Protocol):
    """A place in the reconciliation queue."""

    @property
    def unusable(self) -> int:
        """Questions in a row that brought no evidence."""
        ...

    @property
    def sender_gone(self) -> bool:
        """Whoever made the last attempt cannot send any more."""
        ...

    @property
    def held_until(self) -> int | None:
        """Until when the provider of its tool wants to be left alone by everybody."""
        ...


@record
class Known:
    """What decides. result: plain, of a last attempt that answered late that it happened. seen: number of the
    newest evidence among it, 0 where there is none."""

    facts: Open
    result: Any
    seen: int


def gather(
    tool: ToolSpec, sent: Sent, place: Place | None, evidence: Sequence[EvidenceRow], *, may_send: bool
) -> Known:
    """Gather what is known.

    place: None where somebody has just settled it. evidence: all of it, oldest first, read before the place:
    so that what is said in between shows in the place, and again when the operation is put back. may_send:
    the retry policy allows another attempt, and somebody is there to make it.
    """
    notes = [
        passages.Noted(attempt=row.attempt, data=values.decode(row.data))
        for row in evidence
        if row.source == passages.SOURCE
    ]
    # Of every attempt: that the last one did nothing says nothing of the ones before.
    seen = passages.seen(notes)
    if seen == "nothing" and not tool.gateway:
        # It may have sent something by another way.
        seen = None
    acted = passages.seen(passages.of_attempt(notes, sent.attempt)) == "acted"
    late, result = _late(evidence, sent.attempt, acted=acted)
    return Known(
        facts=Open(
            effect=tool.effect,
            first_intent_at=sent.first_intent_at or 0,
            deadline_at=sent.deadline_at or 0,
            timeout_us=tool.timeout_us,
            key_window_us=tool.key_window_us,
            visible_within_us=tool.visible_within_us,
            can_find=tool.find is not None,
            # A gateway checks attempt, epoch and deadline as it sends. Whoever asks here has ended the
            # attempt, and absence counts only after its deadline.
            sender_gone=tool.gateway or (place is not None and place.sender_gone),
            may_send=may_send,
            unusable=0 if place is None else place.unusable,
            late=late,
            must_happen=sent.kind == "compensation",
            seen=seen,
            held_until=None if place is None else place.held_until,
        ),
        result=result,
        seen=evidence[-1].number if evidence else 0,
    )


def _late(evidence: Sequence[EvidenceRow], attempt: int, *, acted: bool) -> tuple[Late | None, Any]:
    """Read what an attempt answered late, or an earlier one that happened, and its result.

    acted: a gateway saw the attempt answered as done.
    """
    standing = _words(evidence, attempt)
    own = [
        row
        for row in evidence
        if row.source != passages.SOURCE and (row.attempt == attempt or row in standing)
    ]
    answers = [row for row in own if row.says in ("happened", "did_not_happen")]
    # How a person or the settler settled it before counts against what was answered otherwise.
    said = {row.says or _field(row, "verdict") for row in own}
    if acted and "did_not_happen" in said:
        return "contradictory", None
    if not answers:
        return None, None
    if {"happened", "did_not_happen"} <= said:
        return "contradictory", None
    if "did_not_happen" in said:
        return "did_not_happen", None
    result = _field(answers[-1], "result")
    return ("no_result", None) if result is None else ("happened", values.decode(result))


def happened(evidence: Sequence[EvidenceRow], attempt: int) -> bool:
    """Answer whether an operation is said to have happened, in any attempt up to this one, and no person has
    settled it since."""
    return bool(_words(evidence, attempt))


def _words(evidence: Sequence[EvidenceRow], attempt: int) -> list[EvidenceRow]:
    overruled = max((row.number for row in evidence if row.source == "person"), default=0)
    return [
        row
        for row in evidence
        if row.says == "happened"
        and row.source != passages.SOURCE
        and 1 <= row.attempt <= attempt
        and row.number > overruled
    ]


def _field(row: EvidenceRow, name: str) -> Any:
    seen = values.decode(row.data)
    return seen.get(name) if isinstance(seen, dict) else None
