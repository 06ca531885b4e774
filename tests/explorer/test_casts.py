"""Every order of the statements of verbs that meet comes to what some order of the verbs comes to."""

from __future__ import annotations

import pytest
from tests.explorer.acts import ACTS
from tests.explorer.casts import SHORT
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.stage import Stage


@pytest.mark.parametrize("setting", SHORT)
async def test_verbs_that_meet_come_to_what_some_order_comes_to(on_stage: Stage, setting: str) -> None:
    props = await furnished(on_stage, setting)
    for cast in SHORT[setting]:
        explorer = Explorer(on_stage, props.scene.now, setting, [ACTS[name](props) for name in cast])
        found = await explorer.explore(switches=1)
        assert found is None, str(found)
