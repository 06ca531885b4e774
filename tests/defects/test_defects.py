"""A handful of deliberate faults that fall at once; ``make defects`` looks for all of them."""

from __future__ import annotations

import json

import pytest
from tests.defects import runner
from tests.defects.catalogue import DEFECTS, Patch

QUICK = sorted(name for name, one in DEFECTS.items() if one.quick)
MEASURED = {row["name"]: row for row in json.loads(runner.RESULT.read_text())["defects"]}


@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_fault_is_found(name: str) -> None:
    # Where it was seen last: it falls there at once, or soon after if the code has gone on.
    found = runner.look_for(DEFECTS[name], budget=runner.BUDGET, first=MEASURED[name]["seed"])
    assert found.caught, found


@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_a_deliberate_fault_fits_what_it_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises where it is called breaks something else than what it says."""
    DEFECTS[name].apply(Patch(monkeypatch))


def test_a_fault_that_takes_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="does not take what look_for takes"):
        Patch(monkeypatch).set(runner, "look_for", lambda defect: None)


def test_what_is_no_fault_is_not_found() -> None:
    nothing = runner.Defect(name="nothing", says="nothing", apply=lambda _: None)
    assert not runner.look_for(nothing, budget=10).caught


def test_at_least_thirty_faults_are_known_and_measured() -> None:
    assert set(MEASURED) == set(DEFECTS)
    assert sum(row["caught"] for row in MEASURED.values()) >= 30
    for row in MEASURED.values():
        assert row["caught"] == bool(row["by"])
        assert row["caught"] or row["reason"]


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(MEASURED[QUICK[0]]["seed"])
    assert runner.main([QUICK[0], "--budget", "200", "--seed", seed]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"caught": 1, "of": 1}
