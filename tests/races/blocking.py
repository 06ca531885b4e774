"""What a blocked twin is: of which verb, what is held, what becomes of it, where it is played; what it
begins with; and what its rival does and does not commit yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from tests.races.holding import Rival, ended, start

from outlast.store.entries import BusinessKey, Entry
from outlast.store.posting import Cancel
from outlast.store.records import Claimed, Evidence, Serves, Submission
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.scene import Reopen, Scene

ON_POSTGRES = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)
"""Only there does anybody wait for a row."""


@dataclass(frozen=True)
class Place:
    """Where a twin is played."""

    scene: Scene
    url: str
    reopen: Reopen


@dataclass(frozen=True)
class Blocked:
    """A blocked twin: of which verb, what is held, and what becomes of it."""

    verb: str
    row: str
    then: str
    play: Callable[[Place], Awaitable[None]]

    @property
    def name(self) -> str:
        """Its name among the tests."""
        return f"{self.verb}-{self.row}-{self.then}"


Register = Callable[[Callable[[Place], Awaitable[None]]], None]


def into(found: list[Blocked]) -> Callable[[str, str, str], Register]:
    """Make the decorator that registers blocked twins."""

    def blocked(verb: str, row: str, then: str) -> Register:
        def register(play: Callable[[Place], Awaitable[None]]) -> None:
            found.append(Blocked(verb=verb, row=row, then=then, play=play))

        return register

    return blocked


def told(found: list[Blocked]) -> Callable[[Place, Blocked], Awaitable[None]]:
    """Make the test that plays each of these."""

    @pytest.mark.parametrize("twin", [pytest.param(one, id=one.name) for one in found])
    async def test(place: Place, twin: Blocked) -> None:
        await twin.play(place)
        assert check_all(await place.scene.store.dump()) == []

    return test


def flushing(scene: Scene, claimed: Claimed, entry: Entry) -> Any:
    """Begin to write an entry."""
    return start(scene.store.flush(scene.batch(scene.writes(claimed, entry)), now=scene.now))


# ── what twins begin with ────────────────────────────────────────────────────────────────────────

INVOICE = BusinessKey(tool="refund", value="invoice-1", mode="lock")


async def unknown(scene: Scene) -> tuple[Claimed, str]:
    """Have an unknown operation of a running task."""
    claimed = await scene.running()
    return claimed, await scene.called(claimed, "unknown")


def late(claimed: Claimed, key: str, says: Literal["happened", "over"] = "happened") -> Evidence:
    """Make evidence of the first attempt: that a failed operation happened, unless it says otherwise."""
    return Evidence(
        tenant=claimed.tenant,
        task=claimed.task,
        key=key,
        attempt=1,
        source="late",
        data="{}",
        says=says,
    )


# ── what a rival does and does not commit yet ────────────────────────────────────────────────────


async def flush(other: Rival, scene: Scene, claimed: Claimed, *entries: Entry) -> None:
    """Write entries, under another writer, and not commit yet."""
    await other.flush(scene.batch(scene.writes(claimed, *entries), writer="wr_other"), scene.now)


async def claim(other: Rival, scene: Scene, session: str, record: Submission, version: str = "v") -> None:
    """Claim a task, and not commit yet."""
    theirs = await other.about_to_commit("claim")
    serves = [Serves(agent=record.agent, version=version)]
    mine, scene.store = scene.store, theirs
    try:
        reply = await scene.claim(session, pools=[record.pool], serves=serves)
    finally:
        scene.store = mine
    assert [claimed.task for claimed in reply.claims] == [record.task]


async def people(other: Rival) -> Any:
    """Answer a store whose next signal, cancel, decision or rule is not committed yet."""
    return await other.about_to_commit("people")


def cancel(of: Any) -> Cancel:
    """Make a rival's cancel."""
    return Cancel(tenant=of.tenant, task=of.task, by="person:rival", reason="first")


async def deferred_then(scene: Scene, other: Rival, claimed: Claimed, entry: Entry) -> Any:
    """Write an entry while the rival has the head, and again after it has committed."""
    assert (await ended(flushing(scene, claimed, entry)))[0].kind == "deferred"
    await other.commit()
    return await scene.flush(claimed, entry)
