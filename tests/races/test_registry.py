"""Nothing that writes is without its twins."""

from __future__ import annotations

import pytest
from tests.races import (
    test_blocked_changes,
    test_blocked_decisions,
    test_blocked_entries,
    test_blocked_families,
    test_blocked_keys,
    test_blocked_leases,
    test_blocked_open,
    test_blocked_people,
    test_blocked_schedules,
    test_blocked_settling,
    test_blocked_submits,
)
from tests.races.test_stale_changes import STALE as STALE_CHANGES
from tests.races.test_stale_twins import STALE
from tests.races.twins import BUILD, ENTRIES, FENCED, UNFENCED, VERBS

MODULES = (
    test_blocked_changes,
    test_blocked_decisions,
    test_blocked_entries,
    test_blocked_families,
    test_blocked_keys,
    test_blocked_leases,
    test_blocked_open,
    test_blocked_people,
    test_blocked_schedules,
    test_blocked_settling,
    test_blocked_submits,
)


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
    assert [twin for module in MODULES for twin in module.BLOCKED if (twin.verb, twin.then) == (verb, then)]
