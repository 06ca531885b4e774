"""Real processes: a sender that is frozen and thaws, a gateway that dies or freezes at its own points."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.gateway.desk import SECRET, Desk, token

from outlast.drills.fleet import Fleet, Process
from outlast.probes import POINTS
from outlast.testing.probes import Trigger
from outlast.testing.store_suite.scene import HOUR
from outlast.tools.passing import Pass

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
OURS = tuple(point for point in POINTS if point.startswith("gateway."))


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """No process yet; whatever is started is ended."""
    async with Fleet(tmp_path) as made:
        yield made


async def gateway(
    desk: Desk, fleet: Fleet, database_url: str, *probe: Trigger, name: str = "gateway"
) -> Process:
    """Start a gateway that lets requests through to the Recorder, and point the desk at it."""
    given = {
        "url": database_url, "secret": SECRET, "allow": [desk.recorder.url], "ranges": ["127.0.0.1/32"],
        # However quick a take-over is, the look before it is too old.
        "fresh_s": 1e-6,
    }  # fmt: skip
    process = fleet.start(
        name, "tests.gateway.service", json.dumps(given), probe=probe, environ={"PYTHONPATH": PATH}
    )
    desk.url = (await process.says("ready")).data["url"]
    return process


async def called(desk: Desk) -> tuple[Any, Pass, str]:
    """Have an operation that runs; answer its lease, its pass and the URL that asks for a ticket."""
    claimed, said = await desk.called()
    return claimed, replace(said, hosts=(desk.recorder.url,)), desk.reverse(f"{desk.recorder.url}/tickets")


@pytest.mark.parametrize("fate", ["taken over", "lost", "cancelled", "settled", "nothing"])
async def test_a_sender_that_was_frozen_and_thaws_is_refused(
    closed_desk: Desk, fleet: Fleet, database_url: str, fate: str
) -> None:
    desk = closed_desk
    await gateway(desk, fleet, database_url)
    claimed, said, url = await called(desk)
    given = json.dumps({"url": url, "token": token(said)})
    sender = fleet.start("sandbox", "tests.gateway.sandbox", given, environ={"PYTHONPATH": PATH})
    await sender.stopped()
    if fate in ("taken over", "lost"):
        await desk.scene.lose(claimed)
    if fate == "taken over":
        # Whoever follows makes the call itself.
        again = await desk.scene.claim_task(claimed, ttl_us=HOUR)
        assert again.epoch > claimed.epoch
    elif fate == "cancelled":
        await desk.scene.cancel(claimed)
    elif fate == "settled":
        await desk.scene.write(claimed, await desk.scene.outcome(claimed, said.key, "unknown"))
        await desk.store.settle([desk.scene.settlement(claimed, said.key)])
    sender.thaw()
    answered = (await sender.says("answered")).data
    log = await desk.recorder.log()
    if fate == "nothing":
        assert (answered["status"], len(log)) == (201, 1)
        return
    codes = {"cancelled": "cancelled", "settled": "not_running"}
    assert answered["code"] == codes.get(fate, "stale_epoch")
    assert log == [], "it reached nobody"


@pytest.mark.parametrize("point", OURS)
async def test_a_gateway_that_dies_has_sent_what_it_has_on_record(
    closed_desk: Desk, fleet: Fleet, database_url: str, point: str
) -> None:
    desk = closed_desk
    dying = await gateway(desk, fleet, database_url, Trigger(point=point, action="kill"), name="dying")
    _, said, url = await called(desk)
    with pytest.raises(httpx2.TransportError):
        await desk.send(said, url)
    assert await dying.exited() == -9
    assert {said.word for said in dying.said} == {"ready", point}
    sent = await desk.recorder.log()
    assert len(sent) == (point == "gateway.after_answer")
    (passed,) = await desk.notes(said)
    assert passed["phase"] == "passed", "what was sent is on record, and has no end"
    # The same request through another gateway has the same key, so that there is one ticket in the end.
    await gateway(desk, fleet, database_url, name="heir")
    answer = await desk.send(said, desk.reverse(f"{desk.recorder.url}/tickets"))
    assert answer.status_code == 201
    assert len(await desk.recorder.tickets()) == 1


@pytest.mark.parametrize("point", ["gateway.after_note", "gateway.after_check"])
@pytest.mark.parametrize("taken_over", [True, False])
async def test_a_gateway_that_freezes_before_its_last_look_looks_again(
    closed_desk: Desk, fleet: Fleet, database_url: str, point: str, taken_over: bool
) -> None:
    desk = closed_desk
    frozen = await gateway(desk, fleet, database_url, Trigger(point=point, action="freeze"))
    claimed, said, url = await called(desk)
    sending = asyncio.create_task(desk.send(said, url))
    await frozen.stopped()
    assert await desk.recorder.log() == []
    if taken_over:
        await desk.scene.lose(claimed)
        await desk.scene.claim_task(claimed, ttl_us=HOUR)
    frozen.thaw()
    answer = await sending
    if taken_over:
        assert answer.json()["code"] == "stale_epoch"
        assert await desk.recorder.log() == []
        assert [note["phase"] for note in await desk.notes(said)] == ["passed", "refused"]
    else:
        assert answer.status_code == 201


async def test_a_gateway_that_is_asked_to_stop_finishes_first(
    closed_desk: Desk, fleet: Fleet, database_url: str
) -> None:
    desk = closed_desk
    process = await gateway(desk, fleet, database_url)
    _, said, url = await called(desk)
    await desk.recorder.hold("call")
    sending = asyncio.create_task(desk.send(said, url))
    await desk.recorder.wait_for(held="call")
    stopping = asyncio.create_task(process.stop())
    await desk.recorder.release("call")
    assert (await sending).status_code == 201
    assert await stopping == 0
    assert [note["phase"] for note in await desk.notes(said)] == ["passed", "ended"]
