"""That a call happened, said of whichever attempt and however late, is believed until a person settles it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.store.records import Claimed
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.changing import retry_of
from outlast.testing.store_suite.effects import holder, once
from outlast.testing.store_suite.reconciling import late, state_of
from outlast.testing.store_suite.scene import Scene, changed

__all__ = ["TestWords"]


async def sent_twice(scene: Scene, claimed: Claimed, **changes: Any) -> str:
    """Have a call under way whose first attempt was to be made again; answer its key."""
    intent = scene.intent(**changes)
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
    await scene.write(claimed, replace(intent, attempt=1, turn=2))
    return intent.key


class TestWords:
    """That a call happened is acted against by a person only: it is not sent again, and has not failed."""

    @pytest.mark.parametrize("how", ["retry", "reopened", "backed off", "approved"])
    async def test_it_is_not_sent_again_when_it_was_to_be(self, scene: Scene, how: str) -> None:
        claimed = await scene.running()
        intent = scene.intent(business=once())
        await scene.write(claimed, intent)
        outcome = "planned" if how in ("backed off", "approved") else "failed"
        await scene.write(claimed, await scene.outcome(claimed, intent.key, outcome))  # type: ignore[arg-type]
        if how == "retry":
            await scene.write(claimed, scene.failure())
            request = replace(retry_of(scene, claimed), reopen=(intent.key,))
            assert (await scene.store.retry([request], now=scene.now))[0].kind == "retried"
            claimed = await scene.claim_task(claimed)
        elif how == "reopened":
            await scene.write(claimed, scene.release(reopen=(intent.key,)))
            claimed = await scene.claim_task(claimed)
        elif how == "approved":
            assert (await scene.decide(await scene.asked(claimed, scene.ask(intent.key)))).kind == "decided"
        was = await scene.operation(claimed, intent.key)
        assert was.state == ("approved" if how == "approved" else "planned")
        await scene.store.note([late(claimed, intent.key, "happened")], now=scene.now)
        row = await scene.operation(claimed, intent.key)
        assert (row.state, row.attempt, row.turn) == ("unknown", was.attempt, was.turn)
        assert (row.error, row.ended_at) == (was.error, None)
        place = await state_of(scene, claimed, intent.key)
        assert place is not None
        assert place.ask_at is None
        assert place.why == "late evidence contradicts what was settled"
        assert (await scene.kinds(claimed))[-1] == "operation.contradicted"
        held = await holder(scene, once())
        assert held is not None
        assert (held.task, held.key, held.state) == (claimed.task, intent.key, "held")
        again = replace(intent, attempt=row.attempt, turn=row.turn)
        assert (await scene.flush(claimed, again)).refusals == ((0, "not_planned"),)
        assert check_all(await scene.store.dump()) == []

    @pytest.mark.parametrize("state", ["failed", "planned"])
    async def test_a_later_attempt_does_not_fail_against_it(self, scene: Scene, state: Any) -> None:
        claimed = await scene.running()
        key = await sent_twice(scene, claimed)
        await scene.store.note([late(claimed, key, "happened", attempt=1)], now=scene.now)
        before = await scene.store.dump()
        outcome = await scene.outcome(claimed, key, state, events=(scene.event(),))
        assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        assert changed(before, await scene.store.dump()) == {}
        # That nobody knows is never refused.
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown"))
        assert (await scene.operation(claimed, key)).state == "unknown"

    async def test_a_later_attempt_may_succeed(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await sent_twice(scene, claimed)
        await scene.store.note([late(claimed, key, "happened", attempt=1)], now=scene.now)
        await scene.write(claimed, await scene.outcome(claimed, key, "succeeded"))
        assert (await scene.operation(claimed, key)).state == "succeeded"

    async def test_of_what_changes_nothing_it_does_not_matter(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await sent_twice(scene, claimed, effect="read")
        await scene.store.note([late(claimed, key, "happened", attempt=1)], now=scene.now)
        await scene.write(claimed, await scene.outcome(claimed, key, "failed"))
        assert check_all(await scene.store.dump()) == []

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    @pytest.mark.parametrize("by", ["settler", "worker"])
    async def test_nobody_but_a_person_settles_against_it(self, scene: Scene, verdict: str, by: str) -> None:
        """It came while somebody asked."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        row = await scene.operation(claimed, key)
        before = await scene.store.dump()
        if by == "settler":
            settlement = scene.settlement(claimed, key, verdict, by="settler", forced=True, turn=row.turn)
            [settled] = await scene.store.settle([settlement], now=scene.now)
            assert (settled.kind, settled.state) == ("conflict", "unknown")
        elif verdict == "did_not_happen":
            outcome = await scene.outcome(claimed, key, "failed", settled_by="worker")
            assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)
        else:
            resend = scene.intent(key, effect="queryable", attempt=1, turn=row.turn, resend=True)
            assert (await scene.flush(claimed, resend)).refusals == ((0, "not_planned"),)
        assert changed(before, await scene.store.dump()) == {}
        [settled] = await scene.store.settle([scene.settlement(claimed, key, by="settler")], now=scene.now)
        assert settled.kind == "settled"

    @pytest.mark.parametrize("effect", ["read", "idempotent"])
    async def test_what_does_no_harm_is_sent_again_all_the_same(self, scene: Scene, effect: Any) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", effect=effect)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        row = await scene.operation(claimed, key)
        resend = scene.intent(key, effect=effect, attempt=1, turn=row.turn, resend=True)
        await scene.write(claimed, resend)

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_a_person_overrules_it(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", effect="queryable")
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        settlement = scene.settlement(claimed, key, verdict, forced=True)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"
        resend = verdict == "send_again"
        if not resend:
            await scene.write(claimed, scene.release(reopen=(key,)))
            claimed = await scene.claim_task(claimed)
        row = await scene.operation(claimed, key)
        intent = scene.intent(key, effect="queryable", attempt=1, turn=row.turn, resend=resend)
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, key, "failed"))
        assert check_all(await scene.store.dump()) == []
        # But not what is said after that.
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        assert (await scene.operation(claimed, key)).state == "unknown"
