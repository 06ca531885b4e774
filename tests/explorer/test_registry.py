"""No verb of the contract, no kind of entry and no deliberate fault is without its cast."""

from __future__ import annotations

from tests.explorer.acts import ACTS, ENTRIES, VERBS
from tests.explorer.casts import BY_THREE, MEET, PARTED, SHARING, SHORT, pairs, trios
from tests.explorer.faults import DEEP, FAULTS
from tests.explorer.scenes import SETTINGS
from tests.races.twins import ENTRIES as KINDS
from tests.races.twins import FENCED, UNFENCED

WRITE_ALL_THE_SAME = {"pause", "resume", "put_rule"}
PLAYED = {name for casts in SHORT.values() for cast in casts for name in cast}


def test_every_verb_that_writes_meets_another() -> None:
    assert {VERBS[name] for name in PLAYED} - {"time"} == FENCED | WRITE_ALL_THE_SAME
    assert all(reason == "reads" for verb, reason in UNFENCED.items() if verb.startswith(("read", "list")))


def test_every_part_is_played() -> None:
    assert PLAYED - set(ACTS) == set()
    assert {cast for _, cast in pairs(["running"])} >= {(name, name) for name in ACTS if name not in BY_THREE}
    assert set(SHORT) <= set(SETTINGS)


def test_every_trio_and_every_exception_is_of_parts_that_there_are() -> None:
    named = {*MEET, *SHARING, *BY_THREE, *(name for pair in PARTED for name in pair)}
    assert named | {name for _, cast in trios(["running"]) for name in cast} <= set(ACTS)


def test_every_kind_of_entry_meets_another() -> None:
    assert {ENTRIES[name] for name in PLAYED if name in ENTRIES} == set(KINDS)


def test_every_fault_is_looked_for_by_a_cast_that_finds_nothing_without_it() -> None:
    assert [
        name for name, fault in {**FAULTS, **DEEP}.items() if fault.cast not in SHORT[fault.setting]
    ] == []
    assert len(FAULTS) >= 25
