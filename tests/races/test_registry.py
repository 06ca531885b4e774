"""Nothing that writes is without its twins."""

from __future__ import annotations

import pytest
from tests.races.test_blocked_changes import BLOCKED as BLOCKED_CHANGES
from tests.races.test_blocked_decisions import BLOCKED as BLOCKED_DECISIONS
from tests.races.test_blocked_families import BLOCKED as BLOCKED_FAMILIES
from tests.races.test_blocked_people import BLOCKED as BLOCKED_PEOPLE
from tests.races.test_blocked_twins import BLOCKED
from tests.races.test_stale_changes import STALE as STALE_CHANGES
from tests.races.test_stale_twins import STALE
from tests.races.twins import BUILD, ENTRIES, FENCED, UNFENCED, VERBS


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
    twins = (*BLOCKED, *BLOCKED_PEOPLE, *BLOCKED_DECISIONS, *BLOCKED_FAMILIES, *BLOCKED_CHANGES)
    assert [twin for twin in twins if (twin.verb, twin.then) == (verb, then)]
