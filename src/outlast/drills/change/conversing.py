"""Outside sessions: held by one task, to which what happens there is brought once, however it comes."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx2

from outlast.drills.change.agents import PROVIDER
from outlast.drills.change.scene import Played, Scene
from outlast.drills.stage import Check
from outlast.errors import SignalConflict

__all__ = ["claimed_twice", "three_ways"]

_EVENTS: Final = ("one", "two", "three")


async def claimed_twice(scene: Scene, cell: str) -> Played:
    """Let a second task claim a session that is held."""
    first = await scene.submit("holds", {"session": cell, "count": 1})
    await scene.suspended(first, "signal")
    second = await scene.submit("holds", {"session": cell, "count": 1})
    view = await scene.end(second)
    await _bring(scene, cell, "one")
    told = await scene.told(first)
    return Played(
        cell=cell,
        tasks=(first,),
        checks=(
            Check(
                what="the second task",
                expected=("failed", "session_taken", True),
                seen=(
                    view.state,
                    (view.error or {}).get("code"),
                    first in str((view.error or {}).get("message")),
                ),
            ),
            Check(what="the first was told", expected=["one"], seen=told),
        ),
    )


async def three_ways(scene: Scene, cell: str) -> Played:
    """Bring each of three events by callback, by poll and by webhook, all at once and again and again."""
    key = f"drill-{scene.chance.getrandbits(64)}"
    server = scene.fleet.start(
        "api",
        "outlast",
        "serve",
        "outlast.drills.change.served:app",
        "--port",
        "0",
        "--json",
        environ={**scene.environ, "OUTLAST_API_KEYS": f"default:{key}:acme:submitter"},
    )
    task = await scene.submit("holds", {"session": cell, "count": len(_EVENTS)})
    await scene.suspended(task, "signal")
    url = f"{await scene.listens(server)}/v1/outside/{PROVIDER}/{cell}/events"
    answers: dict[str, list[str]] = {event: [] for event in _EVENTS}
    async with httpx2.AsyncClient(trust_env=False, timeout=scene.patience_s) as client:

        async def webhook(event: str) -> str:
            reply = await client.post(
                url,
                json={"event": event, "data": {"text": event}},
                headers={"Authorization": f"Bearer {key}"},
            )
            return {200: "replayed", 202: "accepted"}.get(reply.status_code, reply.text)

        async def poll(event: str) -> str:
            return str(await scene.told(await scene.submit("polls", {"session": cell, "event": event})))

        # One after the other, since the task is over with the last one: each of them by all ways at once.
        for event in _EVENTS[:-1]:
            ways = (webhook(event), webhook(event), poll(event), _bring(scene, cell, event))
            answers[event] = sorted(await asyncio.gather(*ways))
        other = await _bring(scene, cell, _EVENTS[0], "something else")
        answers[_EVENTS[-1]] = [await webhook(_EVENTS[-1])]
    told = await scene.told(task)
    once = ["accepted", *["replayed"] * 3]
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="told", expected=list(_EVENTS), seen=told),
            Check(
                what="the answers",
                expected=dict(zip(_EVENTS, (once, once, ["accepted"]), strict=True)),
                seen=answers,
            ),
            Check(what="an event with other data", expected="signal_conflict", seen=other),
            Check(
                what="signals that it received",
                expected=len(_EVENTS),
                seen=len(await scene.events(task, "signal.received")),
            ),
        ),
    )


async def _bring(scene: Scene, cell: str, event: str, text: str | None = None) -> str:
    try:
        brought = await scene.app.outside(
            PROVIDER, cell, event_id=event, data={"text": event if text is None else text}
        )
    except SignalConflict as error:
        return error.code
    return brought.kind
