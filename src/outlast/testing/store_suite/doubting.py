"""Business keys of what is in doubt: kept by whoever may have used them, whoever has them since."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outlast.store.entries import BusinessKey
from outlast.store.reconciling import KeyHolder
from outlast.store.records import Claimed
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import again, held_by, holder, key_rows, lock, once, refusal
from outlast.testing.store_suite.reconciling import late, state_of
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene

__all__ = ["TestKeysInDoubt"]


async def settled_wrongly(scene: Scene, business: BusinessKey, **changes: object) -> tuple[Claimed, str]:
    """Have a call that a person said did not happen."""
    claimed = await scene.running(ttl_us=9 * HOUR)
    key = await scene.called(claimed, "unknown", business=business)
    await settle(scene, claimed, key, "did_not_happen")
    return claimed, key


async def settle(scene: Scene, claimed: Claimed, key: str, verdict: str) -> None:
    """Have a person settle a call."""
    settlement = scene.settlement(claimed, key, verdict, forced=True)
    [settled] = await scene.store.settle([settlement], now=scene.now)
    assert settled.kind == "settled"


async def contradict(scene: Scene, claimed: Claimed, key: str, says: str = "happened") -> None:
    """Have evidence come against what is recorded."""
    await scene.store.note([late(claimed, key, says)], now=scene.now)
    assert (await scene.operation(claimed, key)).state == "unknown"
    assert check_all(await scene.store.dump()) == []


async def told(scene: Scene, claimed: Claimed, key: str) -> list[dict[str, object]]:
    """Read what the evidence of a call says of its business key."""
    rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
    return [json.loads(row.data) for row in rows if row.source == "key"]


class TestKeysInDoubt:
    """Late evidence against an outcome brings the business key back with its operation."""

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    @pytest.mark.parametrize("by", ["person", "settler", "worker"])
    async def test_a_failure_in_doubt_has_its_key_again(
        self, scene: Scene, business: BusinessKey, by: str
    ) -> None:
        claimed, other = await scene.running(), await scene.running()
        if by == "worker":
            key = await scene.called(claimed, "failed", business=business)
        else:
            key = await scene.called(claimed, "unknown", business=business)
            who = "settler" if by == "settler" else "person:ann"
            settlement = scene.settlement(claimed, key, "did_not_happen", forced=True, by=who)
            await scene.store.settle([settlement], now=scene.now)
        assert await key_rows(scene) == []
        await contradict(scene, claimed, key)
        assert await holder(scene, business) == held_by(claimed, key)
        assert await told(scene, claimed, key) == []
        assert await refusal(scene, other, scene.intent(business=business)) == "key_held"
        assert await refusal(scene, other, scene.intent(business=business, repeat=True)) == "key_held"

    async def test_what_happened_after_all_stands_for_its_window(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once(window_us=3 * HOUR))
        await contradict(scene, claimed, key)
        scene.pass_time(SECOND)
        await settle(scene, claimed, key, "happened")
        until = scene.now + 3 * HOUR
        done = KeyHolder(task=claimed.task, key=key, state="done", until=until)
        assert await holder(scene, once()) == done
        other = await scene.running(ttl_us=9 * HOUR)
        scene.pass_time(3 * HOUR - 1)
        assert await refusal(scene, other, scene.intent(business=once())) == "key_done"
        scene.pass_time(1)
        assert await refusal(scene, other, scene.intent(business=once())) is None

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    async def test_what_did_not_happen_once_more_gives_it_up(
        self, scene: Scene, business: BusinessKey
    ) -> None:
        claimed, key = await settled_wrongly(scene, business)
        await contradict(scene, claimed, key)
        await settle(scene, claimed, key, "did_not_happen")
        assert await key_rows(scene) == []

    async def test_a_lock_in_doubt_that_happened_is_free(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, lock())
        await contradict(scene, claimed, key)
        await settle(scene, claimed, key, "happened")
        assert await key_rows(scene) == []

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    async def test_what_is_sent_again_holds_it(self, scene: Scene, business: BusinessKey) -> None:
        claimed, other = await scene.running(), await scene.running()
        intent = scene.intent(business=business)
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "failed"))
        await contradict(scene, claimed, intent.key)
        await settle(scene, claimed, intent.key, "send_again")
        assert await refusal(scene, other, scene.intent(business=business)) == "key_held"
        resend = replace(await again(scene, claimed, intent), resend=True)
        assert await refusal(scene, claimed, resend) is None
        [row] = await key_rows(scene)
        assert (row["task"], row["key"], row["state"]) == (claimed.task, intent.key, "held")
        assert check_all(await scene.store.dump()) == []

    async def test_it_is_under_the_rule_of_its_last_attempt(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent(business=lock("first"))
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        business = once("second", window_us=2 * HOUR, tool="remind")
        await scene.write(claimed, replace(await again(scene, claimed, intent), business=business))
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "failed"))
        await scene.store.note([late(claimed, intent.key, "happened", attempt=2)], now=scene.now)
        [row] = await key_rows(scene)
        assert (row["tool"], row["value"], row["mode"]) == ("remind", "second", "once")
        assert (row["state"], row["window_us"], row["until_at"]) == ("doubt", 2 * HOUR, None)

    async def test_a_call_without_one_gets_none(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "failed")
        await contradict(scene, claimed, key)
        assert await key_rows(scene) == []

    @pytest.mark.parametrize("state", ["running", "unknown", "planned"])
    async def test_whoever_settles_is_told_who_holds_it_now(self, scene: Scene, state: str) -> None:
        claimed, key = await settled_wrongly(scene, once())
        other = await scene.running(ttl_us=9 * HOUR)
        theirs = await scene.called(other, state, business=once())  # type: ignore[arg-type]
        await contradict(scene, claimed, key)
        place = await state_of(scene, claimed, key)
        assert place is not None
        owner = f"{other.task}:{theirs}"
        assert place.why == f"late evidence contradicts what was settled; {owner} has its business key"
        assert await told(scene, claimed, key) == [
            {"business_key": "invoice-1", "operation": owner, "state": "held"}
        ]
        assert await holder(scene, once()) == held_by(other, theirs)

    async def test_whoever_settles_is_told_who_has_done_it_since(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        other = await scene.running(ttl_us=9 * HOUR)
        theirs = await scene.called(other, "succeeded", business=once())
        await contradict(scene, claimed, key)
        owner = f"{other.task}:{theirs}"
        place = await state_of(scene, claimed, key)
        assert place is not None
        assert place.why == f"late evidence contradicts what was settled; {owner} has its business key"
        assert await told(scene, claimed, key) == [
            {"business_key": "invoice-1", "operation": owner, "state": "done"}
        ]

    async def test_nobody_gets_it_when_the_other_gives_it_up(self, scene: Scene) -> None:
        """It is in doubt beside whoever holds it."""
        claimed, key = await settled_wrongly(scene, once())
        other, third = await scene.running(ttl_us=9 * HOUR), await scene.running(ttl_us=9 * HOUR)
        theirs = await scene.called(other, business=once())
        await contradict(scene, claimed, key)
        await scene.write(other, await scene.outcome(other, theirs, "failed"))
        assert await holder(scene, once()) == held_by(claimed, key)
        assert await refusal(scene, third, scene.intent(business=once())) == "key_held"

    @pytest.mark.parametrize("first", ["mine", "theirs"])
    @pytest.mark.parametrize("becomes", ["succeeded", "failed"])
    async def test_the_window_counts_from_the_success_whichever_call_had_it(
        self, scene: Scene, becomes: str, first: str
    ) -> None:
        claimed, key = await settled_wrongly(scene, once())
        other, third = await scene.running(ttl_us=9 * HOUR), await scene.running(ttl_us=9 * HOUR)
        theirs = await scene.called(other, business=once())
        await contradict(scene, claimed, key)
        ends = {}
        for which in ("mine", "theirs") if first == "mine" else ("theirs", "mine"):
            scene.pass_time(SECOND)
            if which == "mine":
                await settle(scene, claimed, key, "happened")
                ends[claimed.task] = scene.now
            else:
                await scene.write(other, await scene.outcome(other, theirs, becomes))  # type: ignore[arg-type]
                if becomes == "succeeded":
                    ends[other.task] = scene.now
        latest = max(ends, key=lambda task: ends[task])
        until = ends[latest] + HOUR
        name = key if latest == claimed.task else theirs
        assert await holder(scene, once()) == KeyHolder(task=latest, key=name, state="done", until=until)
        scene.now = until - 1
        assert await refusal(scene, third, scene.intent(business=once())) == "key_done"
        scene.pass_time(1)
        assert await refusal(scene, third, scene.intent(business=once())) is None
        assert len(await key_rows(scene)) == 1
        assert check_all(await scene.store.dump()) == []

    async def test_a_repeat_that_fails_leaves_the_first_success_standing(self, scene: Scene) -> None:
        first, second, third = [await scene.running(ttl_us=9 * HOUR) for _ in range(3)]
        key = await scene.called(first, "succeeded", business=once())
        until = scene.now + HOUR
        scene.pass_time(SECOND)
        repeat = await scene.called(second, business=once(), repeat=True)
        assert await holder(scene, once()) == held_by(second, repeat)
        await scene.write(second, await scene.outcome(second, repeat, "failed"))
        assert await holder(scene, once()) == KeyHolder(task=first.task, key=key, state="done", until=until)
        assert await refusal(scene, third, scene.intent(business=once())) == "key_done"

    async def test_a_repeat_of_a_success_in_doubt_goes_on_beside_it(self, scene: Scene) -> None:
        first, second = [await scene.running(ttl_us=9 * HOUR) for _ in range(2)]
        key = await scene.called(first, "unknown", business=once())
        await settle(scene, first, key, "happened")
        repeat = await scene.called(second, business=once(), repeat=True)
        await contradict(scene, first, key, "did_not_happen")
        assert await told(scene, first, key) == [
            {"business_key": "invoice-1", "operation": f"{second.task}:{repeat}", "state": "held"}
        ]
        await scene.write(second, await scene.outcome(second, repeat, "succeeded"))
        await settle(scene, first, key, "did_not_happen")
        until = scene.now + HOUR
        done = KeyHolder(task=second.task, key=repeat, state="done", until=until)
        assert await holder(scene, once()) == done
        assert len(await key_rows(scene)) == 1

    async def test_whoever_holds_it_sends_nothing_more_while_another_is_in_doubt(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        other = await scene.running(ttl_us=9 * HOUR)
        intent = scene.intent(business=once())
        await scene.write(other, intent)
        await scene.write(other, await scene.outcome(other, intent.key, "planned"))
        await contradict(scene, claimed, key)
        assert await refusal(scene, other, await again(scene, other, intent)) == "key_held"
        await settle(scene, claimed, key, "did_not_happen")
        assert await refusal(scene, other, await again(scene, other, intent)) is None

    async def test_another_tenants_key_is_untouched(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        stranger = await scene.running(tenant="tenant-blue")
        await scene.called(stranger, business=once())
        await contradict(scene, claimed, key)
        assert await told(scene, claimed, key) == []

    async def test_the_end_of_its_task_leaves_it_in_doubt(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        await scene.write(claimed, scene.failure())
        await contradict(scene, claimed, key)
        assert await holder(scene, once()) == held_by(claimed, key)

    async def test_it_outlives_a_success_that_stands_no_more(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        other = await scene.running(ttl_us=9 * HOUR)
        await scene.called(other, "succeeded", business=once(window_us=SECOND))
        await scene.write(claimed, scene.failure())
        scene.pass_time(100 * 24 * HOUR)
        await contradict(scene, claimed, key)
        await scene.sweep()
        assert await holder(scene, once()) == held_by(claimed, key)

    async def test_it_is_remembered_for_as_long_as_the_ledger(self, scene: Scene) -> None:
        claimed, key = await settled_wrongly(scene, once())
        await scene.write(claimed, scene.failure())
        scene.pass_time(100 * 24 * HOUR)
        await scene.sweep()
        await contradict(scene, claimed, key)
        assert await holder(scene, once()) == held_by(claimed, key)
