"""Questions to people: how they are put, until when they stand, and how they are read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.approving import ApprovalFilter, ApprovalRow
from outlast.store.entries import ExpireApproval, RecordOperation
from outlast.store.records import Claimed
from outlast.testing.store_suite.deciding import decided_as, nothing_decides
from outlast.testing.store_suite.posting import session_of
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

__all__ = ["TestApprovalViews", "TestAskApproval", "TestExpiry"]


def expire(row: ApprovalRow, **changes: Any) -> ExpireApproval:
    """Make the gate that says that the time of a question is over."""
    return replace(ExpireApproval(key=row.key, number=row.number), **changes)


class TestAskApproval:
    """The record ``AskApproval``."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        claimed = await scene.running()
        scene.pass_time(3 * SECOND)
        ask = scene.ask(
            roles=("lead", "finance"),
            quorum=3,
            four_eyes=True,
            requester="person:rob",
            expires_in_us=7 * SECOND,
        )
        await scene.write(claimed, ask)
        assert await scene.store.read_approval(claimed.tenant, f"{claimed.task}:{ask.key}~1") == ApprovalRow(
            tenant=claimed.tenant,
            task=claimed.task,
            key=ask.key,
            number=1,
            id=f"{claimed.task}:{ask.key}~1",
            subject="call",
            state="pending",
            name=ask.name,
            fingerprint=ask.fingerprint,
            shown=ask.shown,
            reason=ask.reason,
            policy=ask.policy,
            target=ask.target,
            roles=("lead", "finance"),
            quorum=3,
            four_eyes=True,
            requester="person:rob",
            created_at=scene.now,
            expires_at=scene.now + 7 * SECOND,
        )
        row = await scene.operation(claimed, ask.key)
        assert (row.kind, row.name, row.state, row.position) == ("tool", ask.name, "planned", ask.position)
        assert (row.request, row.arguments, row.due_at) == (ask.request, ask.arguments, None)
        assert (row.attempt, row.turn, row.created_at) == (0, 0, scene.now)

    async def test_says_no_more_who_settled_what_is_asked_about_anew(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.write(claimed, await scene.outcome(claimed, key, "planned", settled_by="worker"))
        assert (await scene.operation(claimed, key)).settled_by == "worker"
        await scene.write(claimed, scene.ask(key))
        assert (await scene.operation(claimed, key)).settled_by is None

    async def test_a_question_runs_until_its_time_is_over(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = scene.question(expires_in_us=7 * SECOND)
        asked = await scene.asked(claimed, ask)
        assert (asked.subject, asked.target, asked.expires_at) == (
            "question",
            ask.target,
            scene.now + 7 * SECOND,
        )
        row = await scene.operation(claimed, ask.key)
        assert (row.kind, row.name, row.state, row.due_at) == ("signal", "ask", "running", asked.expires_at)
        verdict = await scene.write(claimed, scene.suspension("signal"))
        assert verdict.state == "waiting"
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("wake", asked.expires_at)

    async def test_may_have_no_end(self, scene: Scene) -> None:
        claimed = await scene.running()
        for ask in (scene.ask(expires_in_us=None, target=None), scene.question(expires_in_us=None)):
            asked = await scene.asked(claimed, ask)
            assert (asked.expires_at, asked.target) == (None, ask.target)
            assert (await scene.operation(claimed, ask.key)).due_at is None

    async def test_says_so_in_the_stream(self, scene: Scene) -> None:
        claimed = await scene.running()
        last = (await scene.task(claimed)).last_event
        ask = scene.ask(events=(scene.event("mine"),))
        await scene.write(claimed, ask)
        events = await scene.events(claimed, after=last)
        assert sorted(event.kind for event in events) == ["approval.requested", "mine"]
        [event] = [event for event in events if event.kind == "approval.requested"]
        assert json.loads(event.data) == {
            "approval": f"{claimed.task}:{ask.key}~1",
            "operation": ask.key,
            "tool": ask.name,
            "reason": ask.reason,
        }
        assert {event.epoch for event in events} == {claimed.epoch}

    async def test_a_repeat_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = scene.ask()
        row = await scene.asked(claimed, ask)
        await scene.decide(row)
        before = await scene.store.dump()
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, ask)
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("decided", [False, True])
    async def test_a_newer_question_withdraws_the_older(self, scene: Scene, decided: bool) -> None:
        claimed = await scene.running()
        first = scene.ask(name="pay")
        old = await scene.asked(claimed, first)
        other = await scene.asked(claimed)
        if decided:
            await decided_as(scene, old, "decided")
            assert (await scene.operation(claimed, first.key)).state == "approved"
        last = (await scene.task(claimed)).last_event
        second = scene.ask(first.key, number=2, name="pay", position=first.position)
        new = await scene.asked(claimed, second)
        assert (await scene.approval(claimed, first.key)).state == "withdrawn"
        assert (new.state, new.number, new.id) == ("pending", 2, f"{claimed.task}:{first.key}~2")
        assert (await scene.approval(claimed, other.key)).state == "pending"
        kinds = await scene.kinds(claimed, after=last)
        assert sorted(kinds) == ["approval.requested", "approval.withdrawn"]
        events = await scene.events(claimed, after=last)
        [event] = [event for event in events if event.kind == "approval.withdrawn"]
        assert json.loads(event.data) == {"approval": old.id}
        row = await scene.operation(claimed, first.key)
        assert (row.state, row.request, row.arguments) == ("planned", second.request, second.arguments)
        # What was asked before decides nothing any more.
        await nothing_decides(scene, old, "conflict")

    @pytest.mark.parametrize("verdict", ["reject", "expire"])
    async def test_a_newer_question_leaves_what_is_over(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        old = await scene.asked(claimed)
        if verdict == "reject":
            await decided_as(scene, old, "decided", verdict="reject")
        else:
            scene.pass_time(HOUR)
            await scene.session(session=await session_of(scene, claimed))
            await scene.write(claimed, expire(old))
        was = await scene.approval(claimed, old.key)
        await scene.write(claimed, scene.ask(old.key, number=2))
        assert await scene.approval(claimed, old.key) == was

    @pytest.mark.parametrize("state", ["planned", "failed"])
    async def test_is_withdrawn_by_a_record_that_closes_it(self, scene: Scene, state: Any) -> None:
        claimed = await scene.running()
        old, other = await scene.asked(claimed), await scene.asked(claimed)
        row = await scene.operation(claimed, old.key)
        last = (await scene.task(claimed)).last_event
        record = RecordOperation(
            key=old.key,
            position=row.position,
            kind="tool",
            name=old.name,
            state=state,
            request=row.request,
            arguments=row.arguments,
            closes=True,
        )
        await scene.write(claimed, replace(record, closes=False, state="planned"))
        assert (await scene.approval(claimed, old.key)).state == "pending"
        await scene.write(claimed, record)
        assert (await scene.approval(claimed, old.key)).state == "withdrawn"
        assert (await scene.approval(claimed, other.key)).state == "pending"
        assert await scene.kinds(claimed, after=last) == ["approval.withdrawn"]
        await nothing_decides(scene, old, "conflict")
        # There is nothing left to close.
        await scene.write(claimed, record)
        assert await scene.kinds(claimed, after=last) == ["approval.withdrawn"]

    async def test_an_answered_one_is_not_withdrawn(self, scene: Scene) -> None:
        claimed = await scene.running()
        question = scene.ask(kind="signal", name="ask", subject="question")
        asked = await scene.asked(claimed, question)
        await decided_as(scene, asked, "decided", answer='"yes"')
        record = RecordOperation(
            key=question.key,
            position=question.position,
            kind="signal",
            name="ask",
            state="succeeded",
            request=question.request,
            result='"yes"',
            closes=True,
        )
        await scene.write(claimed, record)
        assert (await scene.approval(claimed, question.key)).state == "approved"

    async def test_about_an_unknown_call_leaves_it_unknown(self, scene: Scene) -> None:
        """Before it is sent again: what was sent may still have had its effect."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        was = await scene.operation(claimed, key)
        unsettled = await scene.rows("unsettled", claimed)
        asked = await scene.asked(claimed, scene.ask(key, name=was.name))
        assert await scene.operation(claimed, key) == was
        assert await scene.rows("unsettled", claimed) == unsettled
        await decided_as(scene, asked, "decided")
        assert (await scene.operation(claimed, key)).state == "unknown"

    async def test_parallel_questions_have_ids_of_their_own(self, scene: Scene) -> None:
        claimed = await scene.running()
        asks = [scene.ask(name="pay", shown="{}", fingerprint="same") for _ in range(3)]
        await scene.write(claimed, *asks)
        rows = await scene.store.read_approvals(claimed.tenant, claimed.task)
        assert {row.id for row in rows} == {f"{claimed.task}:{ask.key}~1" for ask in asks}
        [chosen] = [row for row in rows if row.key == asks[1].key]
        await decided_as(scene, chosen, "decided")
        assert [(await scene.approval(claimed, ask.key)).state for ask in asks] == [
            "pending",
            "approved",
            "pending",
        ]
        assert (await scene.task(claimed)).asks == 2


class TestExpiry:
    """The time of a question, by the database's clock."""

    @pytest.mark.parametrize("late", [-1, 0, 1])
    async def test_a_decision_at_the_boundary(self, scene: Scene, late: int) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(expires_in_us=7 * SECOND))
        last = (await scene.task(claimed)).last_event
        scene.now = (asked.expires_at or 0) + late
        if late < 0:
            await decided_as(scene, asked, "decided")
            return
        row = await decided_as(scene, asked, "expired")
        assert (row.state, row.decided_by, row.votes) == ("expired", None, 0)
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, json.loads(event.data)) == ("approval.expired", {"approval": asked.id})
        assert (await scene.operation(claimed, asked.key)).state == "planned"
        assert await scene.store.read_votes(asked.tenant, asked.id) == []
        assert await scene.store.read_audit(asked.tenant) == []
        await nothing_decides(scene, asked, "expired")

    @pytest.mark.parametrize("late", [-1, 0, 1])
    @pytest.mark.parametrize("decided", [False, True])
    async def test_the_workers_word_at_the_boundary(self, scene: Scene, decided: bool, late: int) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(expires_in_us=7 * SECOND))
        if decided:
            await decided_as(scene, asked, "decided")
        last = (await scene.task(claimed)).last_event
        scene.now = (asked.expires_at or 0) + late
        verdict = await scene.flush(claimed, expire(asked))
        if late < 0:
            assert verdict.refusals == ((0, "not_expired"),)
            assert (await scene.approval(claimed, asked.key)).state == ("approved" if decided else "pending")
            assert await scene.kinds(claimed, after=last) == []
            return
        assert verdict.refusals == ()
        assert (await scene.approval(claimed, asked.key)).state == "expired"
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, json.loads(event.data)) == ("approval.expired", {"approval": asked.id})
        # It may say so again, and that is all.
        before = await scene.store.dump()
        await scene.write(claimed, expire(asked))
        assert changed(before, await scene.store.dump()) == {}

    async def test_is_no_way_out_of_what_is_over_otherwise(self, scene: Scene) -> None:
        claimed = await scene.running()
        asks = {name: await scene.asked(claimed) for name in ("rejected", "withdrawn", "used", "none")}
        await decided_as(scene, asks["rejected"], "decided", verdict="reject")
        await scene.write(claimed, scene.ask(asks["withdrawn"].key, number=2))
        used = scene.ask(asks["used"].key, number=2)
        await decided_as(scene, await scene.asked(claimed, used), "decided")
        await scene.write(claimed, scene.agreed_intent(used))
        await scene.session(ttl_us=9 * HOUR, session=await session_of(scene, claimed))
        scene.pass_time(2 * HOUR)
        before = await scene.store.dump()
        verdict = await scene.flush(
            claimed,
            expire(asks["rejected"]),
            expire(asks["withdrawn"]),
            expire(asks["used"], number=2),
            expire(asks["none"], number=3),
            expire(asks["none"], key="missing"),
        )
        assert verdict.refusals == tuple((place, "not_expired") for place in range(5))
        assert changed(before, await scene.store.dump()) == {}

    async def test_without_a_time_it_is_never_over(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=9 * HOUR)
        asked = await scene.asked(claimed, scene.ask(expires_in_us=None))
        scene.pass_time(8 * HOUR)
        assert (await scene.flush(claimed, expire(asked))).refusals == ((0, "not_expired"),)
        await decided_as(scene, asked, "decided")

    async def test_of_a_task_that_waits_is_told_to_it(self, scene: Scene) -> None:
        """Whoever finds out first: the task must not sleep on."""
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(expires_in_us=7 * SECOND))
        await scene.write(claimed, scene.suspension("approval"))
        scene.pass_time(7 * SECOND)
        await decided_as(scene, asked, "expired")
        assert (await scene.task(claimed)).state == "queued"


class TestApprovalViews:
    """What people read."""

    async def test_lists_by_age_state_and_task(self, scene: Scene) -> None:
        claimed, other = await scene.running(), await scene.running()
        foreign = await scene.running(tenant="tenant-blue")
        rows = []
        for of in (claimed, other, claimed, foreign, claimed):
            scene.pass_time(SECOND)
            rows.append(await scene.asked(of))
        await decided_as(scene, rows[2], "decided")

        async def listed(**query: Any) -> list[str]:
            query = {"tenant": scene.tenant, **query}
            return [row.id for row in await scene.store.list_approvals(ApprovalFilter(**query))]

        assert await listed() == [rows[0].id, rows[1].id, rows[4].id]
        assert await listed(tenant="tenant-blue") == [rows[3].id]
        assert await listed(state="approved") == [rows[2].id]
        assert await listed(state=None) == [rows[n].id for n in (0, 1, 2, 4)]
        assert await listed(state=None, task=claimed.task) == [rows[n].id for n in (0, 2, 4)]
        assert await listed(limit=2) == [rows[0].id, rows[1].id]
        assert await listed(after=(rows[0].created_at, rows[0].id)) == [rows[1].id, rows[4].id]
        assert await scene.store.read_approval("tenant-blue", rows[0].id) is None
        assert await scene.store.read_votes("tenant-blue", rows[2].id) == []

    async def test_of_one_age_are_listed_once(self, scene: Scene) -> None:
        claimed = await scene.running()
        for _ in range(5):
            await scene.asked(claimed)
        seen: list[str] = []
        after: tuple[int, str] | None = None
        while page := await scene.store.list_approvals(
            ApprovalFilter(tenant=scene.tenant, after=after, limit=2)
        ):
            after = (page[-1].created_at, page[-1].id)
            seen += [row.id for row in page]
        assert seen == sorted(set(seen))
        assert len(seen) == 5

    async def test_of_a_task_by_operation_and_number(self, scene: Scene) -> None:
        claimed = await scene.running()
        for key, number in (("b", 1), ("a", 1), ("a", 2), ("c", 1)):
            await scene.write(claimed, scene.ask(key, number=number))
        rows = await scene.store.read_approvals(claimed.tenant, claimed.task)
        assert [(row.key, row.number) for row in rows] == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
        assert await scene.store.read_approvals("tenant-blue", claimed.task) == []
        assert (await scene.task(claimed)).asks == 3
        claims: list[Claimed] = [claimed]
        [loaded] = await scene.store.load(claims)
        assert list(loaded.approvals) == rows
