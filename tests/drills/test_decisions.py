"""Scenario O14: fifty people decide at once, again and again, and half of the times an API process is killed.

``make decisions`` plays a thousand rounds; here it is two, one of each kind.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.drills.drilling import SEED

from outlast.drills.people import racing
from outlast.drills.people.playing import play
from outlast.drills.people.table import chosen

ROUNDS = int(os.environ.get("OUTLAST_TEST_DECISIONS", "2"))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_o14_of_fifty_decisions_one_counts_every_time(
    folder: Path, store: str, request: pytest.FixtureRequest
) -> None:
    postgres = request.getfixturevalue("bare_postgres_url") if store == "postgres" else None
    (cell,) = chosen(["approval/fifty_decisions"])
    cell = replace(cell, play=functools.partial(racing.fifty_decisions, rounds=ROUNDS))
    judged = await play([cell], postgres, SEED, folder, Console(quiet=True))
    wrong = [check for each in judged for check in each.checks if not check.holds]
    assert wrong == []
    ways = [check.what for each in judged for check in each.checks]
    assert ways.count("the winner again") == ROUNDS
