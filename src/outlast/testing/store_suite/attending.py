"""Sessions of worker processes, and what a worker is told of leases that it lost."""

from __future__ import annotations

from dataclasses import replace

from outlast.store.records import (
    Claimed,
    ClaimRequest,
    Held,
    Serves,
    SessionRenewal,
)
from outlast.testing.store_suite.claiming import record_ref
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed


class TestSessions:
    """The verbs ``renew`` and ``retire``."""

    async def test_opens_a_session(self, scene: Scene) -> None:
        renewal = SessionRenewal(
            session="ses_red", name="worker-red", ttl_us=31 * SECOND, serves='{"red": 17}'
        )
        renewed = await scene.store.renew(renewal, now=scene.now)
        assert (renewed.alive, renewed.now, renewed.expires_at) == (True, scene.now, scene.now + 31 * SECOND)
        [row] = (await scene.store.dump())["sessions"]
        expected = {
            "id": "ses_red",
            "name": "worker-red",
            "serves": '{"red": 17}',
            "started_at": scene.now,
            "expires_at": scene.now + 31 * SECOND,
            "lost_at": None,
        }
        assert {column: row[column] for column in expected} == expected

    async def test_renews_it(self, scene: Scene) -> None:
        session = await scene.session(ttl_us=31 * SECOND)
        began = scene.now
        scene.pass_time(7 * SECOND)
        renewed = await scene.store.renew(
            SessionRenewal(session=session, name="worker-red", ttl_us=37 * SECOND), now=scene.now
        )
        assert (renewed.alive, renewed.now, renewed.expires_at) == (True, scene.now, scene.now + 37 * SECOND)
        [row] = (await scene.store.dump())["sessions"]
        assert (row["started_at"], row["expires_at"]) == (began, scene.now + 37 * SECOND)

    async def test_renewing_twice_at_one_moment_is_renewing_once(self, scene: Scene) -> None:
        renewal = SessionRenewal(session="ses_red", name="worker-red", ttl_us=31 * SECOND)
        first = await scene.store.renew(renewal, now=scene.now)
        before = await scene.store.dump()
        assert await scene.store.renew(renewal, now=scene.now) == first
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_session_that_ran_out_is_not_yet_lost(self, scene: Scene) -> None:
        """Running out is no loss: only the sweeper ends a session."""
        session = await scene.session(ttl_us=31 * SECOND)
        scene.pass_time(HOUR)
        renewed = await scene.store.renew(
            SessionRenewal(session=session, name="worker-red", ttl_us=31 * SECOND), now=scene.now
        )
        assert renewed.alive
        assert (await scene.sweep()).sessions == ()

    async def test_a_session_that_was_swept_is_not_revived(self, scene: Scene) -> None:
        session = await scene.session(ttl_us=31 * SECOND)
        scene.pass_time(32 * SECOND)
        assert (await scene.sweep()).sessions == (session,)
        before = await scene.store.dump()
        for _ in range(2):
            renewed = await scene.store.renew(
                SessionRenewal(session=session, name="worker-red", ttl_us=HOUR), now=scene.now
            )
            assert not renewed.alive
        assert changed(before, await scene.store.dump()) == {}

    async def test_names_are_labels_only(self, scene: Scene) -> None:
        """Two processes with one name have two sessions."""
        for session in ("ses_red", "ses_blue"):
            renewal = SessionRenewal(session=session, name="worker-same", ttl_us=31 * SECOND)
            assert (await scene.store.renew(renewal, now=scene.now)).alive
        assert len((await scene.store.dump())["sessions"]) == 2

    async def test_is_by_the_databases_clock_in_production(self, scene: Scene) -> None:
        clock = (await scene.store.health()).now
        renewed = await scene.store.renew(
            SessionRenewal(session="ses_red", name="worker-red", ttl_us=31 * SECOND)
        )
        assert clock <= renewed.now <= clock + 60 * SECOND
        assert renewed.expires_at == renewed.now + 31 * SECOND

    async def test_retires_a_session_and_its_writer_rows(self, scene: Scene) -> None:
        """A writer's rows are those whose id is the session's id, or begins with it and a slash."""
        session = await scene.session()
        claimed = await scene.running(session=session)
        other = await scene.running()
        # An id that merely begins like the session's is another's.
        for writer in (session, f"{session}/2", f"{session}0", "wr_other"):
            batch = scene.batch(scene.writes(claimed, scene.step()), writer=writer)
            await scene.store.flush(batch, now=scene.now)
        await scene.write(claimed, scene.success())
        for _ in range(2):
            await scene.store.retire(session)
            dump = await scene.store.dump()
            assert session not in {row["id"] for row in dump["sessions"]}
            assert {row["id"] for row in dump["writers"]} == {"wr_other", f"{session}0", scene.writer}
        assert (await scene.task(other)).state == "running"

    async def test_retiring_a_session_that_never_was_is_no_error(self, scene: Scene) -> None:
        await scene.store.retire("ses_never")

    async def test_retiring_with_a_lease_strands_no_task(self, scene: Scene) -> None:
        """A worker retires when it holds nothing any more; one that errs must not take its task with it."""
        session = await scene.session()
        claimed = await scene.running(session=session)
        await scene.store.retire(session)
        scene.pass_time(HOUR)
        await scene.sweep()
        assert (await scene.task(claimed)).state == "queued"


class TestReconcile:
    """The verb ``reconcile``: leases of a claim whose answer was lost."""

    async def test_gives_back_the_leases_that_the_worker_does_not_know_of(self, scene: Scene) -> None:
        session = await scene.session()
        known, lost = await scene.running(session=session), await scene.running(session=session)
        elsewhere = await scene.running()
        scene.pass_time(3 * SECOND)
        held = [lease_of(known)]
        assert await scene.store.reconcile(session, held, fence=1, now=scene.now) == [record_ref(lost)]
        task = await scene.task(lost)
        assert (task.state, task.reason) == ("queued", None)
        assert task.epoch > lost.epoch
        assert await scene.rows("leases", lost) == []
        assert len(await scene.rows("queue", lost)) == 1
        [attempt] = await scene.store.read_attempts(record_ref(lost))
        assert (attempt.epoch, attempt.end, attempt.ended_at) == (lost.epoch, "released", scene.now)
        assert await scene.kinds(lost, after=2) == ["attempt.released", "task.queued"]
        assert (await scene.flush(lost, scene.step())).kind == "stale"
        for claimed in (known, elsewhere):
            assert (await scene.flush(claimed, scene.step())).kind == "accepted"

    async def test_is_no_death_of_a_worker(self, scene: Scene) -> None:
        """Answers that are lost never park a task."""
        record = await scene.submit()
        for _ in range(4):
            session = await scene.session()
            await scene.claim_task(record, session=session)
            await scene.store.reconcile(session, [], fence=1, now=scene.now)
        swept = await scene.lose(await scene.claim_task(record))
        assert (swept.lost, swept.parked) == ((record_ref(record),), ())

    async def test_twice_is_once(self, scene: Scene) -> None:
        session = await scene.session()
        known = await scene.running(session=session)
        await scene.running(session=session)
        held = [lease_of(known)]
        assert len(await scene.store.reconcile(session, held, fence=1, now=scene.now)) == 1
        before = await scene.store.dump()
        assert await scene.store.reconcile(session, held, fence=2, now=scene.now) == []
        assert set(changed(before, await scene.store.dump())) == {"sessions"}

    async def test_one_that_comes_late_gives_nothing_back(self, scene: Scene) -> None:
        """Its worker gave up on it, looked again, and has claimed since what it knows nothing of."""
        session = await scene.session()
        await scene.store.reconcile(session, [], fence=2, now=scene.now)
        record = await scene.submit()
        serves = (Serves(agent=record.agent, version="v"),)
        request = ClaimRequest(session=session, pools=(record.pool,), serves=serves, limit=1, fence=2)
        [claimed] = (await scene.store.claim(request, now=scene.now)).claims
        before = await scene.store.dump()
        for late in (1, 2):
            assert await scene.store.reconcile(session, [], fence=late, now=scene.now) == []
        assert changed(before, await scene.store.dump()) == {}
        assert (await scene.flush(claimed, scene.step())).kind == "accepted"

    async def test_a_task_known_under_an_earlier_epoch_is_given_back(self, scene: Scene) -> None:
        """Its attempt gave it back and claimed it again, and was told of neither."""
        session = await scene.session()
        earlier = await scene.running(session=session)
        await scene.write(earlier, scene.release())
        lost = await scene.claim_task(earlier, session=session)
        assert lost.epoch > earlier.epoch
        held = [lease_of(earlier)]
        assert await scene.store.reconcile(session, held, fence=1, now=scene.now) == [record_ref(lost)]
        assert (await scene.task(lost)).state == "queued"

    async def test_knowing_of_what_is_not_leased_is_no_error(self, scene: Scene) -> None:
        session = await scene.session()
        known = await scene.running(session=session)
        foreign = replace(lease_of(known), tenant="tenant-other")
        ended = await scene.running(session=session)
        await scene.write(ended, scene.success())
        before = await scene.store.dump()
        held = [lease_of(ended), lease_of(known), foreign]
        assert await scene.store.reconcile(session, held, fence=1, now=scene.now) == []
        assert await scene.store.reconcile("ses_never", held, fence=1, now=scene.now) == []
        assert set(changed(before, await scene.store.dump())) == {"sessions"}

    async def test_a_claim_that_comes_even_later_takes_nothing(self, scene: Scene) -> None:
        """It was under way when its worker gave up on it, and asks with a fence that has been raised."""
        session = await scene.session()
        record = await scene.submit()
        late = ClaimRequest(
            session=session,
            pools=(record.pool,),
            serves=(Serves(agent=record.agent, version="v"),),
            limit=1,
            fence=4,
        )
        assert await scene.store.reconcile(session, [], fence=5, now=scene.now) == []
        before = await scene.store.dump()
        reply = await scene.store.claim(late, now=scene.now)
        assert (reply.refused, reply.claims) == (True, ())
        assert changed(before, await scene.store.dump()) == {}
        await scene.session(session=session)
        assert (await scene.store.claim(late, now=scene.now)).claims == ()
        reply = await scene.store.claim(replace(late, fence=5), now=scene.now)
        assert [claimed.task for claimed in reply.claims] == [record.task]

    async def test_a_fence_never_falls(self, scene: Scene) -> None:
        session = await scene.session()
        record = await scene.submit()
        for fence in (5, 3):
            await scene.store.reconcile(session, [], fence=fence, now=scene.now)
        request = ClaimRequest(
            session=session,
            pools=(record.pool,),
            serves=(Serves(agent=record.agent, version="v"),),
            limit=1,
        )
        for fence, taken in ((4, 0), (6, 1)):
            reply = await scene.store.claim(replace(request, fence=fence), now=scene.now)
            assert len(reply.claims) == taken

    async def test_a_fence_is_one_sessions(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.store.reconcile(await scene.session(), [], fence=5, now=scene.now)
        assert (await scene.claim_task(record)).epoch == 1

    async def test_a_task_known_under_another_tenant_is_not_known(self, scene: Scene) -> None:
        session = await scene.session()
        lost = await scene.running(session=session)
        held = [replace(lease_of(lost), tenant="tenant-other")]
        assert await scene.store.reconcile(session, held, fence=1, now=scene.now) == [record_ref(lost)]


def lease_of(claimed: Claimed) -> Held:
    """Name a lease as its worker knows it."""
    return Held(tenant=claimed.tenant, task=claimed.task, epoch=claimed.epoch)
