"""Trying again, other versions, a person's nudge, and verdicts on finished work."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.core.transitions import TASK
from outlast.store.changing import (
    Acceptance,
    AcceptanceRow,
    Accepted,
    Adopt,
    Adopted,
    Retried,
    Retry,
    VersionRow,
)
from outlast.store.records import ANY_VERSION, Claimed, Serves, SessionRenewal, TaskRef
from outlast.store.rows import OperationFilter, SessionRow
from outlast.testing.store_suite.guards import refuses
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Backdoor, Scene, changed

__all__ = ["TestAccept", "TestAdopt", "TestRetry", "TestUsage", "TestVersions", "TestWake"]


def retry_of(scene: Scene, of: Any, **changes: Any) -> Retry:
    """Make a person's wish that a task be tried again."""
    record = Retry(
        tenant=of.tenant,
        task=of.task,
        by=f"person:ria-{scene.number()}",
        reason=f"reason-{scene.number()}",
    )
    return replace(record, **changes)


async def retry(scene: Scene, of: Any, **changes: Any) -> Retried:
    """Have a task tried again."""
    [retried] = await scene.store.retry([retry_of(scene, of, **changes)], now=scene.now)
    return retried


async def failed(scene: Scene, **changes: Any) -> Claimed:
    """Have a task that has failed; answer its last lease."""
    claimed = await scene.running(**changes)
    await scene.write(claimed, scene.failure())
    return claimed


async def audited(scene: Scene, what: str) -> dict[str, Any]:
    """Read the one row of the audit trail about this."""
    [row] = [row for row in (await scene.store.dump())["audit"] if row["what"] == what]
    return row


class TestRetry:
    """The verb ``retry``."""

    async def test_opens_the_next_round_of_a_failed_task(self, scene: Scene) -> None:
        claimed = await failed(scene, deadline_us=7 * HOUR)
        before = await scene.task(claimed)
        scene.pass_time(9 * SECOND)
        asked = retry_of(scene, claimed, deadline_us=3 * HOUR)
        assert await scene.store.retry([asked], now=scene.now) == [
            Retried(kind="retried", state="queued", round=ROUND + 1)
        ]
        task = await scene.task(claimed)
        assert (task.state, task.reason, task.round, task.epoch) == ("queued", None, ROUND + 1, claimed.epoch)
        assert (task.result, task.error, task.ended_at) == (None, None, None)
        assert task.deadline_at == scene.now + 3 * HOUR
        [timer] = await scene.rows("timers", claimed)
        assert (timer["kind"], timer["due_at"]) == ("deadline", scene.now + 3 * HOUR)
        assert [row["round"] for row in await scene.rows("results", claimed)] == [ROUND]
        [event] = await scene.events(claimed, after=before.last_event)
        assert (event.kind, event.epoch, event.number) == ("task.retried", 0, before.last_event + 1)
        assert json.loads(event.data) == {"by": asked.by, "reason": asked.reason, "round": ROUND + 1}
        row = await audited(scene, "retry")
        assert (row["who"], row["subject"], row["reason"]) == (asked.by, claimed.task, asked.reason)
        assert (row["tenant"], row["at"]) == (claimed.tenant, scene.now)
        assert json.loads(row["data"]) == {"round": ROUND + 1, "reopen": []}

    async def test_a_new_round_without_a_deadline_has_none(self, scene: Scene) -> None:
        claimed = await failed(scene, deadline_us=7 * HOUR)
        await retry(scene, claimed)
        assert (await scene.task(claimed)).deadline_at is None
        assert await scene.rows("timers", claimed) == []
        again = await scene.claim_task(claimed)
        scene.pass_time(8 * HOUR)
        assert (await scene.sweep()).expired == ()
        assert (again.epoch, again.round, again.deadline_at) == (claimed.epoch + 1, ROUND + 1, None)

    async def test_a_cancelled_task_bears_no_mark_in_its_next_round(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed, undo=True)
        await scene.write(claimed, scene.failure())
        assert (await scene.task(claimed)).state == "cancelled"
        assert (await retry(scene, claimed)).kind == "retried"
        again = await scene.claim_task(claimed)
        assert not again.cancelling
        await scene.write(again, scene.intent(), scene.success())
        task = await scene.task(claimed)
        assert (task.state, task.round) == ("succeeded", ROUND + 1)
        assert [row["state"] for row in await scene.rows("results", claimed)] == ["cancelled", "succeeded"]

    async def test_reopens_the_failed_operations_that_are_named(self, scene: Scene) -> None:
        claimed = await scene.running()
        again = await scene.called(claimed, "failed")
        other = await scene.called(claimed, "failed")
        done = await scene.called(claimed, "succeeded")
        before = {key: await scene.operation(claimed, key) for key in (again, other, done)}
        await scene.write(claimed, scene.failure())
        await retry(scene, claimed, reopen=(again, done, "nothing"))
        opened = await scene.operation(claimed, again)
        assert (opened.state, opened.error, opened.ended_at) == ("planned", None, None)
        assert (opened.attempt, opened.turn) == (before[again].attempt, before[again].turn)
        assert await scene.operation(claimed, other) == before[other]
        assert await scene.operation(claimed, done) == before[done]

    @pytest.mark.parametrize("state", [*sorted(set(TASK.states) - TASK.final), "succeeded"])
    async def test_refuses_what_lives_and_what_has_succeeded(self, scene: Scene, state: str) -> None:
        of: Any = await (scene.submit() if state == "queued" else scene.running())
        if state == "waiting":
            await scene.write(of, scene.suspension("signal"))
        elif state == "succeeded":
            await scene.write(of, scene.success())
        before = await scene.store.dump()
        assert await retry(scene, of) == Retried(kind="not_ended", state=state, round=ROUND)
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("state", ["succeeded", "unknown", "failed"])
    async def test_refuses_where_something_was_undone_or_may_have_been(
        self, scene: Scene, state: Any
    ) -> None:
        claimed = await scene.running()
        await scene.called(claimed, state, kind="compensation")
        await scene.write(claimed, scene.failure())
        retried = await retry(scene, claimed)
        if state == "failed":
            assert retried.kind == "retried"
        else:
            assert retried == Retried(kind="undone", state="failed", round=ROUND)
            assert (await scene.task(claimed)).state == "failed"

    async def test_knows_no_task_of_another_tenant(self, scene: Scene) -> None:
        claimed = await failed(scene)
        assert await retry(scene, claimed, tenant="tenant-red") == Retried(kind="not_found")
        assert (await scene.task(claimed)).state == "failed"

    async def test_answers_each_in_order_and_opens_one_round(self, scene: Scene) -> None:
        first, second = await failed(scene), await scene.running()
        asked = [retry_of(scene, of) for of in (second, first, first)]
        assert await scene.store.retry(asked, now=scene.now) == [
            Retried(kind="not_ended", state="running", round=ROUND),
            Retried(kind="retried", state="queued", round=ROUND + 1),
            Retried(kind="not_ended", state="queued", round=ROUND + 1),
        ]
        assert len(await scene.rows("queue", first)) == 1


async def adoption(scene: Scene, of: Any, version: str, **changes: Any) -> Adopt:
    """Make the wish that a task be bound to a version, by what can be seen of it now."""
    task = await scene.task(of)
    record = Adopt(
        tenant=of.tenant,
        task=of.task,
        version=version,
        seen_version=task.version,
        seen_epoch=task.epoch,
        seen_event=task.last_event,
        by=f"person:ada-{scene.number()}",
        reason=f"reason-{scene.number()}",
    )
    return replace(record, **changes)


async def adopt(scene: Scene, of: Any, version: str, **changes: Any) -> Adopted:
    """Bind a task to a version."""
    [adopted] = await scene.store.adopt([await adoption(scene, of, version, **changes)], now=scene.now)
    return adopted


class TestAdopt:
    """The verb ``adopt``."""

    async def test_moves_a_waiting_task_into_the_versions_lane(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-1")
        await scene.write(claimed, scene.suspension("operator", wake_in_us=HOUR))
        last = (await scene.task(claimed)).last_event
        scene.pass_time(5 * SECOND)
        asked = await adoption(scene, claimed, "version-2")
        assert await scene.store.adopt([asked], now=scene.now) == [Adopted(kind="adopted", state="queued")]
        task = await scene.task(claimed)
        assert (task.state, task.reason, task.version, task.epoch) == ("queued", None, "version-2", 1)
        assert await scene.rows("timers", claimed) == []
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, event.epoch, event.at) == ("task.adopted", 0, scene.now)
        assert json.loads(event.data) == {"from": "version-1", "version": "version-2", "by": asked.by}
        row = await audited(scene, "adopt")
        assert (row["who"], row["subject"], row["reason"]) == (asked.by, claimed.task, asked.reason)
        assert json.loads(row["data"]) == {"from": "version-1", "version": "version-2"}

    async def test_a_queued_task_is_claimed_for_its_new_version_alone(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-1")
        await scene.write(claimed, scene.release())
        assert (await adopt(scene, claimed, "version-2")).kind == "adopted"
        assert len(await scene.rows("queue", claimed)) == 1
        session = await scene.session()
        old = await scene.claim(
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="version-1")]
        )
        assert old.claims == ()
        new = await scene.claim(
            session, pools=[record.pool], serves=[Serves(agent=record.agent, version="version-2")]
        )
        assert [(one.task, one.version, one.epoch) for one in new.claims] == [(record.task, "version-2", 2)]

    async def test_an_entry_that_is_left_in_its_old_lane_claims_nothing(
        self, scene: Scene, backdoor: Backdoor
    ) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-1")
        await scene.write(claimed, scene.release())
        [head] = await scene.rows("tasks", claimed)
        await adopt(scene, claimed, "version-2")
        await backdoor.run(
            "insert into queue (lane, seq, tenant, task)"
            f" values ({head['lane']}, 999999, '{claimed.tenant}', '{claimed.task}')"
        )
        serves = [Serves(agent=record.agent, version="version-1")]
        reply = await scene.claim(await scene.session(), pools=[record.pool], serves=serves)
        assert reply.claims == ()
        assert (await scene.claim_task(record, version="version-2")).epoch == claimed.epoch + 1

    async def test_there_and_back_again(self, scene: Scene) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-1")
        await scene.write(claimed, scene.release())
        for version in ("version-2", "version-1", "version-1"):
            assert (await adopt(scene, claimed, version)).kind == "adopted"
        again = await scene.claim_task(record, version="version-1")
        assert (again.version, again.epoch) == ("version-1", 2)
        await scene.write(again, scene.success())
        assert await scene.rows("queue", claimed) == []

    async def test_a_task_that_has_not_begun_is_left_to_its_time(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now + HOUR)
        assert await adopt(scene, record, "version-8") == Adopted(kind="adopted", state="waiting")
        task = await scene.task(record)
        assert (task.state, task.reason, task.version) == ("waiting", "timer", "version-8")
        assert await scene.rows("queue", record) == []
        scene.pass_time(2 * HOUR)
        await scene.sweep()
        assert (await scene.claim_task(record, version="version-8")).version == "version-8"

    @pytest.mark.parametrize(
        "seen", [{"seen_version": "version-0"}, {"seen_epoch": 99}, {"seen_event": 1}], ids=str
    )
    async def test_refuses_what_has_moved_since_it_was_seen(self, scene: Scene, seen: dict[str, Any]) -> None:
        claimed = await scene.waiting("operator")
        before = await scene.store.dump()
        moved = await adopt(scene, claimed, "version-2", **seen)
        assert moved == Adopted(kind="moved", state="waiting")
        assert changed(before, await scene.store.dump(), ignoring=("writers", "lanes")) == {}

    async def test_refuses_what_runs_and_what_has_ended(self, scene: Scene) -> None:
        claimed = await scene.running()
        assert await adopt(scene, claimed, "version-2") == Adopted(kind="running", state="running")
        await scene.write(claimed, scene.failure())
        assert await adopt(scene, claimed, "version-2") == Adopted(kind="ended", state="failed")
        asked = await adoption(scene, claimed, "version-2", tenant="tenant-red")
        assert await scene.store.adopt([asked], now=scene.now) == [Adopted(kind="not_found")]
        assert (await scene.task(claimed)).version == claimed.version


class TestWake:
    """The verb ``wake``."""

    async def test_queues_what_waits_for_an_operator(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.suspension("operator", wake_in_us=HOUR))
        last = (await scene.task(claimed)).last_event
        ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
        assert await scene.store.wake(ref, "person:wim", "look again", now=scene.now)
        assert not await scene.store.wake(ref, "person:wim", "look again", now=scene.now)
        assert (await scene.task(claimed)).state == "queued"
        assert await scene.rows("timers", claimed) == []
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, json.loads(event.data)) == ("task.woken", {"reason": "operator"})
        row = await audited(scene, "wake")
        assert (row["who"], row["subject"], row["reason"]) == ("person:wim", claimed.task, "look again")
        assert (await scene.claim_task(claimed)).epoch == claimed.epoch + 1

    @pytest.mark.parametrize("reason", ["timer", "signal"])
    async def test_leaves_what_waits_for_something_else(self, scene: Scene, reason: str) -> None:
        claimed = await scene.waiting(reason)
        for tenant in (claimed.tenant, "tenant-red"):
            ref = TaskRef(tenant=tenant, task=claimed.task)
            assert not await scene.store.wake(ref, "person:wim", "look again", now=scene.now)
        assert (await scene.task(claimed)).reason == reason


def verdict_on(scene: Scene, of: Any, verdict: Any = "accepted", **changes: Any) -> Acceptance:
    """Make a person's verdict on a task's work."""
    record = Acceptance(
        tenant=of.tenant,
        task=of.task,
        verdict=verdict,
        by=f"person:jo-{scene.number()}",
        reason=f"reason-{scene.number()}",
        evidence=scene.text("seen"),
    )
    return replace(record, **changes)


async def accept(scene: Scene, of: Any, verdict: Any = "accepted", **changes: Any) -> Accepted:
    """Judge a task's work."""
    [accepted] = await scene.store.accept([verdict_on(scene, of, verdict, **changes)], now=scene.now)
    return accepted


class TestAccept:
    """The verb ``accept``, and the verdict of a checker with the end."""

    async def test_keeps_verdicts_and_shows_the_last(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success())
        last = (await scene.task(claimed)).last_event
        assert (await scene.task(claimed)).accepted is None
        first = verdict_on(scene, claimed, "rejected")
        assert await scene.store.accept([first], now=scene.now) == [
            Accepted(kind="recorded", number=1, state="succeeded")
        ]
        assert (await scene.task(claimed)).accepted == "rejected"
        earlier = scene.now
        scene.pass_time(4 * SECOND)
        second = verdict_on(scene, claimed, "accepted", seen=1)
        assert (await scene.store.accept([second], now=scene.now))[0].number == 2
        task = await scene.task(claimed)
        assert (task.state, task.accepted, task.last_event) == ("succeeded", "accepted", last + 2)
        assert await scene.store.read_acceptances(claimed.tenant, claimed.task) == [
            AcceptanceRow(
                round=ROUND,
                number=number,
                verdict=one.verdict,
                by=one.by,
                reason=one.reason,
                evidence=one.evidence,
                at=at,
            )
            for number, one, at in ((1, first, earlier), (2, second, scene.now))
        ]
        events = await scene.events(claimed, after=last)
        assert [event.kind for event in events] == ["task.rejected", "task.accepted"]
        assert json.loads(events[0].data) == {"by": first.by, "reason": first.reason, "number": 1}
        row = await audited(scene, "accept:accepted")
        assert (row["who"], row["subject"], row["reason"]) == (second.by, claimed.task, second.reason)
        assert json.loads(row["data"]) == {"number": 2, "evidence": json.loads(second.evidence)}

    async def test_refuses_who_has_not_seen_the_last_verdict(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success())
        both = [verdict_on(scene, claimed, "accepted"), verdict_on(scene, claimed, "rejected")]
        answers = await scene.store.accept(both, now=scene.now)
        assert [answer.kind for answer in answers] == ["recorded", "conflict"]
        assert answers[1] == Accepted(kind="conflict", number=1, state="succeeded")
        assert await accept(scene, claimed, "accepted", seen=1) == answers[1]
        assert (await scene.task(claimed)).accepted == "accepted"
        assert len(await scene.store.read_acceptances(claimed.tenant, claimed.task)) == 1

    async def test_judges_only_what_has_succeeded(self, scene: Scene) -> None:
        claimed = await scene.running()
        assert await accept(scene, claimed) == Accepted(kind="not_ended", state="running")
        await scene.write(claimed, scene.failure())
        assert await accept(scene, claimed) == Accepted(kind="not_ended", state="failed")
        assert await accept(scene, claimed, tenant="tenant-red") == Accepted(kind="not_found")

    async def test_a_checkers_verdict_comes_with_the_end(self, scene: Scene) -> None:
        claimed = await scene.running()
        evidence = scene.text("measured")
        judged = ("rejected", "checker:totals", "a sum is wrong", evidence)
        await scene.write(claimed, scene.success(judged=judged))
        assert (await scene.task(claimed)).accepted == "rejected"
        [row] = await scene.store.read_acceptances(claimed.tenant, claimed.task)
        assert (row.round, row.number, row.verdict, row.by, row.reason, row.evidence, row.at) == (
            ROUND,
            1,
            *judged,
            scene.now,
        )
        # The end stays the last event of what a worker says.
        kinds = await scene.kinds(claimed)
        assert kinds[-3:] == ["attempt.succeeded", "task.rejected", "task.succeeded"]
        assert (await scene.events(claimed))[-2].epoch == claimed.epoch
        assert (await audited(scene, "accept:rejected"))["who"] == "checker:totals"
        assert (await accept(scene, claimed, "accepted", seen=1)).number == 2

    async def test_a_cancel_leaves_nothing_to_judge(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.cancel(claimed)
        await scene.write(claimed, scene.success(judged=("accepted", "checker:totals", "fine", "{}")))
        assert (await scene.task(claimed)).state == "cancelled"
        assert await scene.store.read_acceptances(claimed.tenant, claimed.task) == []

    async def test_verdicts_are_never_changed(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success())
        await accept(scene, claimed)
        await refuses(
            scene,
            backdoor,
            "update acceptances set verdict = 'rejected'",
            "update acceptances set reason = 'another'",
            "delete from acceptances",
        )


class TestVersions:
    """The views ``list_versions`` and ``list_sessions``."""

    async def test_lists_the_sessions_that_live_with_what_they_say(self, scene: Scene) -> None:
        records = [
            SessionRenewal(
                session=f"session-{number}",
                name=f"name-{number}",
                ttl_us=number * HOUR,
                serves=json.dumps({"pools": [number]}),
            )
            for number in (3, 2, 1)
        ]
        for hours, record in enumerate(records):
            # One that has run out, though nobody has swept it yet.
            began = scene.now - 2 * HOUR if record.ttl_us == HOUR else scene.now + hours * SECOND
            await scene.store.renew(record, now=began)
        assert await scene.store.list_sessions() == [
            SessionRow(
                session=record.session,
                name=record.name,
                serves=record.serves,
                started_at=scene.now + number * SECOND,
                expires_at=scene.now + number * SECOND + record.ttl_us,
            )
            for number, record in enumerate(records[:2])
        ]
        await scene.store.retire("session-3")
        assert [one.session for one in await scene.store.list_sessions()] == ["session-2"]

    async def test_counts_what_lives_by_version_and_who_serves_it(self, scene: Scene) -> None:
        agent, pool = f"agent-{scene.number()}", f"pool-{scene.number()}"

        async def have(count: int, version: str) -> list[Claimed]:
            records = [await scene.submit(agent=agent, pool=pool, version=version) for _ in range(count)]
            reply = await scene.claim(
                await scene.session(),
                pools=[pool],
                serves=[Serves(agent=agent, version=version)],
                limit=count,
            )
            assert len(reply.claims) == len(records)
            return list(reply.claims)

        old = await have(6, "version-1")
        await scene.write(old[0], scene.release())
        for one in old[1:3]:
            await scene.write(one, scene.suspension("signal"))
        await scene.write(old[3], scene.success())
        await have(1, "version-2")
        await scene.submit(agent=agent, pool=pool)
        await scene.submit(agent=agent, pool=pool, tenant="tenant-red")
        await scene.submit(agent="agent-other", pool=pool, version="version-1")
        for number, serves in enumerate(
            ([[agent, "version-1"], [agent, "version-2"]], [[agent, "version-1"]])
        ):
            await scene.store.renew(
                SessionRenewal(
                    session=f"session-{number}",
                    name=f"name-{number}",
                    ttl_us=HOUR,
                    serves=json.dumps({"pools": [pool], "agents": serves}),
                ),
                now=scene.now,
            )
        mine = [
            VersionRow(agent=agent, version=ANY_VERSION, queued=1, running=0, waiting=0, served_by=2),
            VersionRow(agent=agent, version="version-1", queued=1, running=2, waiting=2, served_by=2),
            VersionRow(agent=agent, version="version-2", queued=0, running=1, waiting=0, served_by=1),
            VersionRow(agent="agent-other", version="version-1", queued=1, running=0, waiting=0, served_by=0),
        ]
        assert await scene.store.list_versions(scene.tenant) == mine
        everybody = await scene.store.list_versions()
        assert everybody == [replace(mine[0], queued=2), *mine[1:]]
        assert await scene.store.list_versions("tenant-blue") == []

    async def test_a_lost_session_serves_nothing(self, scene: Scene) -> None:
        record = await scene.submit(version="version-1")
        await scene.store.renew(
            SessionRenewal(
                session="session-lost",
                name="name-lost",
                ttl_us=SECOND,
                serves=json.dumps({"agents": [[record.agent, "version-1"]]}),
            ),
            now=scene.now,
        )
        scene.pass_time(2 * SECOND)
        await scene.sweep()
        [row] = await scene.store.list_versions(scene.tenant)
        assert (row.queued, row.served_by) == (1, 0)


class TestUsage:
    """What a task may spend, how deep it is, and what its calls have spent."""

    async def test_a_budget_is_handed_to_the_worker_and_shown(self, scene: Scene) -> None:
        budget = scene.text("operations")
        claimed = await scene.running(budget=budget)
        [loaded] = await scene.store.load([claimed])
        assert (loaded.budget, loaded.depth, loaded.issued) == (budget, 0, ())
        assert (await scene.task(claimed)).budget == budget
        free = await scene.running()
        assert (await scene.store.load([free]))[0].budget is None

    async def test_a_child_is_one_deeper_than_its_parent(self, scene: Scene) -> None:
        grandparent = await scene.running()
        parent = await scene.claim_task(await scene.child(grandparent))
        budget = scene.text("budget")
        child = await scene.claim_task(await scene.child(parent, budget=budget))
        depths = [one.depth for one in await scene.store.load([child, grandparent, parent])]
        assert depths == [2, 0, 1]
        assert (await scene.task(child)).budget == budget

    async def test_an_outcome_keeps_what_was_spent(self, scene: Scene) -> None:
        claimed = await scene.running()
        key, silent = await scene.called(claimed), await scene.called(claimed)
        first, second = scene.text("tokens"), scene.text("tokens")
        await scene.write(
            claimed,
            await scene.outcome(claimed, silent, "succeeded"),
            await scene.outcome(claimed, key, "planned", usage=first),
        )
        assert (await scene.operation(claimed, key)).usage == first
        assert (await scene.operation(claimed, silent)).usage is None
        row = await scene.operation(claimed, key)
        await scene.write(claimed, scene.intent(key, attempt=row.attempt, turn=row.turn))
        assert (await scene.operation(claimed, key)).usage == first
        await scene.write(claimed, await scene.outcome(claimed, key, "unknown", usage=second))
        [listed] = await scene.store.list_operations(OperationFilter(tenant=claimed.tenant, state="unknown"))
        assert (listed.key, listed.usage) == (key, second)
        await scene.write(claimed, await scene.outcome(claimed, key, "succeeded"))
        [loaded] = await scene.store.load([claimed])
        assert {one.key: one.usage for one in loaded.operations} == {key: second, silent: None}
