"""The reconciliation queue: what stands in it, who takes what, and what is put back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.entries import RecordOutcome, TakeTurn
from outlast.store.reconciling import OpenItem, OpenRequest, OpenState, Postponement
from outlast.store.records import Claimed, Evidence
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.scene import HOUR, SECOND, Reopen, Scene, changed

__all__ = [
    "TestClaimOpen",
    "TestOpenState",
    "TestPostpone",
    "TestSettlersAndOthers",
]

LEASE = 20 * SECOND
PROVIDER = "tickets.example"


async def state_of(scene: Scene, of: Any, key: str) -> OpenState | None:
    """Read an operation's place in the queue."""
    return await scene.store.read_open(of.tenant, of.task, key)


async def held(scene: Scene, of: Any, key: str, provider: str = PROVIDER) -> int | None:
    """Read until when a provider wants to be left alone, as whoever may ask about an operation does."""
    state = await scene.store.read_open(of.tenant, of.task, key, provider=provider, now=scene.now)
    assert state is not None
    return state.held_until


async def take(scene: Scene, *tools: str, limit: int = 99, session: str | None = None) -> list[OpenItem]:
    """Take what is due of these tools, under a new session unless given."""
    request = OpenRequest(
        session=session or await scene.session(HOUR),
        tools=tools or ("look",),
        limit=limit,
        lease_us=LEASE,
    )
    return await scene.store.claim_open(request, now=scene.now)


async def unknown(scene: Scene, tool: str = "look", **changes: Any) -> tuple[Claimed, str]:
    """Have an unknown operation of a task that waits for it."""
    claimed = await scene.running(**changes)
    key = await scene.called(claimed, "unknown", name=tool)
    await scene.write(claimed, scene.suspension("reconciliation"))
    return claimed, key


def postponement(item: OpenItem, ask_in_us: int | None = 4 * SECOND, **changes: Any) -> Postponement:
    """Put an item back."""
    operation = item.operation
    record = Postponement(
        tenant=operation.tenant,
        task=operation.task,
        key=operation.key,
        turn=operation.turn,
        ask_in_us=ask_in_us,
        unusable=True,
        why="no answer",
    )
    return replace(record, **changes)


def late(of: Any, key: str, says: Any, *, attempt: int = 1, **changes: Any) -> Evidence:
    """Make evidence that comes late."""
    record = Evidence(
        tenant=of.tenant, task=of.task, key=key, attempt=attempt, source="late", data="{}", says=says
    )
    return replace(record, **changes)


class TestOpenState:
    """What the queue knows of an item."""

    @pytest.mark.parametrize("gone", [False, True])
    async def test_an_unknown_outcome_is_due_at_once(self, scene: Scene, gone: bool) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        assert await state_of(scene, claimed, key) is None
        scene.pass_time(SECOND)
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown", sender_gone=gone))
        assert await state_of(scene, claimed, key) == OpenState(
            since=scene.now, asked=0, unusable=0, ask_at=scene.now, sender_gone=gone, why=""
        )
        [row] = await scene.rows("unsettled", claimed)
        assert row == {
            "tenant": claimed.tenant,
            "task": claimed.task,
            "key": key,
            "since": scene.now,
            "ask_at": scene.now,
            "asked": 0,
            "unusable": 0,
            "claimed_until": 0,
            "claimed_by": "",
            "sender_gone": gone,
            "why": "",
            "resend": False,
        }

    async def test_a_turn_from_running_says_nothing_of_the_sender(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=1, reason="no answer"))
        state = await state_of(scene, claimed, key)
        assert state == OpenState(
            since=scene.now, asked=0, unusable=0, ask_at=scene.now, sender_gone=False, why="no answer"
        )

    async def test_a_turn_of_an_unknown_one_changes_nothing_of_its_place(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown", sender_gone=True))
        before = await scene.rows("unsettled", claimed)
        scene.pass_time(SECOND)
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=2))
        assert await scene.rows("unsettled", claimed) == before

    async def test_the_sender_may_be_known_to_be_gone_later(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        begun = scene.now
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=1))
        scene.pass_time(SECOND)
        for gone in (True, False):
            await scene.write(claimed, await scene.outcome(claimed, key, "unknown", sender_gone=gone))
            state = await state_of(scene, claimed, key)
            assert state is not None
            assert (state.since, state.sender_gone) == (begun, True)

    @pytest.mark.parametrize("how", ["ended", "expired", "parked"])
    async def test_what_an_ending_leaves_may_still_be_sent(self, scene: Scene, how: str) -> None:
        claimed = await scene.running(deadline_us=HOUR)
        key = await scene.called(claimed)
        if how == "ended":
            await scene.write(claimed, scene.failure())
        elif how == "parked":
            await scene.lose(claimed, max_deaths=1)
        else:
            [row] = (await scene.store.dump())["sessions"]
            await scene.session(ttl_us=9 * HOUR, session=row["id"])
            scene.now = (claimed.deadline_at or 0) + 1
            await scene.sweep(grace_us=0)
        assert await state_of(scene, claimed, key) == OpenState(
            since=scene.now, asked=0, unusable=0, ask_at=scene.now, sender_gone=False, why=""
        )

    async def test_belongs_to_its_tenant(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        assert await state_of(scene, replace(claimed, tenant="tenant-blue"), key) is None
        assert await state_of(scene, claimed, "other") is None


class TestClaimOpen:
    """The verb ``claim_open``."""

    async def test_takes_what_is_due_and_its_turn(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record)
        key = await scene.called(claimed, name="look")
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown"))
        await scene.write(claimed, scene.suspension("reconciliation"))
        was, since = await scene.operation(claimed, key), scene.now
        scene.pass_time(SECOND)
        session = await scene.session(HOUR)
        items = await take(scene, session=session)
        expected = replace(was, turn=was.turn + 1)
        assert items == [OpenItem(operation=expected, trace=record.trace, task_ended=False)]
        assert await scene.operation(claimed, key) == expected
        [row] = await scene.rows("unsettled", claimed)
        assert (row["claimed_by"], row["claimed_until"]) == (session, scene.now + LEASE)
        assert (row["ask_at"], row["asked"]) == (since, 0)

    async def test_changes_nothing_else(self, scene: Scene) -> None:
        await unknown(scene)
        session = await scene.session(HOUR)
        before = await scene.store.dump()
        assert len(await take(scene, session=session)) == 1
        assert set(changed(before, await scene.store.dump())) == {"operations", "unsettled"}

    async def test_one_of_an_ended_task_is_taken_too(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, name="look")
        await scene.write(claimed, scene.failure())
        [item] = await take(scene)
        assert (item.operation.key, item.task_ended) == (key, True)

    async def test_one_of_a_queued_task_is_taken_too(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        await scene.lose(claimed)
        [item] = await take(scene)
        assert (item.operation.key, item.task_ended) == (key, False)

    async def test_a_running_tasks_are_its_workers(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "unknown", name="look")
        assert await take(scene) == []

    async def test_only_the_tools_that_are_named(self, scene: Scene) -> None:
        wanted = [(await unknown(scene, tool))[1] for tool in ("one", "other", "two")]
        assert await take(scene, "on", "none") == []
        items = await take(scene, "one", "two")
        assert sorted(item.operation.key for item in items) == sorted([wanted[0], wanted[2]])

    async def test_of_every_tenant(self, scene: Scene) -> None:
        await unknown(scene)
        await unknown(scene, tenant="tenant-blue")
        assert {item.operation.tenant for item in await take(scene)} == {"tenant-green", "tenant-blue"}

    async def test_the_one_that_waits_longest_first(self, scene: Scene) -> None:
        keys = []
        for _ in range(5):
            keys.append((await unknown(scene, ttl_us=HOUR))[1])
            scene.pass_time(SECOND)
        assert [item.operation.key for item in await take(scene, limit=2)] == keys[:2]
        assert [item.operation.key for item in await take(scene, limit=2)] == keys[2:4]
        assert [item.operation.key for item in await take(scene, limit=2)] == keys[4:]

    async def test_what_is_taken_is_nobody_elses_until_its_time_is_over(self, scene: Scene) -> None:
        await unknown(scene)
        [first] = await take(scene)
        scene.pass_time(LEASE - 1)
        assert await take(scene) == []
        scene.pass_time(1)
        [second] = await take(scene)
        assert second.operation == replace(first.operation, turn=first.operation.turn + 1)

    async def test_what_is_not_due_is_left(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, 4 * SECOND)], now=scene.now)
        scene.pass_time(4 * SECOND - 1)
        assert await take(scene) == []
        scene.pass_time(1)
        assert [one.operation.key for one in await take(scene)] == [key]
        assert (await scene.operation(claimed, key)).turn == item.operation.turn + 1

    async def test_what_a_person_must_settle_is_left(self, scene: Scene) -> None:
        await unknown(scene)
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, None)], now=scene.now)
        scene.pass_time(9 * HOUR)
        assert await take(scene) == []

    async def test_a_settled_one_is_left(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        assert await take(scene) == []

    async def test_what_nobody_here_serves_stands_in_nobodys_way(self, scene: Scene) -> None:
        """However much of it has been due for longer."""
        strangers = await scene.running(ttl_us=HOUR)
        intents = [scene.intent(name="elsewhere") for _ in range(1_100)]
        await scene.write(strangers, *intents)
        await scene.write(
            strangers,
            *(RecordOutcome(key=one.key, attempt=1, turn=1, state="unknown") for one in intents),
        )
        await scene.write(strangers, scene.suspension("reconciliation"))
        scene.pass_time(SECOND)
        _, key = await unknown(scene, ttl_us=HOUR)
        scene.pass_time(SECOND)
        assert [item.operation.key for item in await take(scene, limit=1)] == [key]
        assert await take(scene, limit=1) == []
        assert len(await take(scene, "elsewhere", limit=2_000)) == len(intents)

    async def test_several_of_one_task_are_taken_together(self, scene: Scene) -> None:
        claimed = await scene.running()
        keys = [await scene.called(claimed, "unknown", name="look") for _ in range(3)]
        await scene.write(claimed, scene.suspension("reconciliation"))
        assert sorted(item.operation.key for item in await take(scene)) == sorted(keys)

    async def test_a_swept_session_gets_nothing(self, scene: Scene) -> None:
        session = await scene.session()
        await unknown(scene)
        scene.pass_time(61 * SECOND)
        assert session in (await scene.sweep()).sessions
        before = await scene.store.dump()
        assert await take(scene, session=session) == []
        assert changed(before, await scene.store.dump()) == {}

    async def test_nothing_is_taken_for_nobody(self, scene: Scene) -> None:
        await unknown(scene)
        session = await scene.session(HOUR)
        before = await scene.store.dump()
        request = OpenRequest(session=session, tools=(), limit=9, lease_us=LEASE)
        assert await scene.store.claim_open(request, now=scene.now) == []
        none = OpenRequest(session=session, tools=("look",), limit=0, lease_us=LEASE)
        assert await scene.store.claim_open(none, now=scene.now) == []
        assert changed(before, await scene.store.dump()) == {}

    async def test_two_settlers_share_without_overlap(self, scene: Scene, reopen: Reopen) -> None:
        keys = [(await unknown(scene, ttl_us=HOUR))[1] for _ in range(12)]
        stores = [scene.store, await reopen()]
        sessions = [await scene.session(HOUR) for _ in stores]
        taken: list[str] = []
        for _ in range(12):
            answers = await asyncio.gather(
                *(
                    take(replace(scene, store=store), limit=3, session=session)
                    for store, session in zip(stores, sessions, strict=True)
                )
            )
            taken += [item.operation.key for items in answers for item in items]
            if len(taken) >= len(keys):
                break
        assert sorted(taken) == sorted(keys)
        assert check_all(await scene.store.dump()) == []


class TestPostpone:
    """The verb ``postpone``."""

    async def test_puts_an_item_back_with_the_plan(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        since = scene.now
        [item] = await take(scene)
        scene.pass_time(SECOND)
        assert await scene.store.postpone([postponement(item)], now=scene.now) == [True]
        assert await state_of(scene, claimed, key) == OpenState(
            since=since,
            asked=1,
            unusable=1,
            ask_at=scene.now + 4 * SECOND,
            sender_gone=False,
            why="no answer",
        )
        [row] = await scene.rows("unsettled", claimed)
        assert row["claimed_until"] == 0
        assert await scene.operation(claimed, key) == item.operation

    async def test_counts_questions_and_those_in_a_row_without_evidence(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        for asked, (unusable, expected) in enumerate(
            [(True, 1), (True, 2), (False, 0), (True, 1), (False, 0)], 1
        ):
            [item] = await take(scene)
            await scene.store.postpone([postponement(item, 0, unusable=unusable)], now=scene.now)
            state = await state_of(scene, claimed, key)
            assert state is not None
            assert (state.asked, state.unusable) == (asked, expected)

    async def test_without_a_time_a_person_is_needed(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, None, why="ask ann")], now=scene.now)
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.ask_at, state.why) == (None, "ask ann")

    async def test_a_wait_that_was_asked_for_holds_intents_and_questions_of_everybody(
        self, scene: Scene
    ) -> None:
        claimed, key = await unknown(scene)
        other, others = await unknown(scene, tenant="tenant-blue")
        item, _ = sorted(await take(scene), key=lambda one: one.operation.tenant, reverse=True)
        scene.pass_time(SECOND)
        until = scene.now + 7 * SECOND
        back = postponement(item, 7 * SECOND, unusable=False, wait=(PROVIDER, 7 * SECOND))
        assert await scene.store.postpone([back], now=scene.now) == [True]
        assert await held(scene, claimed, key) == until
        assert await held(scene, claimed, key, "other.example") is None
        assert await held(scene, other, others) is None
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.asked, state.ask_at, state.held_until) == (1, until, None)
        runs = await scene.running()
        verdict = await scene.flush(runs, scene.intent(provider=PROVIDER))
        assert verdict.refusals == ((0, f"held {7 * SECOND}"),)
        scene.pass_time(7 * SECOND - 1)
        assert await held(scene, claimed, key) == until
        assert await take(scene, session=await scene.session(HOUR)) == []
        scene.pass_time(1)
        assert await held(scene, claimed, key) is None

    async def test_the_longer_wait_is_kept(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        for us, longest in ((4, 4), (2, 4), (9, 9)):
            [item] = await take(scene)
            back = postponement(item, 0, wait=(PROVIDER, us * SECOND))
            await scene.store.postpone([back], now=scene.now)
            assert await held(scene, claimed, key) == scene.now + longest * SECOND
            await scene.store.note([late(claimed, key, "happened")], now=scene.now)

    async def test_of_several_in_one_batch_the_longest_is_kept(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        for _ in range(2):
            await unknown(scene)
        backs = [
            postponement(item, SECOND, wait=None if us is None else (PROVIDER, us * SECOND))
            for item, us in zip(await take(scene), (3, None, 5), strict=True)
        ]
        assert await scene.store.postpone(backs, now=scene.now) == [True] * 3
        assert await held(scene, claimed, key) == scene.now + 5 * SECOND

    @pytest.mark.parametrize(
        ("ask_in_us", "expected_us"),
        [(SECOND, 4 * SECOND), (9 * SECOND, 9 * SECOND), (None, None)],
        ids=["sooner", "later", "for-a-person"],
    )
    async def test_nobody_is_asked_before_the_wait_is_over_that_it_brings(
        self, scene: Scene, ask_in_us: int | None, expected_us: int | None
    ) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        back = postponement(item, ask_in_us, wait=(PROVIDER, 4 * SECOND))
        await scene.store.postpone([back], now=scene.now)
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert state.ask_at == (None if expected_us is None else scene.now + expected_us)

    async def test_one_that_is_refused_or_repeated_brings_no_wait(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        stale = postponement(item, turn=9, wait=(PROVIDER, SECOND))
        assert await scene.store.postpone([stale], now=scene.now) == [False]
        assert await held(scene, claimed, key) is None
        back = postponement(item, wait=(PROVIDER, SECOND))
        await scene.store.postpone([back], now=scene.now)
        until = scene.now + SECOND
        scene.pass_time(SECOND // 2)
        assert await scene.store.postpone([back], now=scene.now) == [True]
        assert await held(scene, claimed, key) == until

    async def test_what_is_held_counts_as_no_question(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        for changes in ({"unusable": True}, {"unusable": False, "held": True}, {"unusable": True}):
            [item] = await take(scene)
            await scene.store.postpone([postponement(item, 0, **changes)], now=scene.now)
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.asked, state.unusable) == (2, 2)

    async def test_a_worker_puts_back_what_it_took_by_its_own_turn(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, name="look")
        await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=1))
        back = Postponement(
            tenant=claimed.tenant,
            task=claimed.task,
            key=key,
            turn=2,
            ask_in_us=SECOND,
            unusable=True,
            why="by the worker",
        )
        assert await scene.store.postpone([back], now=scene.now) == [True]
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.asked, state.ask_at) == (1, scene.now + SECOND)

    async def test_a_worker_does_so_after_a_settler_has(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        await scene.write(claimed, scene.release())
        [item] = await take(scene)
        await scene.store.postpone([postponement(item, HOUR)], now=scene.now)
        again = await scene.claim_task(claimed)
        turn = item.operation.turn
        await scene.write(again, TakeTurn(key=key, attempt=1, turn=turn))
        back = postponement(item, SECOND, turn=turn + 1)
        assert await scene.store.postpone([back], now=scene.now) == [True]
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.asked, state.ask_at) == (2, scene.now + SECOND)

    @pytest.mark.parametrize("ask_in_us", [None, 4 * SECOND])
    @pytest.mark.parametrize("says", ["happened", "did_not_happen"])
    async def test_evidence_that_came_meanwhile_makes_it_due(
        self, scene: Scene, says: str, ask_in_us: int | None
    ) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.note([late(claimed, key, says)], now=scene.now)
        scene.pass_time(SECOND)
        assert await scene.store.postpone([postponement(item, ask_in_us)], now=scene.now) == [True]
        state = await state_of(scene, claimed, key)
        assert state is not None
        assert (state.ask_at, state.asked, state.why) == (scene.now, 1, "no answer")
        assert [one.operation.key for one in await take(scene)] == [key]

    async def test_evidence_that_was_considered_does_not(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        other, _ = await unknown(scene)
        await scene.store.note([late(claimed, key, None, source="asked")], now=scene.now)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        items = {item.operation.task: item for item in await take(scene)}
        # Neither does what says nothing, nor what is another operation's.
        await scene.store.note([late(claimed, key, None)], now=scene.now)
        backs = [
            postponement(items[claimed.task], None, seen=2),
            postponement(items[other.task], None, seen=0),
        ]
        assert await scene.store.postpone(backs, now=scene.now) == [True, True]
        assert await take(scene) == []
        evidence = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert [(one.number, one.says) for one in evidence] == [(1, None), (2, "happened"), (3, None)]

    async def test_newer_evidence_than_was_considered_does(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        await scene.store.note([late(claimed, key, "happened")], now=scene.now)
        [item] = await take(scene)
        await scene.store.note([late(claimed, key, "did_not_happen")], now=scene.now)
        await scene.store.postpone([postponement(item, None, seen=1)], now=scene.now)
        assert [one.operation.key for one in await take(scene)] == [key]

    async def test_a_repeat_changes_nothing(self, scene: Scene) -> None:
        """The answer of the first may have been lost."""
        await unknown(scene)
        [item] = await take(scene)
        back = postponement(item)
        await scene.store.postpone([back], now=scene.now)
        before = await scene.store.dump()
        assert await scene.store.postpone([back], now=scene.now) == [True]
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_refused_when_the_turn_has_passed(self, scene: Scene) -> None:
        await unknown(scene)
        [first] = await take(scene)
        scene.pass_time(LEASE)
        [second] = await take(scene)
        before = await scene.store.dump()
        assert await scene.store.postpone([postponement(first)], now=scene.now) == [False]
        assert changed(before, await scene.store.dump()) == {}
        assert await scene.store.postpone([postponement(second)], now=scene.now) == [True]

    async def test_is_refused_when_it_is_settled(self, scene: Scene) -> None:
        claimed, key = await unknown(scene)
        [item] = await take(scene)
        await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        turn = (await scene.operation(claimed, key)).turn
        before = await scene.store.dump()
        answers = await scene.store.postpone(
            [postponement(item), postponement(item, turn=turn)], now=scene.now
        )
        assert answers == [False, False]
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_batch_answers_in_order(self, scene: Scene) -> None:
        for _ in range(3):
            await unknown(scene)
        items = await take(scene)
        backs = [postponement(item) for item in items]
        backs[1] = replace(backs[1], turn=77)
        backs.insert(1, replace(backs[0], key="missing"))
        backs.append(replace(backs[0], tenant="tenant-blue"))
        answers = await scene.store.postpone(backs, now=scene.now)
        assert answers == [True, False, False, True, False]

    async def test_of_nothing_is_nothing(self, scene: Scene) -> None:
        assert await scene.store.postpone([], now=scene.now) == []


class TestSettlersAndOthers:
    """A settler settles by the turn that it took; whoever comes later takes the next one."""

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    async def test_settles_with_its_turn(self, scene: Scene, verdict: str) -> None:
        claimed, key = await unknown(scene)
        scene.pass_time(12 * SECOND)
        [item] = await take(scene)
        settlement = scene.settlement(claimed, key, verdict, by="settler", turn=item.operation.turn)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"
        assert (await scene.task(claimed)).state == "queued"
        state = await state_of(scene, claimed, key)
        if verdict == "send_again":
            assert state is not None
            assert state.resend
        else:
            assert state is None
            assert (await scene.operation(claimed, key)).settled_by == "settler"

    @pytest.mark.parametrize("verdict", ["did_not_happen", "send_again"])
    async def test_too_early_is_too_early_for_it_as_well(self, scene: Scene, verdict: str) -> None:
        claimed, key = await unknown(scene)
        scene.pass_time(4 * SECOND)
        [item] = await take(scene)
        settlement = scene.settlement(claimed, key, verdict, by="settler", turn=item.operation.turn)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert (settled.kind, settled.wait_us) == ("too_early", 6 * SECOND)

    async def test_a_worker_that_takes_the_next_turn_shuts_it_out(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        await scene.lose(claimed)
        [item] = await take(scene)
        worker = await scene.claim_task(claimed)
        await scene.write(worker, TakeTurn(key=key, attempt=1, turn=item.operation.turn))
        before = await scene.store.dump()
        settlement = scene.settlement(claimed, key, by="settler", turn=item.operation.turn)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "conflict"
        assert await scene.store.postpone([postponement(item)], now=scene.now) == [False]
        assert changed(before, await scene.store.dump()) == {}

    async def test_it_shuts_out_the_worker_that_was_before(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", name="look")
        outcome = await scene.outcome(claimed, key, "failed")
        await scene.lose(claimed)
        await take(scene)
        worker = await scene.claim_task(claimed)
        assert (await scene.flush(worker, outcome)).refusals == ((0, "turn_passed"),)
