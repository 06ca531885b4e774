"""Nothing that writes is without its twins."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.races.blocking import Blocked
from tests.races.test_stale_changes import STALE as STALE_CHANGES
from tests.races.test_stale_twins import STALE
from tests.races.twins import BUILD, ENTRIES, FENCED, UNFENCED, VERBS

BLOCKED: list[Blocked] = [
    twin
    for path in sorted(Path(__file__).parent.glob("test_blocked_*.py"))
    for twin in importlib.import_module(f"tests.races.{path.stem}").BLOCKED
]


def test_every_kind_of_entry_has_twins() -> None:
    assert set(BUILD) == set(ENTRIES)


def test_every_verb_is_fenced_or_says_why_not() -> None:
    assert FENCED | set(UNFENCED) == VERBS
    assert set() == FENCED & set(UNFENCED)


@pytest.mark.parametrize("verb", sorted(FENCED))
def test_every_fenced_verb_has_a_stale_twin(verb: str) -> None:
    assert STALE.get(verb) or STALE_CHANGES.get(verb)


@pytest.mark.parametrize("then", ["changed", "held"])
@pytest.mark.parametrize("verb", sorted(FENCED))
def test_every_fenced_verb_has_blocked_twins(verb: str, then: str) -> None:
    assert [twin for twin in BLOCKED if (twin.verb, twin.then) == (verb, then)]
