"""``read_passage`` and ``admit``: all that decides whether a request of a running operation may leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.store.entries import AdoptIssued
from outlast.store.passing import PASSED_BOUND, Passage, PassageNote
from outlast.store.reconciling import EVERY_TENANT, Pause
from outlast.store.records import Claimed, Evidence
from outlast.testing.store_suite.forking import forked
from outlast.testing.store_suite.posting import session_of
from outlast.testing.store_suite.scene import SECOND, Scene, changed

__all__ = ["TestAdmit", "TestPassage"]


async def passage(scene: Scene, of: Claimed, key: str) -> Passage:
    """Read the passage of an operation that exists."""
    found = await scene.store.read_passage(of.tenant, of.task, key, now=scene.now)
    assert found is not None
    return found


class TestPassage:
    """The view ``read_passage``."""

    async def test_shows_every_value_in_its_place(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=43 * SECOND, trace="00-trace")
        opened_at = scene.now
        scene.pass_time(3 * SECOND)
        intent = scene.intent(timeout_us=11 * SECOND)
        await scene.write(claimed, intent)
        sent_at = scene.now
        scene.pass_time(2 * SECOND)
        assert await passage(scene, claimed, intent.key) == Passage(
            now=scene.now,
            task_state="running",
            task_epoch=claimed.epoch,
            cancelling=False,
            lease_epoch=claimed.epoch,
            lease_until=opened_at + 43 * SECOND,
            kind="tool",
            tool=intent.name,
            state="running",
            attempt=1,
            epoch=claimed.epoch,
            deadline_at=sent_at + 11 * SECOND,
            decision=intent.decision,
            paused=False,
            approval=None,
            approval_state=None,
            approval_fingerprint=None,
            approval_spent=False,
            trace="00-trace",
            idempotency_key=None,
        )

    async def test_reads_the_databases_clock(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        before = (await scene.store.health()).now
        found = await scene.store.read_passage(claimed.tenant, claimed.task, key)
        assert found is not None
        assert before <= found.now <= (await scene.store.health()).now

    async def test_there_is_none_of_what_is_not_there(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        for tenant, task, of in (
            ("tenant-blue", claimed.task, key),
            (claimed.tenant, scene.submission().task, key),
            (claimed.tenant, claimed.task, "another"),
        ):
            assert await scene.store.read_passage(tenant, task, of) is None

    async def test_shows_a_lease_that_is_lost_and_the_one_that_follows(self, scene: Scene) -> None:
        submission = await scene.submit()
        claimed = await scene.claim_task(submission)
        key = await scene.called(claimed)
        await scene.lose(claimed)
        found = await passage(scene, claimed, key)
        assert (found.task_state, found.lease_epoch, found.lease_until) == ("queued", None, None)
        assert found.task_epoch > claimed.epoch
        again = await scene.claim_task(submission, ttl_us=31 * SECOND)
        found = await passage(scene, claimed, key)
        assert (found.task_state, found.task_epoch, found.lease_epoch) == (
            "running",
            again.epoch,
            again.epoch,
        )
        assert (found.lease_until, found.epoch) == (scene.now + 31 * SECOND, claimed.epoch)

    async def test_shows_a_cancel_that_stands(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        await scene.cancel(claimed)
        found = await passage(scene, claimed, key)
        assert (found.cancelling, found.task_state, found.state) == (True, "running", "running")

    @pytest.mark.parametrize("state", ["unknown", "succeeded", "failed"])
    async def test_shows_how_an_operation_ended(self, scene: Scene, state: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, state)  # type: ignore[arg-type]
        assert (await passage(scene, claimed, key)).state == state

    async def test_shows_the_switches_that_stand_for_the_tool(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, name="pay")
        for tenant, scope, paused in (
            (claimed.tenant, "tool:other", False),
            ("tenant-blue", "all", False),
            (EVERY_TENANT, "tool:pay", True),
            (claimed.tenant, "tool:pay", True),
            (EVERY_TENANT, "all", True),
            (claimed.tenant, "all", True),
        ):
            switch = Pause(tenant=tenant, scope=scope, reason="maintenance", by="person:ann")
            await scene.store.pause(switch)
            assert (await passage(scene, claimed, key)).paused is paused, switch
            await scene.store.resume(switch)
            assert not (await passage(scene, claimed, key)).paused

    async def test_shows_the_last_question_that_was_not_withdrawn(self, scene: Scene) -> None:
        claimed = await scene.running()
        first = scene.ask()
        await scene.decide(await scene.asked(claimed, first))
        found = await passage(scene, claimed, first.key)
        assert (found.approval, found.approval_state) == (1, "approved")
        assert (found.state, found.approval_fingerprint) == ("approved", first.fingerprint)
        await scene.write(claimed, scene.agreed_intent(first))
        found = await passage(scene, claimed, first.key)
        assert (found.state, found.approval_state, found.approval_spent) == ("running", "used", False)
        assert found.decision == found.approval_fingerprint == first.fingerprint
        second = replace(first, number=2, fingerprint="fingerprint-two")
        asked = scene.ask("beside")
        await scene.asked(claimed, asked)
        await scene.asked(claimed, replace(asked, number=2, fingerprint=second.fingerprint))
        found = await passage(scene, claimed, "beside")
        assert (found.approval, found.approval_state, found.approval_fingerprint) == (
            2,
            "pending",
            "fingerprint-two",
        )

    async def test_shows_that_a_decision_is_spent(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = scene.ask()
        await scene.decide(await scene.asked(claimed, ask))
        await scene.write(claimed, scene.agreed_intent(ask))
        await scene.write(claimed, await scene.outcome(claimed, ask.key, "unknown"))
        await scene.store.settle([scene.settlement(claimed, ask.key)], now=scene.now)
        found = await passage(scene, claimed, ask.key)
        assert (found.approval, found.approval_state, found.approval_spent) == (1, "used", True)

    async def test_shows_what_a_gateway_noted_and_nothing_else(self, scene: Scene) -> None:
        claimed = await scene.running()
        key, other = await scene.called(claimed), await scene.called(claimed)
        notes = [
            Evidence(
                tenant=claimed.tenant,
                task=claimed.task,
                key=of,
                attempt=attempt,
                source=source,
                data=scene.text("noted"),
            )
            for of, attempt, source in (
                (key, 3, "gateway"),
                (key, 1, "late"),
                (other, 5, "gateway"),
                (key, 2, "gateway"),
            )
        ]
        for note in notes:
            await scene.store.note([note], now=scene.now)
        assert (await passage(scene, claimed, key)).notes == (
            PassageNote(attempt=3, data=notes[0].data),
            PassageNote(attempt=2, data=notes[3].data),
        )

    async def test_shows_the_oldest_notes_up_to_a_bound(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        note = Evidence(
            tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="gateway", data="{}"
        )
        first = replace(note, data=scene.text("first"))
        await scene.store.note([first, *[note] * PASSED_BOUND], now=scene.now)
        notes = (await passage(scene, claimed, key)).notes
        assert (len(notes), notes[0].data) == (PASSED_BOUND, first.data)

    async def test_shows_the_key_that_a_fork_goes_on_under_and_all_that_went_under_it(
        self, scene: Scene
    ) -> None:
        # Three forks in a row: the first has made the call anew, and the others take that one over.
        tasks = [await scene.submit()]
        said = []
        for attempt in (1, 1, 2, 3):
            claimed = await scene.claim_task(tasks[-1])
            if attempt == 1:
                await scene.write(claimed, scene.intent("call-a"))
            else:
                await scene.write(claimed, AdoptIssued(key="call-a", position=scene.number()))
            scene.pass_time(SECOND)
            said.append(passing(claimed, "call-a", attempt, scene.text("noted")))
            await scene.store.note([said[-1], replace(said[-1], key="call-b")], now=scene.now)
            tasks.append(await forked(scene, tasks[-1], "call-a"))
        sent = [None, None, *[f"{tasks[1].task}:call-a"] * 2]
        for place, (record, key) in enumerate(zip(tasks, sent, strict=False)):
            found = await scene.store.read_passage(record.tenant, record.task, "call-a", now=scene.now)
            assert found is not None
            shown = said[min(place, 1) : place + 1]
            assert found.idempotency_key == key
            assert found.notes == tuple(PassageNote(attempt=one.attempt, data=one.data) for one in shown)
        [admitted] = await scene.store.admit([said[-1]], now=scene.now)
        assert admitted is not None
        assert (admitted.idempotency_key, len(admitted.notes)) == (sent[-1], 4)

    async def test_a_session_that_is_renewed_lives_on(self, scene: Scene) -> None:
        claimed = await scene.running(ttl_us=10 * SECOND)
        key = await scene.called(claimed)
        scene.pass_time(9 * SECOND)
        await scene.session(20 * SECOND, await session_of(scene, claimed))
        assert (await passage(scene, claimed, key)).lease_until == scene.now + 20 * SECOND


def passing(of: Claimed, key: str, attempt: int = 1, data: str = "{}") -> Evidence:
    """Make the note of a request that is about to leave."""
    return Evidence(tenant=of.tenant, task=of.task, key=key, attempt=attempt, source="gateway", data=data)


class TestAdmit:
    """The verb ``admit``."""

    async def test_keeps_the_note_and_answers_what_decides(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        before = await passage(scene, claimed, key)
        data = scene.text("noted")
        before_dump = await scene.store.dump()
        assert await scene.store.admit([passing(claimed, key, 3, data)], now=scene.now) == [
            replace(before, notes=(PassageNote(attempt=3, data=data),))
        ]
        [row] = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
        assert (row.attempt, row.source, row.data, row.at, row.says) == (3, "gateway", data, scene.now, None)
        assert set(changed(before_dump, await scene.store.dump())) == {"evidence"}

    async def test_answers_in_order_and_sees_all_of_its_batch(self, scene: Scene) -> None:
        one, other = await scene.running(), await scene.running(tenant="tenant-blue")
        key, beside = await scene.called(one), await scene.called(other)
        batch = [passing(other, beside), passing(one, key), passing(one, "none"), passing(one, key)]
        found = await scene.store.admit(batch, now=scene.now)
        decisions = [
            (await scene.operation(of, at)).decision for of, at in ((other, beside), (one, key), (one, key))
        ]
        assert [each and each.decision for each in found] == [*decisions[:2], None, decisions[2]]
        assert [each and len(each.notes) for each in found] == [1, 2, None, 2]
        assert await scene.store.read_evidence(one.tenant, one.task, "none") == []
        assert await scene.store.admit([], now=scene.now) == []

    async def test_is_no_write_that_a_lease_is_needed_for(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        await scene.lose(claimed)
        [found] = await scene.store.admit([passing(claimed, key)], now=scene.now)
        assert found is not None
        assert (found.state, found.lease_until, len(found.notes)) == ("unknown", None, 1)

    async def test_reads_the_databases_clock(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed)
        before = (await scene.store.health()).now
        [found] = await scene.store.admit([passing(claimed, key)])
        assert found is not None
        assert before <= found.now <= (await scene.store.health()).now
