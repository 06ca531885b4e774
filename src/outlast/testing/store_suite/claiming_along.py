"""Tasks that are claimed in the transaction that accepts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlast.store.records import ClaimReply, ClaimRequest, Parent, Serves, Submission, Submitted
from outlast.testing.store_suite.bringing import agrees
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed


def asks(session: str, record: Submission, **changes: Any) -> ClaimRequest:
    """Ask for what is like this."""
    request = ClaimRequest(
        session=session,
        pools=(record.pool,),
        serves=(Serves(agent=record.agent, version="version-5"),),
        limit=10,
        config="config-9",
    )
    return replace(request, **changes)


async def like(scene: Scene, **changes: Any) -> Submission:
    """Make a task that stands where others have stood: one has come and gone."""
    first = await scene.submit(priority=0, **changes)
    await scene.write(await scene.claim_task(first), scene.success())
    return scene.submission(agent=first.agent, pool=first.pool, priority=0, **changes)


async def both(
    scene: Scene, batch: list[Submission], request: ClaimRequest
) -> tuple[list[Submitted], ClaimReply]:
    """Submit and claim, where the way is open."""
    answer = await scene.store.submit_and_claim(batch, request, now=scene.now)
    assert answer is not None
    scene.remember(*batch)
    return answer


class TestSubmitAndClaim:
    """The verb ``submit_and_claim``."""

    async def test_the_task_is_accepted_and_claimed(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        scene.pass_time(3 * SECOND)
        verdicts, reply = await both(scene, [record], asks(session, record))
        assert verdicts == [Submitted(kind="accepted", task=record.task)]
        [claimed] = reply.claims
        assert (claimed.tenant, claimed.task, claimed.epoch, claimed.agent, claimed.version) == (
            record.tenant,
            record.task,
            1,
            record.agent,
            "version-5",
        )
        assert (reply.now, reply.refused) == (scene.now, False)
        assert await agrees(scene, reply) == [True]
        task = await scene.task(record)
        assert (task.state, task.epoch, task.attempts) == ("running", 1, 1)
        assert await scene.kinds(record) == ["task.submitted", "attempt.started"]
        assert await scene.rows("queue", record) == []
        [lease] = await scene.rows("leases", record)
        assert (lease["session"], lease["epoch"], lease["config"]) == (session, 1, "config-9")

    async def test_what_it_has_claimed_can_be_written(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        _, reply = await both(scene, [record], asks(session, record))
        await scene.write(reply.claims[0], scene.success())
        assert (await scene.task(record)).state == "succeeded"

    async def test_what_is_older_is_taken_first(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        older = await scene.submit(agent=record.agent, pool=record.pool, priority=0)
        verdicts, reply = await both(scene, [record], asks(session, record, limit=1))
        assert [verdict.kind for verdict in verdicts] == ["accepted"]
        assert [claimed.task for claimed in reply.claims] == [older.task]
        assert (await scene.task(record)).state == "queued"
        left = await scene.store.claim(asks(session, record), now=scene.now)
        assert [claimed.task for claimed in left.claims] == [record.task]

    async def test_takes_what_others_have_submitted_where_it_serves_nothing_else(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        other = await scene.submit()
        verdicts, reply = await both(scene, [record], asks(session, other))
        assert [verdict.kind for verdict in verdicts] == ["accepted"]
        assert [claimed.task for claimed in reply.claims] == [other.task]
        assert (await scene.task(record)).state == "queued"

    async def test_a_batch_is_accepted_and_claimed(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        batch = [record, *(replace(scene.submission(), **self.place(record)) for _ in range(4))]
        verdicts, reply = await both(scene, batch, asks(session, record, limit=3))
        assert [verdict.task for verdict in verdicts] == [one.task for one in batch]
        assert {claimed.task for claimed in reply.claims} == {one.task for one in batch[:3]}

    def place(self, record: Submission) -> dict[str, Any]:
        """Say where another one stands like it."""
        return {"agent": record.agent, "pool": record.pool, "priority": record.priority}

    async def test_of_keys_that_are_held_it_says_what_submit_says(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        request = asks(session, record)
        await both(scene, [record], request)
        again = replace(scene.submission(), **self.place(record), key=record.key)
        same = replace(again, request_digest=record.request_digest)
        before = await scene.store.dump()
        verdicts, reply = await both(scene, [record, same, again], request)
        assert [(verdict.kind, verdict.task) for verdict in verdicts] == [
            ("accepted", record.task),
            ("replayed", record.task),
            ("conflict", record.task),
        ]
        assert reply.claims == ()
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_task_for_later_is_not_claimed(self, scene: Scene) -> None:
        record, session = await like(scene, run_at=scene.now - HOUR), await scene.session()
        later = replace(record, run_at=scene.now + 24 * HOUR)
        verdicts, reply = await both(scene, [later], asks(session, record))
        assert ([verdict.kind for verdict in verdicts], reply.claims) == (["accepted"], ())
        assert (await scene.task(record)).state == "waiting"

    async def test_a_session_that_was_swept_claims_nothing_and_the_task_is_there(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session(ttl_us=SECOND)
        scene.pass_time(60 * SECOND)
        await scene.sweep()
        verdicts, reply = await both(scene, [record], asks(session, record))
        assert [verdict.kind for verdict in verdicts] == ["accepted"]
        assert (reply.claims, reply.refused) == ((), True)
        assert (await scene.task(record)).state == "queued"

    async def test_one_that_was_given_up_claims_nothing_when_it_comes(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        await scene.store.reconcile(session, [], fence=1, now=scene.now)
        verdicts, reply = await both(scene, [record], asks(session, record, fence=0))
        assert [verdict.kind for verdict in verdicts] == ["accepted"]
        assert (reply.claims, reply.refused) == ((), True)
        assert (await scene.task(record)).state == "queued"

    async def test_what_it_claimed_is_given_back_like_any_claim(self, scene: Scene) -> None:
        record, session = await like(scene), await scene.session()
        _, reply = await both(scene, [record], asks(session, record))
        [given] = await scene.store.reconcile(session, [], fence=1, now=scene.now)
        assert given.task == record.task
        assert (await scene.task(record)).state == "queued"
        assert (await scene.flush(reply.claims[0], scene.success())).kind == "stale"

    async def test_where_the_way_is_not_open_nothing_is_done(self, scene: Scene) -> None:
        parent = await scene.running()
        record, session = await like(scene), await scene.session()
        spawned = Parent(task=parent.task, epoch=parent.epoch, key="child-1", position=1, request="request-1")
        child = replace(record, parent=spawned)
        before = await scene.store.dump()
        assert await scene.store.submit_and_claim([child], asks(session, record), now=scene.now) is None
        assert changed(before, await scene.store.dump()) == {}

    async def test_where_nobody_has_stood_yet_it_does_all_or_nothing(self, scene: Scene) -> None:
        record, session = scene.submission(), await scene.session()
        before = await scene.store.dump()
        answer = await scene.store.submit_and_claim([record], asks(session, record), now=scene.now)
        if answer is None:
            assert changed(before, await scene.store.dump()) == {}
        else:
            assert [claimed.task for claimed in answer[1].claims] == [record.task]
