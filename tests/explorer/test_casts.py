"""Every order of the statements of verbs that meet comes to what some order of the verbs comes to."""

from __future__ import annotations

import pytest
from tests.explorer.acts import ACTS
from tests.explorer.casts import SHORT, SHORT_MOST
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.stage import Stage


@pytest.mark.parametrize("setting", SHORT)
async def test_verbs_that_meet_come_to_what_some_order_comes_to(on_stage: Stage, setting: str) -> None:
    props = await furnished(on_stage, setting)
    for cast in SHORT[setting]:
        explorer = Explorer(on_stage, props.scene.now, setting, [ACTS[name](props) for name in cast])
        found = await explorer.explore(SHORT_MOST)
        assert found is None, str(found)


DYING = (("flush_record", "flush_record"), ("cancel", "flush_events"))
"""Casts of which each player dies: a flush is sent again by its store."""
DEATHS_MOST = 30


async def test_whoever_dies_has_done_nothing_or_all_of_it_once(on_stage: Stage) -> None:
    props = await furnished(on_stage, "running")
    for cast in DYING:
        explorer = Explorer(on_stage, props.scene.now, "running", [ACTS[name](props) for name in cast])
        found = await explorer.deaths(DEATHS_MOST)
        assert found is None, str(found)
        assert explorer.runs > 10
