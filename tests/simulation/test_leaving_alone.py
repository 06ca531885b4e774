"""A service that wants to be left alone; what its judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import clock
from outlast.core.retry import MAX_WAIT_S
from outlast.errors import NotSent
from outlast.testing.simulation import Faults, World, run_schedule
from outlast.tools.call import ToolCall


@pytest.mark.parametrize("step_s", [0, 3000, -3000])
def test_every_wait_is_read_as_the_service_means_it(step_s: int) -> None:
    """Whatever the clock of whoever reads it says."""
    world = World(1, faults=Faults(throttled=1.0))
    member = world.add("one")
    member.seams.step_us = step_s * 1_000_000
    told: list[float] = []
    world.service.on_wait = lambda _, until: told.append(until)

    async def ask() -> list[tuple[float, float | None, float | None]]:
        found: list[tuple[float, float | None, float | None]] = []
        for number in range(60):
            call = ToolCall(
                idempotency_key=f"task:{number}",
                task="task",
                tenant="tenant",
                epoch=1,
                attempt=1,
                deadline=clock.monotonic() + 5,
                client=lambda: pytest.fail("it has no client"),
            )
            told.clear()
            with pytest.raises(NotSent) as caught:
                await world.service.create(call, {})
            found.append((world.loop.time(), caught.value.retry_after, told[0] if told else None))
        return found

    async def script() -> Any:
        return await world.start(member.node, ask())

    try:
        found = world.loop.run(world.start(world.loop.root, script()), max_steps=10_000, max_seconds=100)
    finally:
        world.close()
    assert world.weather.played == {"tool throttled", "wait seconds", "wait date", "wait senseless"}
    assert {entry.status for entry in world.service.log} == {429, 503}
    assert not any(entry.effect_id for entry in world.service.log)
    for now, wait_s, until in found:
        if until is None:
            assert wait_s is None or wait_s == 0
        else:
            assert wait_s is not None
            # A date is of whole seconds, and an answer is under way for some milliseconds.
            assert until <= now + wait_s < until + 1.1
    asked = {entry.headers["retry-after"] for entry in world.service.log if entry.until is None}
    assert "0" in asked
    assert any(text.isdigit() and int(text) > MAX_WAIT_S for text in asked)


def test_a_service_is_left_alone_and_everything_is_done() -> None:
    refused = 0
    for seed in range(60):
        report = run_schedule(seed, tasks=2, faults=Faults(throttled=0.5), agents=("refund", "booker"))
        assert not report.violations, report
        refused += sum(" 429 " in line or " 503 " in line for line in report.lines)
    assert refused > 60


def test_whoever_dies_with_the_answer_leaves_no_wait() -> None:
    faults = Faults(crashes=2, aimed=1.0, clock_steps=1, store=0.1, tools=0.3, throttled=0.4)
    for seed in range(60):
        report = run_schedule(seed, tasks=2, faults=faults, agents=("fan", "undone"))
        assert not report.violations, report


def test_the_world_s_dice_for_waits_are_its_own() -> None:
    """So that a schedule without waits is the one that it was before there were any."""
    drawn = []
    for throttled in (0.0, 0.5):
        world = World(7, faults=Faults(tools=0.5, throttled=throttled))
        faults = [world.weather.tool_fault() for _ in range(200)]
        drawn.append([fault for fault in faults if fault != "throttled"])
        world.close()
    assert drawn[1] == drawn[0][: len(drawn[1])]
