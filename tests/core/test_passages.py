"""What notes of a gateway say, and which keys they give."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.core.passages import Noted, keys_of, of_attempt, seen


def passed(request: str, *, acts: bool = True, attempt: int = 1, **more: Any) -> Noted:
    data = {"phase": "passed", "request": request, "acts": acts, "fingerprint": f"{request}-0123456789abcdef"}
    return Noted(attempt=attempt, data={**data, **more})


def ended(request: str, says: str | None, *, phase: str = "ended", attempt: int = 1) -> Noted:
    return Noted(attempt=attempt, data={"phase": phase, "request": request, "says": says})


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ([], None),
        ([passed("a")], None),
        ([passed("a"), ended("a", "happened")], "acted"),
        ([passed("a"), ended("a", None)], None),
        ([passed("a"), ended("a", "did_not_happen")], "nothing"),
        ([passed("a"), ended("a", "did_not_happen", phase="refused")], "nothing"),
        ([passed("a"), ended("a", "did_not_happen"), passed("b")], None),
        ([passed("a"), ended("a", "did_not_happen"), passed("b"), ended("b", None)], None),
        ([passed("a"), passed("b"), ended("b", "happened")], "acted"),
        ([passed("a", acts=False), ended("a", None)], None),
        ([passed("a", acts=False), ended("a", None), passed("b"), ended("b", "did_not_happen")], "nothing"),
        ([Noted(attempt=1, data=None), Noted(attempt=1, data=[1])], None),
    ],
)
def test_only_what_is_sure_is_said(notes: list[Noted], says: str | None) -> None:
    assert seen(notes) == says


def test_of_attempt_leaves_the_others_out() -> None:
    notes = [passed("a"), passed("b", attempt=2)]
    assert of_attempt(notes, 2) == [notes[1]]


A, B, C = (f"{name}-0123456789abcdef" for name in "abc")


def key(fingerprint: str) -> str:
    return f"op.{fingerprint[:16]}"


def test_the_first_has_the_operations_key_and_others_a_suffix() -> None:
    notes = [passed("look", acts=False), passed("a"), passed("b"), passed("a"), ended("b", "happened")]
    assert keys_of("op", notes) == {A: "op", B: key(B)}


def test_the_same_request_has_the_same_key_whatever_the_order() -> None:
    notes = [passed("a"), passed("b"), passed("b", attempt=2), passed("a", attempt=2)]
    assert keys_of("op", notes) == {A: "op", B: key(B)}


def test_a_first_request_that_changed_keeps_the_key_so_that_the_remote_can_tell() -> None:
    notes = [passed("a"), passed("b", attempt=2), passed("c", attempt=2)]
    assert keys_of("op", notes) == {A: "op", B: "op", C: key(C)}


def test_a_request_that_names_its_key_keeps_it() -> None:
    notes = [passed("a", key="op.reserve"), passed("b"), passed("c", key="op")]
    assert keys_of("op", notes) == {A: "op.reserve", B: "op", C: "op"}
    assert keys_of("op", [passed("c", key="op"), passed("b")]) == {C: "op", B: key(B)}


def test_a_key_of_another_operation_is_of_no_account() -> None:
    notes = [passed("a", key="other"), passed("b", key="opposite"), passed("c", key="op.x")]
    assert keys_of("op", notes) == {A: "op", B: key(B), C: "op.x"}
