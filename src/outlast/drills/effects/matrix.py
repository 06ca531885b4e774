"""What is right for each effect class and each fault, and why: the table that the drill is judged by.

An entry reads ``calls/effects who [end]``. calls: requests that reach the other side and would act there (for
``read``: that ask). effects: distinct effects made, so the same note put twice is one. who: ``worker``, where
the worker that holds the task brought it to its end; ``auto``, where it or the settler settled by evidence;
``person``. end: of the operation and its task, ``succeeded`` unless it says ``failed``.

The rules behind it: a *read* and an *idempotent* call are made again. A *keyed* one is asked about where it
can be asked, and sent again under the same key. A *queryable* one is asked about; absence counts only late
enough, and leads to a resend only when the old sender cannot send any more. A *manual* one is never sent
again by itself. What is known not to have been processed is tried again, whatever the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from outlast.core.operation import EFFECTS
from outlast.drills import cells

__all__ = ["CELLS", "CHECKERS", "FAULTS", "Cell", "Family", "Fault", "Right", "chosen"]

Family = Literal["answers", "repeats", "crashes", "frozen", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What is right in one cell. by: who may have settled it. end: of the operation and of its task."""

    calls: int
    effects: int
    by: frozenset[str]
    end: str

    @classmethod
    def read(cls, text: str) -> Right:
        """Read an entry of the table."""
        counts, who, *end = text.split()
        calls, effects = counts.split("/")
        by = frozenset({"worker", "settler"} if who == "auto" else {who})
        return cls(calls=int(calls), effects=int(effects), by=by, end=end[0] if end else "succeeded")

    @property
    def person(self) -> bool:
        """Whether only a person can settle it."""
        return self.by == {"person"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row of the table.

    what: is done. why: the table says so. keyed_asks: whether the keyed tool of this row has a ``find``;
    some have none, so that a resend by key alone is seen as well.
    """

    name: str
    family: Family
    what: str
    why: str
    read: str
    idempotent: str
    keyed: str
    queryable: str
    manual: str
    keyed_asks: bool = True

    def right(self, effect: str) -> Right:
        """Answer what is right for an effect class."""
        return Right.read(getattr(self, effect))


FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        name="act_drop",
        family="answers",
        what="acts, then the connection breaks",
        why="sent and unanswered is unknown: the key, or the book over there, or a person says what happened",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="1/1 auto",
        manual="1/1 person",
        keyed_asks=False,
    ),
    Fault(
        name="act_hang",
        family="answers",
        what="acts, then never answers",
        why="a timeout is not a failure",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="1/1 auto",
        queryable="1/1 auto",
        manual="1/1 person",
    ),
    Fault(
        name="act_500",
        family="answers",
        what="acts, then answers 500",
        why="a 500 does not say whether it broke before or after it acted",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="1/1 auto",
        queryable="1/1 auto",
        manual="1/1 person",
    ),
    Fault(
        name="act_half",
        family="answers",
        what="acts, then half of the answer",
        why="an answer that was cut is none",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="1/1 auto",
        manual="1/1 person",
        keyed_asks=False,
    ),
    Fault(
        name="swallowed",
        family="answers",
        what="arrives, but is neither acted on nor answered",
        why="absence, seen late enough, with a sender that has returned, allows one resend; what is manual"
        " waits for a person, who finds nothing in the book",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="2/1 auto",
        manual="1/0 person failed",
    ),
    Fault(
        name="refused",
        family="answers",
        what="never arrives: the connection is refused",
        why="known not to have been sent, so every class tries again",
        read="1/0 worker",
        idempotent="1/1 worker",
        keyed="1/1 worker",
        queryable="1/1 worker",
        manual="1/1 worker",
    ),
    Fault(
        name="throttled_seconds",
        family="answers",
        what="429, come back in one second",
        why="known not to have been processed, and the wait is kept",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="2/1 worker",
        manual="2/1 worker",
    ),
    Fault(
        name="throttled_date",
        family="answers",
        what="429, come back at a date",
        why="as with seconds",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="2/1 worker",
        manual="2/1 worker",
    ),
    Fault(
        name="unavailable",
        family="answers",
        what="503",
        why="known not to have been processed",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="2/1 worker",
        manual="2/1 worker",
    ),
    Fault(
        name="stale_query",
        family="answers",
        what="acts, breaks the connection, and the first query sees a replica that lags behind",
        why="absence before an effect must be visible proves nothing: the key makes a resend harmless, a"
        " queryable tool waits and asks again",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 auto",
        queryable="1/1 auto",
        manual="1/1 person",
    ),
    Fault(
        name="second_id",
        family="repeats",
        what="the model asks again under a new call id",
        why="the business key stands for the deed, whatever the model calls it: the first result is answered",
        read="2/0 worker",
        idempotent="1/1 worker",
        keyed="1/1 worker",
        queryable="1/1 worker",
        manual="1/1 worker",
    ),
    Fault(
        name="twin_tasks",
        family="repeats",
        what="two tasks do the same at the same moment",
        why="one business key is held by one operation; the other waits, then gets the first result",
        read="2/0 worker",
        idempotent="1/1 worker",
        keyed="1/1 worker",
        queryable="1/1 worker",
        manual="1/1 worker",
    ),
    Fault(
        name="killed",
        family="crashes",
        what="its worker is killed between the act and the outcome",
        why="an intent without an outcome is unknown to whoever comes next",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="1/1 auto",
        queryable="1/1 auto",
        manual="1/1 person",
    ),
    Fault(
        name="frozen",
        family="frozen",
        what="its worker freezes after its last look at the lease, a successor settles, it thaws and sends",
        why="a frozen sender has no bound: absence allows no resend while it may still send; what it did is"
        " learnt from its late answer or by asking",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="1/1 auto",
        manual="1/1 auto",
    ),
    Fault(
        name="late_answer",
        family="crashes",
        what="its worker freezes before the answer, which it reads after a successor has settled",
        why="a late answer is evidence and changes nothing that is settled",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="1/1 auto",
        queryable="1/1 auto",
        manual="1/1 person",
    ),
    Fault(
        name="late_refusal",
        family="crashes",
        what="the first attempt is declined, which is read after a second attempt has begun",
        why="an outcome belongs to its attempt; a person may order the second one where nothing else may",
        read="2/0 worker",
        idempotent="2/1 worker",
        keyed="2/1 worker",
        queryable="2/1 person",
        manual="2/1 person",
        keyed_asks=False,
    ),
)
"""The table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An effect class under a fault."""

    effect: str
    fault: Fault

    @property
    def name(self) -> str:
        """How people name it, and ``--only``."""
        return f"{self.effect}/{self.fault.name}"

    @property
    def what(self) -> str:
        """What is done."""
        return self.fault.what

    @property
    def why(self) -> str:
        """Why the table says what it says."""
        return self.fault.why

    @property
    def labels(self) -> Mapping[str, str]:
        """How programs name it."""
        return {"effect": self.effect, "fault": self.fault.name}

    @property
    def tool(self) -> str:
        """The tool that only this cell calls."""
        return f"{self.effect}_{self.fault.name}"

    @property
    def invoice(self) -> str:
        """What its calls are about, and how they are found in the log."""
        return f"INV-{self.effect}-{self.fault.name}"

    @property
    def method(self) -> str:
        """The HTTP method of the call itself; queries are always GET."""
        return {"read": "GET", "idempotent": "PUT"}.get(self.effect, "POST")

    @property
    def right(self) -> Right:
        """What the table says of it."""
        return self.fault.right(self.effect)


CELLS: Final = tuple(Cell(effect=effect, fault=fault) for fault in FAULTS for effect in EFFECTS)
"""All of them."""

CHECKERS: Final = Cell(
    effect="ledger",
    fault=Fault(
        name="every_checker",
        family="after",
        what="after all of it, every checker looks at the store and at the ticket services' logs",
        why="what must be true at any moment is true now",
        read="-",
        idempotent="-",
        keyed="-",
        queryable="-",
        manual="-",
    ),
)
"""Judged at the end; nothing of it is played."""


def chosen(patterns: Sequence[str]) -> tuple[Cell, ...]:
    """Answer the cells that fit one of the patterns (``keyed/frozen``, ``manual/*``, ``*/killed``); all of
    them for none."""
    return cells.chosen(CELLS, patterns)
