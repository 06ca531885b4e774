"""What is right after each fault, and why: the table that the drill is judged by.

An entry reads ``calls/effects told``. calls: how often the handler began, or a request reached the ticket
service that would act there. told: the kinds of answers that the callers got, in order of the alphabet:
statuses, ``replayed_`` and the status of a first answer that was given again, and codes of refusals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from outlast.drills import cells
from outlast.drills.otherside import handlers, passing, scripts, twins
from outlast.drills.otherside.scene import Played, Scene

__all__ = ["CELLS", "CHECKERS", "Cell", "Play", "Right", "chosen"]

Play = Callable[[Scene, str], Awaitable[Played]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What is right in one cell."""

    calls: int
    effects: int
    told: str

    @classmethod
    def read(cls, text: str) -> Right:
        """Read an entry of the table."""
        counts, told = text.split()
        calls, _, effects = counts.partition("/")
        return cls(calls=int(calls), effects=int(effects), told=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(cells.Cell):
    """A row of the table. play: None for what is only judged."""

    play: Play | None
    right: Right


def _cell(family: str, fault: str, play: Play | None, right: str, what: str, why: str) -> Cell:
    return Cell(family=family, fault=fault, play=play, what=what, why=why, right=Right.read(right))


CELLS: Final[tuple[Cell, ...]] = (
    # -- middleware -----------------------------------------------------------------------------------------
    _cell(
        "middleware",
        "racing_twins",
        twins.racing,
        "1/1 201+replayed_201",
        "two hundred twins at once, over two processes",
        "a key is claimed by one insert; everybody else gets the first answer",
    ),
    _cell(
        "middleware",
        "twin_in_flight",
        twins.at_once,
        "1/1 201+in_flight",
        "twins that do not wait, while the first works",
        "who cannot have the first answer yet is told when to come again, and nothing is done",
    ),
    _cell(
        "middleware",
        "killed_before_acting",
        twins.killed_before,
        "2/1 201+nothing+replayed_201",
        "the process of the first dies before it acts",
        "its lease runs out, and the next request works in its place",
    ),
    _cell(
        "middleware",
        "killed_after_acting",
        twins.killed_after,
        "2/1 201+nothing+replayed_201",
        "the process of the first dies after it has acted",
        "the next handler is told that one has worked before, and looks",
    ),
    _cell(
        "middleware",
        "frozen_first",
        twins.frozen_first,
        "2/1 201+replayed_201",
        "the process of the first freezes after it has acted, and thaws when another has answered",
        "an answer is kept for whoever holds the key; who lost it answers what is kept",
    ),
    _cell(
        "middleware",
        "other_content",
        twins.other_content,
        "1/1 201+idempotency_conflict+replayed_201",
        "another amount under the same key",
        "a key stands for one request; neither the first answer nor a second ticket",
    ),
    _cell(
        "middleware",
        "older_epoch",
        twins.older_epoch,
        "1/1 201+replayed_201+stale_epoch",
        "a call of the worker that lost the task, after one of its successor",
        "an older epoch is refused before the key is looked at",
    ),
    _cell(
        "middleware",
        "after_retention",
        twins.after_retention,
        "2/2 201+replayed_201",
        "the same key when its time is over",
        "a key is known for as long as it is said to be, and new after that: so callers have a window",
    ),
    _cell(
        "middleware",
        "another_client",
        twins.another_client,
        "2/2 201+replayed_201",
        "two clients that use one key",
        "a key is its client's own",
    ),
    _cell(
        "middleware",
        "given_back",
        twins.given_back,
        "2/1 201+503+replayed_201",
        "the first answer is 503",
        "what was not processed gives the key back",
    ),
    _cell(
        "middleware",
        "cut_body",
        handlers.cut_body,
        "1/1 201",
        "a request that is cut in the middle of its body",
        "half a request is none: it claims nothing",
    ),
    _cell(
        "middleware",
        "large_body",
        handlers.large_body,
        "0/0 body_too_large",
        "a body over the bound",
        "what cannot be compared is refused before anything is done",
    ),
    _cell(
        "middleware",
        "large_answer",
        handlers.large_answer,
        "1/1 201+answer_not_kept",
        "an answer that is too large to keep",
        "it passes; a repeat is refused by name instead of working again",
    ),
    _cell(
        "middleware",
        "streamed_answer",
        handlers.streams,
        "1/1 201+answer_not_kept",
        "an answer that is a stream of events",
        "it is sent as it comes, and a repeat is refused by name",
    ),
    _cell(
        "middleware",
        "handler_raises",
        handlers.raises,
        "1/1 handler_failed+replayed_500",
        "the handler raises after it has acted",
        "it may have acted: the failure is the answer, and is kept",
    ),
    _cell(
        "middleware",
        "handler_hangs",
        handlers.hangs,
        "1/1 handler_timeout+replayed_504",
        "the handler hangs after it has acted",
        "it is cut, and its failure is the answer",
    ),
    _cell(
        "middleware",
        "client_gone",
        handlers.client_gone,
        "1/1 replayed_201",
        "the client leaves while the handler works, and comes again",
        "the handler is not cut, and its answer waits",
    ),
    _cell(
        "middleware",
        "bad_keys",
        handlers.bad_keys,
        "0/0 idempotency_key_missing+invalid_key",
        "keys of every bad shape, two, and none",
        "a key that cannot be kept is refused before anything is done",
    ),
    _cell(
        "middleware",
        "store_away",
        handlers.store_away,
        "0/0 store_unavailable",
        "the store of the keys cannot be reached",
        "without a claim nothing is done",
    ),
    # -- gateway --------------------------------------------------------------------------------------------
    _cell(
        "gateway",
        "goes_through",
        passing.goes_through,
        "1/1 201",
        "a sandbox sends for a call that runs",
        "what may leave does, under the operation's key",
    ),
    _cell(
        "gateway",
        "dead_lease",
        passing.dead_lease,
        "0/0 stale_epoch",
        "a sandbox sends when its worker is dead and its lease over",
        "nothing leaves for a task that nobody holds",
    ),
    _cell(
        "gateway",
        "old_epoch",
        passing.old_epoch,
        "0/0 stale_epoch",
        "a sandbox sends when another worker has the task",
        "a token is as good as the lease that it was made under",
    ),
    _cell(
        "gateway",
        "frozen_sender",
        passing.frozen_sender,
        "0/0 stale_epoch",
        "a sandbox freezes at its send, and thaws when another worker has the task",
        "the gateway looks when it sends: this is the cell that it exists for",
    ),
    _cell(
        "gateway",
        "other_fingerprint",
        passing.other_fingerprint,
        "0/0 other_decision",
        "a token for other parameters than the intent's",
        "what leaves is what was decided",
    ),
    _cell(
        "gateway",
        "no_approval",
        passing.no_approval,
        "0/0 no_approval",
        "a token under a decision that nobody made",
        "where people are to agree, the intent has consumed their decision",
    ),
    _cell(
        "gateway",
        "other_tenant",
        passing.other_tenant,
        "0/0 not_running",
        "a token of another tenant",
        "every key is of its tenant",
    ),
    _cell(
        "gateway",
        "expired_token",
        passing.expired,
        "0/0 token_expired",
        "a token whose time is over",
        "the database's clock says so",
    ),
    _cell(
        "gateway",
        "altered_token",
        passing.altered,
        "0/0 invalid_token",
        "tokens with one letter changed",
        "a token is signed, all of it",
    ),
    _cell(
        "gateway",
        "forbidden_host",
        passing.forbidden_host,
        "0/0 forbidden_host",
        "requests to hosts that are not on the list, a private address among them",
        "the operator's list and the token's both have to allow it",
    ),
    _cell(
        "gateway",
        "rebound_name",
        passing.rebound,
        "1/1 201+forbidden_address",
        "a name that leads to a private address the second time",
        "a name is looked up once a request, and connected to at that very address",
    ),
    _cell(
        "gateway",
        "cancelled_task",
        passing.cancelled,
        "0/0 cancelled",
        "a sandbox sends after its task's cancel was acknowledged",
        "after the acknowledgement nothing leaves any more",
    ),
    # -- the ledger alone -----------------------------------------------------------------------------------
    _cell(
        "ledger",
        "killed_before_intent",
        scripts.killed_before_intent,
        "1/1 filed",
        "a script is killed before its intent, and its scope entered again",
        "nothing is on record of it; it is called for the first time",
    ),
    _cell(
        "ledger",
        "killed_before_outcome",
        scripts.killed_before_outcome,
        "1/1 filed",
        "a script is killed when its ticket is filed, and its scope entered again",
        "what was under way is unknown, and found by asking",
    ),
    _cell(
        "ledger",
        "settled_later",
        scripts.settled_later,
        "1/1 filed+unsettled",
        "a script is killed in a call that nobody can be asked about",
        "a script is told by name that a person is needed, and what that person said in the next entry",
    ),
    _cell(
        "ledger",
        "two_at_once",
        scripts.two_at_once,
        "1/1 filed+scope_busy",
        "two processes enter one scope",
        "one is in it at a time; the other waits or is refused by name, and gets the same ticket",
    ),
    _cell(
        "ledger",
        "frozen_block",
        scripts.frozen_block,
        "1/1 filed+lease_lost",
        "a script freezes in its scope and thaws when another has called",
        "its lease is gone: it is refused before it sends",
    ),
    _cell(
        "ledger",
        "approved_later",
        scripts.approved_later,
        "1/1 approval_pending+filed",
        "people agree to a call when its script has ended",
        "the decision is for exactly that call, and used by the next entry",
    ),
)
"""The table."""

CHECKERS: Final = _cell(
    "store",
    "every_checker",
    None,
    "0/0 -",
    "after all of it, every checker looks at the store and at the ticket service's log",
    "what must be true at any moment is true now",
)
"""Judged at the end; nothing of it is played."""


def chosen(patterns: Sequence[str]) -> tuple[Cell, ...]:
    """Answer the cells that fit one of the patterns (``gateway/frozen``, ``ledger``, ``*/killed_*``)."""
    return cells.chosen(CELLS, patterns)
