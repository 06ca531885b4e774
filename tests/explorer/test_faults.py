"""The explorer finds faults that are put into the functions on purpose."""

from __future__ import annotations

import pytest
from tests.explorer.acts import ACTS
from tests.explorer.exploring import Explorer, furnished
from tests.explorer.faults import FAULTS
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
