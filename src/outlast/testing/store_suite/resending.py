"""Sent again: an unknown call stays in the reconciliation queue until the very intent of its resend."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.entries import CommitIntent, TakeTurn
from outlast.store.reconciling import OpenRequest, OpenState, Postponement
from outlast.store.records import Claimed, Evidence, Settled
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import PROVIDER, lock, refusal, switch
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

__all__ = ["TestEndsWithAMark", "TestResend", "TestSendAgain"]


async def unknown(scene: Scene, claimed: Claimed, **changes: Any) -> CommitIntent:
    """Have an unknown call of a task; answer the intent that made it, its numbers those of the next one."""
    intent = scene.intent(**changes)
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
    return replace(intent, attempt=1, turn=2, resend=True)


async def marked(scene: Scene, claimed: Claimed, **changes: Any) -> CommitIntent:
    """Have an unknown call that a person wants sent again; answer the intent of that."""
    intent = await unknown(scene, claimed, **changes)
    settlement = scene.settlement(claimed, intent.key, "send_again", forced=True)
    [settled] = await scene.store.settle([settlement], now=scene.now)
    assert settled == Settled(kind="settled", state="unknown")
    return replace(intent, turn=3)


async def taken(scene: Scene, tool: str) -> list[str]:
    """Take what is due of a tool; answer the keys."""
    request = OpenRequest(
        session=await scene.session(99 * HOUR), tools=(tool,), limit=99, lease_us=20 * SECOND
    )
    return [item.operation.key for item in await scene.store.claim_open(request, now=scene.now)]


async def place(scene: Scene, of: Any, key: str) -> OpenState | None:
    """Read an operation's place in the queue."""
    return await scene.store.read_open(of.tenant, of.task, key)


def evidence(claimed: Claimed, key: str, says: Any) -> Evidence:
    """Make evidence that comes late."""
    return Evidence(
        tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="late", data="{}", says=says
    )


class TestSendAgain:
    """The verdict ``send_again``."""

    @pytest.mark.parametrize("by", ["person:ann", "settler"])
    async def test_marks_it_and_leaves_it_unknown(self, scene: Scene, by: str) -> None:
        claimed = await scene.running()
        intent = await unknown(scene, claimed)
        was, since = await scene.operation(claimed, intent.key), scene.now
        scene.pass_time(12 * SECOND)
        settlement = scene.settlement(claimed, intent.key, "send_again", by=by)
        assert await scene.store.settle([settlement], now=scene.now) == [
            Settled(kind="settled", state="unknown")
        ]
        row = await scene.operation(claimed, intent.key)
        assert replace(row, settled_by=None) == replace(was, turn=was.turn + 1)
        assert await place(scene, claimed, intent.key) == OpenState(
            since=since, asked=0, unusable=0, ask_at=None, sender_gone=False, why="", resend=True
        )
        [queued] = await scene.rows("unsettled", claimed)
        assert (queued["claimed_until"], queued["ask_at"], bool(queued["resend"])) == (0, None, True)
        assert check_all(await scene.store.dump()) == []

    async def test_takes_it_from_whoever_looks_at_it(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await unknown(scene, claimed, name="look")
        await scene.write(claimed, scene.release())
        assert await taken(scene, "look") == [intent.key]
        settlement = scene.settlement(claimed, intent.key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        [queued] = await scene.rows("unsettled", claimed)
        assert queued["claimed_until"] == 0
        before = await scene.store.dump()
        late = Postponement(
            tenant=claimed.tenant,
            task=claimed.task,
            key=intent.key,
            turn=3,
            ask_in_us=SECOND,
            unusable=True,
            why="late",
        )
        assert await scene.store.postpone([late], now=scene.now) == [False]
        assert changed(before, await scene.store.dump()) == {}

    async def test_nobody_asks_about_it_any_more(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed, name="look")
        other = await unknown(scene, claimed, name="look")
        await scene.write(claimed, scene.suspension("operator", facts=1))
        for _ in range(3):
            assert intent.key not in await taken(scene, "look")
            scene.pass_time(HOUR)
        assert other.key in await taken(scene, "look")

    async def test_wakes_the_task(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await unknown(scene, claimed)
        await scene.write(claimed, scene.suspension("reconciliation"))
        settlement = scene.settlement(claimed, intent.key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        assert (await scene.task(claimed)).state == "queued"
        again = await scene.claim_task(claimed)
        assert again.facts == 1
        assert (await scene.write(again, replace(intent, turn=3))).refusals == ()
        assert (await scene.operation(claimed, intent.key)).epoch == again.epoch

    @pytest.mark.parametrize(
        ("verdict", "state"),
        [("happened", "succeeded"), ("did_not_happen", "failed"), ("send_again", "unknown")],
    )
    async def test_may_still_be_settled(self, scene: Scene, verdict: str, state: str) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        settlement = scene.settlement(claimed, intent.key, verdict, forced=True, turn=3)
        assert await scene.store.settle([settlement], now=scene.now) == [Settled(kind="settled", state=state)]
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.turn, row.settled_by) == (state, 4, settlement.by)
        assert len(await scene.rows("unsettled", claimed)) == (state == "unknown")
        # Whoever wanted to send it under the turn before comes too late.
        assert await refusal(scene, claimed, intent) == "not_planned"

    async def test_the_calls_own_answer_may_come_after_all(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "succeeded"))
        assert await scene.rows("unsettled", claimed) == []

    @pytest.mark.parametrize("ask_in_us", [None, 4 * SECOND])
    async def test_what_its_worker_puts_back_is_not_sent(self, scene: Scene, ask_in_us: int | None) -> None:
        claimed = await scene.running()
        intent, since = await marked(scene, claimed), scene.now
        await scene.write(claimed, TakeTurn(key=intent.key, attempt=1, turn=3))
        back = Postponement(
            tenant=claimed.tenant,
            task=claimed.task,
            key=intent.key,
            turn=4,
            ask_in_us=ask_in_us,
            unusable=False,
            why="its key is too old",
        )
        assert await scene.store.postpone([back], now=scene.now) == [True]
        assert await place(scene, claimed, intent.key) == OpenState(
            since=since,
            asked=1,
            unusable=0,
            ask_at=None if ask_in_us is None else scene.now + ask_in_us,
            sender_gone=False,
            why="its key is too old",
            resend=False,
        )

    @pytest.mark.parametrize("says", ["happened", "did_not_happen"])
    async def test_evidence_takes_the_mark_away(self, scene: Scene, says: str) -> None:
        claimed = await scene.running()
        intent, other = await marked(scene, claimed), await marked(scene, claimed)
        since = scene.now
        scene.pass_time(3 * SECOND)
        await scene.store.note([evidence(claimed, intent.key, says)], now=scene.now)
        assert await place(scene, claimed, intent.key) == OpenState(
            since=since, asked=0, unusable=0, ask_at=scene.now, sender_gone=False, why="", resend=False
        )
        state = await place(scene, claimed, other.key)
        assert state is not None
        assert (state.resend, state.ask_at) == (True, None)

    @pytest.mark.parametrize("says", ["happened", "did_not_happen"])
    async def test_evidence_stops_whoever_was_about_to_send(self, scene: Scene, says: str) -> None:
        """What has just been heard may say that it is done: the resend in hand is one turn behind."""
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        await scene.store.note([evidence(claimed, intent.key, says)], now=scene.now)
        assert await refusal(scene, claimed, intent) == "not_planned"
        assert (await scene.operation(claimed, intent.key)).state == "unknown"
        # That it happened stands until a person has settled it, in the next turn too.
        stands = "not_planned" if says == "happened" else None
        assert await refusal(scene, claimed, replace(intent, turn=4)) == stands

    async def test_evidence_that_says_nothing_leaves_it(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        before = await scene.rows("unsettled", claimed)
        await scene.store.note([evidence(claimed, intent.key, None)], now=scene.now)
        assert await scene.rows("unsettled", claimed) == before


class TestResend:
    """The gate ``CommitIntent`` with ``resend``."""

    @pytest.mark.parametrize("mark", [False, True])
    async def test_takes_it_out_of_the_queue(self, scene: Scene, mark: bool) -> None:
        claimed = await scene.running()
        intent = await (marked if mark else unknown)(scene, claimed, timeout_us=11 * SECOND)
        neighbour = await unknown(scene, claimed)
        was = await scene.operation(claimed, intent.key)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, intent)
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.attempt, row.turn) == ("running", 2, intent.turn + 1)
        assert (row.intent_at, row.first_intent_at) == (scene.now, was.first_intent_at)
        assert (row.deadline_at, row.ended_at) == (scene.now + 11 * SECOND, None)
        assert [queued["key"] for queued in await scene.rows("unsettled", claimed)] == [neighbour.key]
        assert check_all(await scene.store.dump()) == []

    async def test_unknown_once_more_it_stands_there_anew(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        await scene.write(claimed, intent)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        assert await place(scene, claimed, intent.key) == OpenState(
            since=scene.now, asked=0, unusable=0, ask_at=scene.now, sender_gone=False, why="", resend=False
        )

    @pytest.mark.parametrize("state", ["planned", "running", "succeeded", "failed"])
    async def test_is_for_what_is_unknown(self, scene: Scene, state: Any) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)
        row = await scene.operation(claimed, key)
        intent = scene.intent(key, attempt=row.attempt, turn=row.turn, resend=True)
        assert await refusal(scene, claimed, intent) == "not_planned"
        assert await refusal(scene, claimed, scene.intent(resend=True)) == "not_planned"

    @pytest.mark.parametrize("mark", [False, True])
    async def test_what_is_unknown_needs_it(self, scene: Scene, mark: bool) -> None:
        claimed = await scene.running()
        intent = await (marked if mark else unknown)(scene, claimed)
        before = await scene.rows("unsettled", claimed)
        for wrong in (
            replace(intent, resend=False),
            replace(intent, attempt=0),
            replace(intent, attempt=2),
            replace(intent, turn=intent.turn - 1),
            replace(intent, turn=intent.turn + 1),
        ):
            assert await refusal(scene, claimed, wrong) == "not_planned"
        assert await scene.rows("unsettled", claimed) == before

    async def test_a_refusal_leaves_it_in_the_queue(self, scene: Scene) -> None:
        other, claimed = await scene.running(ttl_us=9 * HOUR), await scene.running(ttl_us=9 * HOUR)
        await scene.called(other, business=lock("held", tool="pay"))
        outcome = await scene.outcome(other, await scene.called(other), "planned", wait=(PROVIDER, HOUR))
        await scene.write(other, outcome)
        intent = await marked(scene, claimed, name="pay")
        before = await scene.rows("unsettled", claimed)
        await scene.store.pause(switch(claimed.tenant, "tool:pay"), now=scene.now)
        assert await refusal(scene, claimed, intent) == "paused"
        await scene.store.resume(switch(claimed.tenant, "tool:pay"), now=scene.now)
        assert await refusal(scene, claimed, replace(intent, provider=PROVIDER)) == f"held {HOUR}"
        assert await refusal(scene, claimed, replace(intent, business=lock("held", tool="pay"))) == "key_held"
        await scene.store.put_rule(scene.rule("pay"), now=scene.now)
        assert await refusal(scene, claimed, intent) == "rules_changed"
        assert await scene.rows("unsettled", claimed) == before

    async def test_its_own_business_key_is_no_hindrance(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed, business=lock("mine"))
        assert await refusal(scene, claimed, intent) is None
        [row] = (await scene.store.dump())["business_keys"]
        assert (row["key"], row["state"]) == (intent.key, "held")

    async def test_of_a_lost_lease_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await marked(scene, claimed)
        await scene.lose(claimed)
        before = await scene.store.dump()
        assert (await scene.flush(claimed, intent)).kind == "stale"
        assert changed(before, await scene.store.dump()) == {}
        assert (await scene.write(await scene.claim_task(claimed), intent)).refusals == ()


# -- the end of a task -----------------------------------------------------------------------------------


async def ended(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.failure())


async def cancelled(scene: Scene, claimed: Claimed) -> None:
    await scene.write(claimed, scene.release())
    assert (await scene.cancel(claimed)).kind == "cancelled"


async def cancelled_by_its_worker(scene: Scene, claimed: Claimed) -> None:
    assert (await scene.cancel(claimed)).kind == "requested"
    await scene.write(claimed, scene.release())


async def parked(scene: Scene, claimed: Claimed) -> None:
    await scene.lose(claimed, max_deaths=1)


async def expired(scene: Scene, claimed: Claimed) -> None:
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=9 * HOUR, session=row["id"])
    scene.now = (claimed.deadline_at or 0) + 1
    await scene.sweep(grace_us=0)


ENDS: dict[str, Callable[[Scene, Claimed], Awaitable[None]]] = {
    "ended": ended,
    "cancelled": cancelled,
    "cancelled-by-its-worker": cancelled_by_its_worker,
    "parked": parked,
    "expired": expired,
}


class TestEndsWithAMark:
    """A task that is over sends nothing: what was to be sent again is looked at once more."""

    @pytest.mark.parametrize("how", ENDS)
    async def test_the_mark_goes_and_the_item_stays(self, scene: Scene, how: str) -> None:
        claimed = await scene.running(deadline_us=HOUR)
        intent = await marked(scene, claimed, name="look")
        since = scene.now
        scene.pass_time(SECOND)
        await ENDS[how](scene, claimed)
        assert await place(scene, claimed, intent.key) == OpenState(
            since=since, asked=0, unusable=0, ask_at=scene.now, sender_gone=False, why="", resend=False
        )
        assert (await scene.operation(claimed, intent.key)).state == "unknown"
        task = await scene.task(claimed)
        assert task.effects_open == 1
        assert json.loads((await scene.events(claimed))[-1].data)["effects_open"] == 1
        assert await taken(scene, "look") == [intent.key]

    async def test_an_end_of_another_leaves_it(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        intent = await marked(scene, claimed)
        await scene.write(other, scene.failure())
        state = await place(scene, claimed, intent.key)
        assert state is not None
        assert state.resend

    async def test_one_that_is_over_is_not_marked(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = await unknown(scene, claimed)
        await scene.write(claimed, scene.failure())
        settlement = scene.settlement(claimed, intent.key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        state = await place(scene, claimed, intent.key)
        assert state is not None
        assert not state.resend
