"""Histories that can have happened pass, and each kind that cannot is told, by hand-made ones."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.testing.history import (
    UNKNOWN,
    History,
    HistoryFile,
    Operation,
    judge,
    judge_streams,
    read,
    stuck_at,
)


def op(kind: str, asked: tuple[Any, ...], answer: Any, began: float, ended: float | None = None) -> Operation:
    """Make an operation. ended: None for one that was never answered."""
    made = Operation(client="c", register=(kind, "r"), asked=asked, invoked_at=began)
    if ended is None:
        return made
    return Operation(
        client="c", register=(kind, "r"), asked=asked, invoked_at=began, answer=answer, answered_at=ended
    )


def claim(epoch: int, began: float, ended: float) -> Operation:
    return op("lease", ("claim",), epoch, began, ended)


def write(epoch: int, answer: Any, began: float, ended: float | None = None) -> Operation:
    return op("lease", ("write", epoch), answer, began, ended)


def submit(answer: Any, began: float, ended: float | None = None) -> Operation:
    return op("life", ("submit",), answer, began, ended)


def look(answer: Any, began: float, ended: float, task: str = "t1") -> Operation:
    return op("life", ("read", task), answer, began, ended)


def retry(answer: Any, began: float, ended: float | None = None) -> Operation:
    return op("life", ("retry", "t1"), answer, began, ended)


def decide(
    verdict: str, answer: Any, began: float, ended: float | None = None, who: str = "ann"
) -> Operation:
    return op("decision", ("decide", verdict, who), answer, began, ended)


MAY_BE = {
    "a lease that is handed on": [
        claim(1, 0, 1),
        write(1, "written", 2, 3),
        write(1, "ended", 4, 5),
        claim(2, 6, 7),
        write(1, "stale", 8, 9),
    ],
    "a sweep that nobody saw": [
        claim(1, 0, 1),
        write(1, "stale", 2, 3),
        claim(4, 4, 5),
        write(4, "written", 6, 7),
    ],
    "a write that was under way while another took over": [
        claim(1, 0, 1),
        write(1, "written", 2, 9),
        claim(2, 3, 4),
        write(2, "written", 5, 6),
    ],
    "a write without an answer that may have ended it": [
        claim(1, 0, 1),
        write(1, None, 2),
        write(1, "stale", 4, 5),
    ],
    "a write without an answer that never was": [
        claim(1, 0, 1),
        write(1, None, 2),
        write(1, "written", 4, 5),
    ],
    "a submit whose answer was lost": [submit(None, 0), submit(("t1", True), 2, 3), look((1, "live"), 4, 5)],
    "a submit that came to nothing": [
        submit(None, 0),
        submit(("t1", False), 2, 3),
        submit(("t1", True), 4, 5),
    ],
    "an end that came between": [
        submit(("t1", False), 0, 1),
        look((1, "live"), 2, 6),
        look((1, "failed"), 3, 4),
        look((1, "failed"), 7, 8),
    ],
    "another round": [
        submit(("t1", False), 0, 1),
        look((1, "failed"), 2, 3),
        retry(2, 4, 5),
        look((2, "live"), 6, 7),
        look((2, "succeeded"), 8, 9),
        retry("refused", 10, 11),
    ],
    "a retry whose answer was lost": [
        submit(("t1", False), 0, 1),
        look((1, "failed"), 2, 3),
        retry(None, 4),
        look((1, "failed"), 5, 6),
        look((2, "succeeded"), 7, 8),
    ],
    "two who decide": [
        decide("approve", "taken", 0, 5),
        decide("reject", "approve", 1, 4, "bob"),
        decide("approve", "taken", 6, 7),
    ],
    "a decision whose answer was lost": [decide("reject", None, 0), decide("approve", "reject", 2, 3, "bob")],
    "an agreement that was not used in time": [
        decide("approve", "taken", 0, 1),
        decide("reject", "void", 2, 3, "bob"),
    ],
    "a question whose time is over": [decide("approve", "void", 0, 1), decide("reject", "void", 2, 3, "bob")],
}

CANNOT_BE = {
    "an epoch twice": [claim(1, 0, 1), claim(1, 2, 3)],
    "an epoch that falls": [claim(2, 0, 1), claim(1, 2, 3)],
    "two writers of one lease at a time": [
        claim(1, 0, 1),
        claim(2, 2, 3),
        write(2, "written", 4, 5),
        write(1, "written", 6, 7),
    ],
    "a write after a stale one": [claim(1, 0, 1), write(1, "stale", 2, 3), write(1, "written", 4, 5)],
    "a write after the end": [claim(1, 0, 1), write(1, "ended", 2, 3), write(1, "written", 4, 5)],
    "a write before the claim": [write(1, "written", 0, 1), claim(1, 2, 3)],
    "two tasks of one key": [submit(("t1", False), 0, 1), submit(("t2", False), 2, 3)],
    "two first ones at once": [submit(("t1", False), 0, 3), submit(("t1", False), 1, 2)],
    "accepted and not there": [submit(("t1", False), 0, 1), look("missing", 2, 3)],
    "a replay of nothing": [submit(("t1", True), 0, 1)],
    "an end that is taken back": [
        submit(("t1", False), 0, 1),
        look((1, "failed"), 2, 3),
        look((1, "live"), 4, 5),
    ],
    "another end": [submit(("t1", False), 0, 1), look((1, "failed"), 2, 3), look((1, "succeeded"), 4, 5)],
    "a round that nobody opened": [submit(("t1", False), 0, 1), look((2, "live"), 2, 3)],
    "a retry of what has succeeded": [
        submit(("t1", False), 0, 1),
        look((1, "succeeded"), 2, 3),
        retry(2, 4, 5),
    ],
    "a retry, of what has succeeded, that nobody was answered": [
        submit(("t1", False), 0, 1),
        look((1, "succeeded"), 2, 3),
        retry(None, 4),
        look((2, "live"), 6, 7),
    ],
    "two decisions": [decide("approve", "taken", 0, 1), decide("reject", "taken", 2, 3, "bob")],
    "two who were taken at once": [decide("approve", "taken", 0, 3), decide("approve", "taken", 1, 2, "bob")],
    "what stands and was never said": [decide("approve", "reject", 0, 1)],
    "a refusal that is over after all": [
        decide("reject", "taken", 0, 1),
        decide("reject", "void", 2, 3, "bob"),
    ],
    "an agreement to what is over": [
        decide("reject", "void", 0, 1, "bob"),
        decide("approve", "taken", 2, 3),
    ],
}


@pytest.mark.parametrize("name", MAY_BE)
def test_what_may_have_happened_passes(name: str) -> None:
    assert judge(MAY_BE[name]) == []


@pytest.mark.parametrize("name", CANNOT_BE)
def test_what_cannot_have_happened_is_told(name: str) -> None:
    kind = CANNOT_BE[name][0].register[0]
    (violation,) = judge(CANNOT_BE[name])
    assert violation.promise == f"histories_of_{kind}"
    assert violation.text.startswith(
        f"r: {len(CANNOT_BE[name])} operations are in no order that explains c: "
    )


def test_registers_are_judged_by_themselves() -> None:
    bad = CANNOT_BE["an epoch twice"]
    assert len(judge([*MAY_BE["two who decide"], *bad, *MAY_BE["another round"]])) == 1
    with pytest.raises(KeyError):
        judge([op("unheard of", ("ask",), 1, 0, 1)])


def _register(state: Any, asked: tuple[Any, ...], answer: Any) -> list[Any]:
    """A register that is written and read."""
    if asked[0] == "write":
        return [asked[1]]
    return [state] if answer in (UNKNOWN, state) else []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([("write", 1), ("write", 2), ("read",)]),
            st.integers(0, 2), st.integers(0, 6), st.integers(1, 4), st.booleans(),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_the_search_finds_what_trying_every_order_finds(told: list[Any]) -> None:
    operations = [
        op("x", asked, answer if asked[0] == "read" else "ok", began, None if lost else began + lasts)
        for asked, answer, began, lasts, lost in told
    ]
    assert (stuck_at(operations, _register, 0) == ()) is _some_order_explains(operations)


def _some_order_explains(operations: list[Operation]) -> bool:
    told = [one for one in operations if one.answer is not UNKNOWN]
    lost = [one for one in operations if one.answer is UNKNOWN]
    for count in range(len(lost) + 1):
        for chosen in itertools.combinations(lost, count):
            for order in itertools.permutations([*told, *chosen]):
                if any(b.answered_at < a.invoked_at for a, b in itertools.combinations(order, 2)):
                    continue
                state: Any = 0
                for one in order:
                    after = _register(state, one.asked, one.answer)
                    if not after:
                        break
                    [state] = after
                else:
                    return True
    return False


def test_a_long_history_with_open_ends_is_judged_in_time() -> None:
    history = [claim(1, 0, 1)]
    for number in range(200):
        history.append(write(1, "written", 2 + number, 2.5 + number))
        if number % 10 == 0:
            history.append(write(1, None, 2.1 + number))
    began = time.monotonic()
    assert judge(history) == []
    assert len(judge([*history, claim(1, 300, 301)])) == 1
    assert time.monotonic() - began < 20


class TestStreams:
    KEPT: ClassVar = {"t": [(1, "a"), (2, "b"), (3, "c")]}

    @pytest.mark.parametrize("told", [[], [(1, "a")], [(1, "a"), (2, "b"), (3, "c")]])
    def test_a_prefix_passes(self, told: list[tuple[int, str]]) -> None:
        assert judge_streams({"t": [told, [(1, "a")]]}, self.KEPT) == []

    @pytest.mark.parametrize(
        "told",
        [
            [(2, "b")], [(1, "a"), (3, "c")], [(1, "a"), (1, "a")], [(1, "a"), (2, "x")],
            [(1, "a"), (2, "b"), (3, "c"), (4, "d")],
        ],
    )  # fmt: skip
    def test_a_gap_a_repeat_another_event_and_one_too_many_are_told(
        self, told: list[tuple[int, str]]
    ) -> None:
        (violation,) = judge_streams({"t": [[(1, "a")], told]}, self.KEPT)
        assert violation.promise == "streams_are_gapless_prefixes"
        assert "reader 2" in violation.text


class TestWriting:
    @pytest.mark.parametrize("kind", [History, HistoryFile])
    def test_what_is_written_is_read(self, kind: Any, tmp_path: Path) -> None:
        clock = iter(float(number) for number in range(10))
        path = tmp_path / "history"
        history = kind(lambda: next(clock)) if kind is History else kind(path, lambda: next(clock))
        first = history.invoke("a", ("lease", "t"), "write", 3)
        history.invoke("b", ("lease", "t"), "write", 4)
        history.answered(first, "written")
        history.answered(history.invoke("c", ("life", "k"), "submit", at=0.5), ("t", True))
        found = list(history) if kind is History else read(path)
        assert [(one.client, one.asked, one.invoked_at, one.answer, one.answered_at) for one in found] == [
            ("a", ("write", 3), 0.0, "written", 2.0),
            ("b", ("write", 4), 1.0, UNKNOWN, float("inf")),
            ("c", ("submit",), 0.5, ("t", True), 3.0),
        ]

    def test_a_line_that_was_cut_is_no_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "history"
        history = HistoryFile(path, time.monotonic)
        history.answered(history.invoke("a", ("lease", "t"), "write", 3), "written")
        history.close()
        path.write_bytes(path.read_bytes()[:-4])
        (one,) = read(path)
        assert one.answer is UNKNOWN
