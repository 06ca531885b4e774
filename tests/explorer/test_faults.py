"""The explorer finds faults that are put into the functions on purpose."""

from __future__ import annotations

import itertools
import os

import pytest
from tests.explorer.acts import ACTS
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.faults import DEEP, FAULTS
from tests.explorer.playing import Act
from tests.explorer.scenes import SETTINGS
from tests.explorer.stage import Stage


@pytest.mark.parametrize(
    "setting", [name for name in SETTINGS if any(f.setting == name for f in FAULTS.values())]
)
async def test_deliberate_faults_are_found(on_stage: Stage, setting: str) -> None:
    props = await furnished(on_stage, setting)
    missed = []
    for name, fault in FAULTS.items():
        if fault.setting != setting:
            continue
        async with on_stage.broken(fault.edits):
            cast = [ACTS[part](props) for part in fault.cast]
            found = await Explorer(on_stage, props.scene.now, setting, cast).explore()
            if found is None:
                missed.append(name)
    assert missed == []


async def test_faults_that_lie_deeper_are_found_by_depth_alone(on_stage: Stage) -> None:
    [setting] = {fault.setting for fault in DEEP.values()}
    props = await furnished(on_stage, setting)

    def explorer(*some: Act) -> Explorer:
        return Explorer(on_stage, props.scene.now, setting, some)

    for name, fault in DEEP.items():
        acts = [ACTS[part](props) for part in fault.cast]
        # That fewer do not find it takes seconds where there are three: it is looked at where everything is.
        three = len(acts) == 3
        async with on_stage.broken(fault.edits):
            assert await explorer(*acts).explore() is not None, name
            if not three or os.environ.get("OUTLAST_TEST_ALL"):
                assert await explorer(*acts).plainly(fault.hidden) is None, name
                for two in itertools.combinations(acts, 2) if three else ():
                    assert await explorer(*two).explore() is None, name
