"""Schedules: made and changed by compare-and-set, taken when they are due, fired once an instant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outlast.core import ids
from outlast.store.records import Serves, Submission
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    Schedule,
    SchedulePut,
    ScheduleRow,
    ScheduleSet,
    SetSchedule,
)
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor, Reopen, Scene, changed, refused

NIGHTLY = '{"cron":"0 3 * * *","zone":"Europe/Berlin"}'


def schedule(scene: Scene, **changes: Any) -> Schedule:
    """Make a schedule's record; every value is new."""
    record = Schedule(
        tenant=scene.tenant,
        id=f"schedule-{scene.number()}",
        agent=f"agent-{scene.number()}",
        timing=f'{{"every_us":{scene.number()}}}',
        version=f"version-{scene.number()}",
        pool=f"pool-{scene.number()}",
        priority=4,
        input=scene.text("input"),
        user=f"user-{scene.number()}",
        deadline_us=scene.number() * SECOND,
        missed="all",
        max_missed=scene.number(),
        overlap="allow",
        jitter_us=scene.number(),
    )
    return replace(record, **changes)


async def put(scene: Scene, made: Schedule | None = None, *, in_us: int = 0, **changes: Any) -> ScheduleRow:
    """Have a schedule stored that is due in ``in_us``, and answer it."""
    made = made or schedule(scene, **changes)
    asked = PutSchedule(
        schedule=made,
        next_at=scene.now + in_us,
        by=f"ann-{scene.number()}",
        reason=f"reason-{scene.number()}",
    )
    verdict = await scene.store.put_schedule(asked, now=scene.now)
    assert verdict.kind in ("created", "replaced")
    return await stored(scene, made)


async def stored(scene: Scene, of: Schedule) -> ScheduleRow:
    """Read a schedule."""
    row = await scene.store.read_schedule(of.tenant, of.id)
    assert row is not None
    return row


async def due(scene: Scene, *, limit: int = 10, lease_us: int = 5 * SECOND) -> DueSchedules:
    """Take what is due at the scene's time."""
    return await scene.store.due_schedules(DueRequest(limit=limit, lease_us=lease_us), now=scene.now)


async def names(scene: Scene, **asked: Any) -> list[str]:
    """Take what is due, and answer the ids."""
    return [row.schedule.id for row in (await due(scene, **asked)).rows]


def firing(scene: Scene, row: ScheduleRow, **changes: Any) -> Firing:
    """Make the firing that a schedule is due for, with a task of its own."""
    assert row.next_at is not None
    held, n = row.schedule, scene.number()
    submission = Submission(
        tenant=held.tenant,
        task=ids.new_id(ids.TASK, 1_700_000_000_000 + n, n),
        key=f"schedule:{held.id}:{row.next_at}",
        request_digest=f"digest of {held.id} at {row.next_at}",
        agent=held.agent,
        version=held.version,
        pool=held.pool,
        priority=held.priority,
        input=held.input,
        user=held.user,
        deadline_us=held.deadline_us,
        origin=f'{{"schedule":"{held.id}","instant":{row.next_at}}}',
    )
    made = Firing(
        tenant=held.tenant,
        schedule=held.id,
        revision=row.revision,
        expected=row.next_at,
        instant=row.next_at,
        next_at=row.next_at + HOUR,
        submission=submission,
    )
    return replace(made, **changes)


async def fire(scene: Scene, *firings: Firing) -> list[Fired]:
    """Fire at the scene's time."""
    return await scene.store.fire_schedules(firings, now=scene.now)


def set_(row: ScheduleRow, command: Any, **changes: Any) -> SetSchedule:
    """Ask for a change."""
    asked = SetSchedule(
        tenant=row.schedule.tenant, id=row.schedule.id, command=command, by="bob", reason="the auditors"
    )
    return replace(asked, **changes)


async def untouched(scene: Scene, act: Any) -> Any:
    """Demand that an act changes nothing, and answer what it answered."""
    before = await scene.store.dump()
    answer = await act
    assert changed(before, await scene.store.dump()) == {}
    return answer


class TestPutSchedule:
    """Made, replaced, left alone."""

    async def test_what_is_put_is_read(self, scene: Scene) -> None:
        made = schedule(scene)
        next_at = scene.now + scene.number()
        asked = PutSchedule(schedule=made, next_at=next_at, by="ann", reason="the month's end")
        assert await scene.store.put_schedule(asked, now=scene.now) == SchedulePut(kind="created", revision=1)
        assert await stored(scene, made) == ScheduleRow(
            schedule=made,
            revision=1,
            paused=None,
            paused_by=None,
            next_at=next_at,
            last_at=None,
            last_task=None,
            fired=0,
            skipped=0,
            note=None,
            noted_at=None,
            created_at=scene.now,
            changed_at=scene.now,
            changed_by="ann",
        )
        [row] = await scene.store.read_audit(scene.tenant)
        assert (row.who, row.what, row.subject, row.reason, row.at) == (
            "ann", "schedule:create", made.id, "the month's end", scene.now,
        )  # fmt: skip
        assert row.data == (
            f'{{"revision":1,"agent":"{made.agent}","timing":{made.timing},"input":{made.input}}}'
        )

    async def test_the_same_again_changes_nothing(self, scene: Scene) -> None:
        row = await put(scene)
        scene.pass_time(HOUR)
        for revision in (None, row.revision, row.revision + 5):
            again = PutSchedule(schedule=row.schedule, next_at=scene.now, by="bob", revision=revision)
            verdict = await untouched(scene, scene.store.put_schedule(again, now=scene.now))
            assert verdict == SchedulePut(kind="unchanged", revision=1)

    async def test_another_takes_its_place(self, scene: Scene) -> None:
        first = await put(scene)
        scene.pass_time(HOUR)
        other = schedule(scene, id=first.schedule.id, missed="skip", overlap="skip", priority=-7)
        asked = PutSchedule(schedule=other, next_at=scene.now + SECOND, by="bob", revision=1)
        assert await scene.store.put_schedule(asked, now=scene.now) == SchedulePut(
            kind="replaced", revision=2
        )
        row = await stored(scene, other)
        assert row.schedule == other
        assert (row.next_at, row.revision, row.changed_by) == (scene.now + SECOND, 2, "bob")
        assert (row.created_at, row.changed_at) == (scene.now - HOUR, scene.now)
        trail = await scene.store.read_audit(scene.tenant)
        assert [each.what for each in trail] == ["schedule:create", "schedule:replace"]

    async def test_what_is_next_stands_while_the_times_do(self, scene: Scene) -> None:
        first = await put(scene, in_us=HOUR)
        await put(scene, replace(first.schedule, input=scene.text("other")), in_us=2 * HOUR)
        assert (await stored(scene, first.schedule)).next_at == first.next_at
        await put(scene, replace(first.schedule, timing=NIGHTLY), in_us=2 * HOUR)
        assert (await stored(scene, first.schedule)).next_at == scene.now + 2 * HOUR

    async def test_another_revision_than_the_one_seen_is_a_conflict(self, scene: Scene) -> None:
        row = await put(scene)
        other = schedule(scene, id=row.schedule.id)
        for revision in (0, 2, 9):
            asked = PutSchedule(schedule=other, next_at=scene.now, by="bob", revision=revision)
            verdict = await untouched(scene, scene.store.put_schedule(asked, now=scene.now))
            assert verdict == SchedulePut(kind="conflict", revision=1)
        absent = PutSchedule(schedule=schedule(scene), next_at=scene.now, by="bob", revision=1)
        verdict = await untouched(scene, scene.store.put_schedule(absent, now=scene.now))
        assert verdict == SchedulePut(kind="conflict", revision=0)
        # Of a schedule that must be new, the same as what stands is one too many.
        same = PutSchedule(schedule=row.schedule, next_at=scene.now, by="bob", revision=0)
        assert (await untouched(scene, scene.store.put_schedule(same, now=scene.now))).kind == "conflict"

    async def test_of_two_that_make_one_schedule_one_does(self, scene: Scene, reopen: Reopen) -> None:
        other = await reopen()
        made = schedule(scene)
        for _ in range(5):
            made = schedule(scene)
            rivals = [replace(made, input=scene.text("input")) for _ in range(4)]
            verdicts = await asyncio.gather(
                *(
                    store.put_schedule(
                        PutSchedule(schedule=each, next_at=scene.now, by="ann", revision=0), now=scene.now
                    )
                    for store, each in zip([scene.store, other] * 2, rivals, strict=True)
                )
            )
            assert sorted(verdict.kind for verdict in verdicts) == ["conflict"] * 3 + ["created"]
            winner = next(r for r, v in zip(rivals, verdicts, strict=True) if v.kind == "created")
            assert (await stored(scene, made)).schedule == winner

    async def test_tenants_have_schedules_of_their_own(self, scene: Scene) -> None:
        mine = await put(scene)
        theirs = await put(scene, replace(schedule(scene, tenant="tenant-red"), id=mine.schedule.id))
        assert mine.schedule.tenant != theirs.schedule.tenant
        assert await scene.store.read_schedule("tenant-blue", mine.schedule.id) is None
        assert (await stored(scene, mine.schedule)).schedule == mine.schedule
        assert [row.schedule for row in await scene.store.list_schedules("tenant-red")] == [theirs.schedule]
        assert await scene.store.list_schedules("tenant-blue") == []

    @pytest.mark.parametrize("id", ["", " ", "\t", "x" * 256, "a\x01b", "a\x7fb"])
    async def test_an_id_that_cannot_be_addressed_is_refused_by_the_database(
        self, scene: Scene, id: str
    ) -> None:
        before = await scene.store.dump()
        async with refused(f"a schedule with the id {id!r}"):
            await put(scene, id=id)
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize(
        "wrong",
        [{"missed": "never"}, {"overlap": "maybe"}, {"max_missed": 0}, {"jitter_us": -1}, {"agent": ""}],
    )
    async def test_options_that_do_not_exist_are_refused_by_the_database(
        self, scene: Scene, wrong: dict[str, Any]
    ) -> None:
        before = await scene.store.dump()
        async with refused(str(wrong)):
            await put(scene, **wrong)
        assert changed(before, await scene.store.dump()) == {}


class TestListSchedules:
    """Pages by id."""

    async def test_pages_go_on_where_the_one_before_ended(self, scene: Scene) -> None:
        made = [(await put(scene, id=f"s-{letter}")).schedule.id for letter in "dBac"]
        ordered = sorted(made)
        first = await scene.store.list_schedules(scene.tenant, limit=3)
        assert [row.schedule.id for row in first] == ordered[:3]
        rest = await scene.store.list_schedules(scene.tenant, after=first[-1].schedule.id, limit=3)
        assert [row.schedule.id for row in rest] == ordered[3:]


class TestSetSchedule:
    """Paused, resumed, deleted."""

    async def test_a_paused_schedule_is_not_due_and_goes_on_where_it_is_told(self, scene: Scene) -> None:
        row = await put(scene)
        paused = await scene.store.set_schedule(set_(row, "pause"), now=scene.now)
        assert paused == ScheduleSet(kind="done", revision=2)
        stands = await stored(scene, row.schedule)
        assert (stands.paused, stands.paused_by, stands.next_at) == ("the auditors", "bob", row.next_at)
        assert (await due(scene)).rows == ()
        assert await fire(scene, firing(scene, row), firing(scene, stands)) == [Fired(kind="passed")] * 2
        scene.pass_time(HOUR)
        resumed = set_(row, "resume", next_at=scene.now + SECOND, reason="they left")
        assert (await scene.store.set_schedule(resumed, now=scene.now)).revision == 3
        stands = await stored(scene, row.schedule)
        assert (stands.paused, stands.paused_by, stands.next_at) == (None, None, scene.now + SECOND)
        assert (stands.changed_at, stands.changed_by) == (scene.now, "bob")
        assert (await due(scene)).next_due_us == SECOND
        scene.pass_time(SECOND)
        assert await names(scene) == [row.schedule.id]
        trail = [(each.what, each.who, each.reason) for each in await scene.store.read_audit(scene.tenant)]
        assert trail[1:] == [
            ("schedule:pause", "bob", "the auditors"),
            ("schedule:resume", "bob", "they left"),
        ]

    async def test_the_same_again_changes_nothing(self, scene: Scene) -> None:
        row = await put(scene)
        verdict = await untouched(scene, scene.store.set_schedule(set_(row, "resume"), now=scene.now))
        assert verdict == ScheduleSet(kind="unchanged", revision=1)
        await scene.store.set_schedule(set_(row, "pause"), now=scene.now)
        again = scene.store.set_schedule(set_(row, "pause", revision=1), now=scene.now + HOUR)
        assert await untouched(scene, again) == ScheduleSet(kind="unchanged", revision=2)

    async def test_another_reason_is_kept(self, scene: Scene) -> None:
        row = await put(scene)
        await scene.store.set_schedule(set_(row, "pause"), now=scene.now)
        assert (
            await scene.store.set_schedule(set_(row, "pause", reason="fire"), now=scene.now)
        ).kind == "done"
        assert (await stored(scene, row.schedule)).paused == "fire"

    async def test_a_deleted_schedule_is_gone_and_its_tasks_are_not(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        assert [each.kind for each in await fire(scene, shot)] == ["fired"]
        gone = await scene.store.set_schedule(set_(row, "delete"), now=scene.now)
        assert gone == ScheduleSet(kind="done", revision=1)
        assert await scene.store.read_schedule(scene.tenant, row.schedule.id) is None
        assert (await scene.task(shot.submission)).state == "queued"
        again = await untouched(scene, scene.store.set_schedule(set_(row, "delete"), now=scene.now))
        assert again == ScheduleSet(kind="not_found", revision=0)
        assert (await scene.store.read_audit(scene.tenant))[-1].what == "schedule:delete"

    @pytest.mark.parametrize("command", ["pause", "delete"])
    async def test_another_revision_than_the_one_seen_is_a_conflict(self, scene: Scene, command: str) -> None:
        row = await put(scene)
        asked = scene.store.set_schedule(set_(row, command, revision=2), now=scene.now)
        assert await untouched(scene, asked) == ScheduleSet(kind="conflict", revision=1)

    async def test_another_tenants_is_not_found(self, scene: Scene) -> None:
        row = await put(scene)
        for command in ("pause", "resume", "delete"):
            asked = scene.store.set_schedule(set_(row, command, tenant="tenant-red"), now=scene.now)
            assert (await untouched(scene, asked)).kind == "not_found"


class TestDueSchedules:
    """Taken when they are due, by the database's clock."""

    async def test_what_is_due_is_taken_once_for_a_while(self, scene: Scene) -> None:
        later, first, second = (
            await put(scene, in_us=HOUR),
            await put(scene, in_us=-2 * SECOND),
            await put(scene, in_us=-SECOND),
        )
        taken = await due(scene)
        assert [row.schedule for row in taken.rows] == [first.schedule, second.schedule]
        assert taken.rows[0] == first
        assert (taken.now, taken.next_due_us) == (scene.now, HOUR)
        assert await names(scene) == []
        scene.pass_time(5 * SECOND)
        assert await names(scene, limit=1) == [first.schedule.id]
        assert await names(scene) == [second.schedule.id]
        scene.pass_time(HOUR)
        assert await names(scene) == [first.schedule.id, second.schedule.id, later.schedule.id]

    async def test_a_schedule_is_due_at_its_instant_and_not_before(self, scene: Scene) -> None:
        row = await put(scene, in_us=1)
        assert (await due(scene)).next_due_us == 1
        scene.pass_time(1)
        assert await names(scene) == [row.schedule.id]

    async def test_where_there_is_nothing_the_answer_says_so(self, scene: Scene) -> None:
        assert await due(scene) == DueSchedules(now=scene.now, rows=(), next_due_us=None)
        row = await put(scene)
        await fire(scene, firing(scene, row, next_at=None))
        assert await due(scene) == DueSchedules(now=scene.now, rows=(), next_due_us=None)

    async def test_the_databases_clock_decides(self, scene: Scene) -> None:
        """Without a time given, as in production."""
        past, ahead = await put(scene, in_us=-HOUR), await put(scene, in_us=HOUR)
        taken = await scene.store.due_schedules(DueRequest(limit=9, lease_us=SECOND))
        assert [row.schedule.id for row in taken.rows] == [past.schedule.id]
        assert await scene.store.fire_schedules([firing(scene, ahead)]) == [Fired(kind="early")]

    async def test_two_that_look_at_once_take_different_ones(self, scene: Scene, reopen: Reopen) -> None:
        other = await reopen()
        made = sorted([(await put(scene)).schedule.id for _ in range(8)])
        request = DueRequest(limit=5, lease_us=HOUR)
        taken = await asyncio.gather(
            *(store.due_schedules(request, now=scene.now) for store in (scene.store, other) * 2)
        )
        found = [row.schedule.id for each in taken for row in each.rows]
        assert len(found) == len(set(found))
        assert set(found) <= set(made)


class TestFireSchedules:
    """One task an instant, together with what comes next."""

    async def test_a_firing_submits_its_task_and_moves_the_schedule_on(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row, note="a word")
        assert shot.submission is not None
        assert await fire(scene, shot) == [Fired(kind="fired", task=shot.submission.task)]
        stands = await stored(scene, row.schedule)
        assert stands == replace(
            row,
            next_at=shot.next_at,
            last_at=row.next_at,
            last_task=shot.submission.task,
            fired=1,
            note="a word",
            noted_at=scene.now,
        )
        task = await scene.task(shot.submission)
        held = row.schedule
        assert (task.state, task.key, task.agent, task.pool, task.priority, task.input, task.user) == (
            "queued", shot.submission.key, held.agent, held.pool, held.priority, held.input, held.user,
        )  # fmt: skip
        [event] = await scene.events(shot.submission)
        assert (event.kind, event.data) == (
            "task.submitted",
            f'{{"agent":"{held.agent}","pool":"{held.pool}","schedule":"{held.id}","instant":{row.next_at}}}',
        )
        assert (await due(scene)).next_due_us == HOUR
        # It is a task like any other.
        scene.remember(shot.submission)
        await scene.write(await scene.claim_task(shot.submission), scene.success())

    async def test_an_instant_fires_once(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        await fire(scene, shot)
        for twin in (shot, firing(scene, row), firing(scene, row, submission=None)):
            assert await untouched(scene, fire(scene, twin)) == [Fired(kind="passed")]

    async def test_of_many_that_fire_one_instant_one_does(self, scene: Scene, reopen: Reopen) -> None:
        stores = [scene.store, await reopen(), await reopen()]
        row = await put(scene)
        for _ in range(6):
            twins = [firing(scene, row) for _ in range(6)]
            verdicts = await asyncio.gather(
                *(
                    store.fire_schedules([twin], now=scene.now)
                    for store, twin in zip(stores * 2, twins, strict=True)
                )
            )
            assert sorted(verdict.kind for [verdict] in verdicts) == ["fired"] + ["passed"] * 5
            [winner] = [t for t, [v] in zip(twins, verdicts, strict=True) if v.kind == "fired"]
            row = await stored(scene, row.schedule)
            assert winner.submission is not None
            assert (row.last_task, row.next_at) == (winner.submission.task, winner.next_at)
            scene.now = winner.next_at or 0
        assert row.fired == 6
        assert len((await scene.store.dump())["tasks"]) == 6

    async def test_firings_of_one_schedule_follow_each_other_in_a_batch(self, scene: Scene) -> None:
        row = await put(scene, in_us=-3 * HOUR)
        assert row.next_at is not None
        chain = [
            firing(scene, replace(row, next_at=row.next_at + n * HOUR), expected=row.next_at + n * HOUR)
            for n in range(3)
        ]
        assert [each.kind for each in await fire(scene, *chain)] == ["fired"] * 3
        stands = await stored(scene, row.schedule)
        assert (stands.fired, stands.last_at, stands.next_at) == (3, scene.now - HOUR, scene.now)

    async def test_older_instants_can_be_left_out(self, scene: Scene) -> None:
        row = await put(scene, in_us=-9 * HOUR)
        shot = firing(scene, row, instant=scene.now - HOUR, next_at=scene.now + HOUR)
        assert [each.kind for each in await fire(scene, shot)] == ["fired"]
        assert (await stored(scene, row.schedule)).last_at == scene.now - HOUR

    async def test_nothing_fires_early(self, scene: Scene) -> None:
        row = await put(scene, in_us=1)
        assert await untouched(scene, fire(scene, firing(scene, row))) == [Fired(kind="early")]
        scene.pass_time(1)
        assert [each.kind for each in await fire(scene, firing(scene, row))] == ["fired"]

    async def test_a_schedule_that_was_changed_fires_nothing_of_before(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        await put(scene, replace(row.schedule, input=scene.text("other")))
        assert await untouched(scene, fire(scene, shot)) == [Fired(kind="passed")]
        await scene.store.set_schedule(set_(row, "delete"), now=scene.now)
        assert await untouched(scene, fire(scene, shot)) == [Fired(kind="passed")]

    async def test_a_schedule_can_be_moved_on_without_a_task(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row, submission=None, note="missed and skipped")
        assert await fire(scene, shot) == [Fired(kind="moved")]
        assert await stored(scene, row.schedule) == replace(
            row, next_at=shot.next_at, note="missed and skipped", noted_at=scene.now
        )

    async def test_a_note_alone_leaves_it_taken(self, scene: Scene) -> None:
        row = await put(scene)
        await due(scene)
        noted = firing(scene, row, submission=None, next_at=row.next_at, note="no such zone here")
        assert await fire(scene, noted) == [Fired(kind="moved")]
        assert (await stored(scene, row.schedule)).note == "no such zone here"
        assert await names(scene) == []
        scene.pass_time(5 * SECOND)
        assert await names(scene) == [row.schedule.id]

    async def test_the_last_firing_ends_it(self, scene: Scene) -> None:
        row = await put(scene)
        assert [each.kind for each in await fire(scene, firing(scene, row, next_at=None))] == ["fired"]
        assert (await stored(scene, row.schedule)).next_at is None
        assert await untouched(scene, fire(scene, firing(scene, row))) == [Fired(kind="passed")]

    async def test_while_the_last_task_lives_the_next_is_skipped_where_so_asked(self, scene: Scene) -> None:
        row = await put(scene, overlap="skip")
        first = firing(scene, row)
        assert first.submission is not None
        await fire(scene, first)
        scene.remember(first.submission)
        claimed = None
        for state in ("queued", "running", "waiting"):
            scene.pass_time(HOUR)
            row = await stored(scene, row.schedule)
            if state == "running":
                claimed = await scene.claim_task(first.submission, ttl_us=99 * HOUR)
            if state == "waiting":
                assert claimed is not None
                await scene.write(claimed, scene.suspension("signal"))
            assert (await scene.task(first.submission)).state == state
            verdict = await fire(scene, firing(scene, row))
            assert verdict == [Fired(kind="skipped", task=first.submission.task)]
        row = await stored(scene, row.schedule)
        assert (row.fired, row.skipped, row.last_task) == (1, 3, first.submission.task)
        assert len((await scene.store.dump())["tasks"]) == 1

    async def test_once_the_last_task_has_ended_the_next_fires(self, scene: Scene) -> None:
        row = await put(scene, overlap="skip")
        first = firing(scene, row)
        await fire(scene, first)
        assert first.submission is not None
        scene.remember(first.submission)
        await scene.write(await scene.claim_task(first.submission), scene.failure())
        scene.pass_time(HOUR)
        row = await stored(scene, row.schedule)
        assert [each.kind for each in await fire(scene, firing(scene, row))] == ["fired"]

    async def test_a_key_that_was_used_for_the_same_is_moved_over(self, scene: Scene) -> None:
        """A schedule that was deleted and made again fires no instant a second time."""
        row = await put(scene)
        shot = firing(scene, row)
        await fire(scene, shot)
        await scene.store.set_schedule(set_(row, "delete"), now=scene.now)
        row = await put(scene, row.schedule)
        assert shot.submission is not None
        again = firing(scene, row)
        assert await fire(scene, again) == [Fired(kind="replayed", task=shot.submission.task)]
        stands = await stored(scene, row.schedule)
        assert (stands.fired, stands.last_task, stands.next_at) == (0, shot.submission.task, again.next_at)

    async def test_the_very_same_firing_again_is_counted_once(self, scene: Scene) -> None:
        """One that leaves what is next is not kept from coming again by that; its task is."""
        row = await put(scene)
        assert row.next_at is not None
        shot = firing(scene, row, next_at=row.next_at)
        assert shot.submission is not None
        task = shot.submission.task
        assert await fire(scene, shot) == [Fired(kind="fired", task=task)]
        assert await fire(scene, shot) == [Fired(kind="replayed", task=task)]
        stands = await stored(scene, row.schedule)
        assert (stands.fired, stands.last_task, stands.next_at) == (1, task, row.next_at)

    async def test_a_key_that_is_anothers_is_said_and_moved_over(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        assert shot.submission is not None
        theirs = await scene.submit(key=shot.submission.key)
        assert await fire(scene, shot) == [Fired(kind="conflict", task=theirs.task)]
        stands = await stored(scene, row.schedule)
        assert (stands.next_at, stands.fired, stands.last_task) == (shot.next_at, 0, None)
        assert theirs.task in (stands.note or "")
        assert stands.noted_at == scene.now

    async def test_one_firing_does_not_hold_up_its_neighbours(self, scene: Scene) -> None:
        first, second, third = [await put(scene) for _ in range(3)]
        await scene.store.set_schedule(set_(second, "pause"), now=scene.now)
        shots = [firing(scene, row) for row in (first, second, third)]
        assert [each.kind for each in await fire(scene, *shots)] == ["fired", "passed", "fired"]
        assert await scene.store.fire_schedules([]) == []

    async def test_a_delayed_task_waits_for_its_time(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        assert shot.submission is not None
        now = (await scene.store.health()).now
        await fire(scene, replace(shot, submission=replace(shot.submission, run_at=now + HOUR)))
        task = await scene.task(shot.submission)
        assert (task.state, task.reason) == ("waiting", "timer")

    async def test_a_firing_that_cannot_be_stored_moves_nothing(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        assert shot.submission is not None
        bad = replace(shot, submission=replace(shot.submission, key="a\x01b"))
        before = await scene.store.dump()
        async with refused("a key with a control character"):
            await fire(scene, bad)
        # Lanes may be made before; whatever else there is stands together.
        assert changed(before, await scene.store.dump(), ignoring=("writers", "lanes")) == {}
        assert [each.kind for each in await fire(scene, shot)] == ["fired"]

    async def test_workers_are_told(self, scene: Scene) -> None:
        row = await put(scene)
        shot = firing(scene, row)
        waiting = asyncio.ensure_future(scene.store.wakes.wait("queue", 20.0))
        await asyncio.sleep(0)
        await fire(scene, shot)
        assert await waiting
        reply = await scene.claim(
            await scene.session(),
            pools=[row.schedule.pool],
            serves=[Serves(agent=row.schedule.agent, version=row.schedule.version)],
        )
        assert shot.submission is not None
        assert [claimed.task for claimed in reply.claims] == [shot.submission.task]

    async def test_the_last_task_of_another_tenant_is_nothing_to_it(
        self, scene: Scene, backdoor: Backdoor
    ) -> None:
        foreign = await scene.submit(tenant="tenant-red")
        row = await put(scene, overlap="skip")
        await backdoor.run(f"update schedules set last_task = '{foreign.task}'")
        row = await stored(scene, row.schedule)
        assert [each.kind for each in await fire(scene, firing(scene, row))] == ["fired"]
