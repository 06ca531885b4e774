"""Schedules that fire: by any worker, once an instant, by the database's clock, whatever was missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import (
    Outlast,
    ScheduleRequest,
    TaskContext,
    WorkerSettings,
    clock,
    probes,
    telemetry,
)
from outlast.core import schedule
from outlast.core.schedule import SECOND_US, Cron, Every
from outlast.engine.housekeeping import schedules
from outlast.errors import (
    AgentNotFound,
    ConfigurationError,
    InvalidInput,
    InvalidKey,
    InvalidRequest,
    InvalidSchedule,
    ScheduleConflict,
    ScheduleNotFound,
    StoreUnavailable,
)
from outlast.store.scheduling import PutSchedule, Schedule
from outlast.testing.store_suite.scene import Reopen
from outlast.views import TaskView

MINUTE = 60 * SECOND_US
HOUR = 60 * MINUTE


@pytest.fixture(autouse=True)
def agents(house: House) -> None:
    @house.app.agent(pool="reports", deadline="1h")
    async def report(task: TaskContext, month: str = "May") -> str:
        return f"the report of {month}"


class Heard:
    """What is said of firings."""

    def __init__(self) -> None:
        self.said: list[telemetry.ScheduleFired] = []
        self._more = asyncio.Event()

    def __call__(self, signal: telemetry.Signal) -> None:
        if isinstance(signal, telemetry.ScheduleFired) and signal.verdict == "fired":
            self.said.append(signal)
            self._more.set()

    async def first(self, count: int) -> list[telemetry.ScheduleFired]:
        """Wait for so many tasks to be fired."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.said) < count:
                self._more.clear()
                await self._more.wait()
        return self.said[:count]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Collect what is said of firings."""
    made = Heard()
    end = telemetry.subscribe(made)
    yield made
    end()


async def now_of(house: House) -> int:
    """The database's time."""
    return (await house.store.health()).now


async def behind(house: House, timing: schedule.Timing, first: int, **options: Any) -> None:
    """Store a schedule whose next instant was some time ago, as after an outage."""
    made = Schedule(
        tenant="default",
        id="behind",
        agent="report",
        timing=schedule.written(timing),
        pool="reports",
        **options,
    )
    await house.store.put_schedule(PutSchedule(schedule=made, next_at=first, by="tests"))


async def tasks(house: House) -> list[TaskView]:
    """All tasks, by the instants that they were fired for."""
    return sorted(await house.app.list(limit=500), key=lambda view: str(view.key))


def instants(views: list[TaskView]) -> list[str]:
    """The instants that tasks were fired for, from their keys."""
    return [str(view.key).split(":", 2)[2] for view in views]


# ── by a worker ──────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_fires_what_is_due_and_runs_it(house: House, heard: Heard) -> None:
    at = datetime.now(UTC) - timedelta(seconds=5)
    view = await house.app.schedules.put(
        "monthly",
        "report",
        {"month": "June"},
        at=at,
        user="ada",
        priority=3,
        by="ada",
        reason="for the board",
    )
    assert (view.next_at, view.at, view.pool, view.deadline, view.revision) == (at, at, "reports", 3600.0, 1)
    house.start()
    await heard.first(1)
    [task] = await tasks(house)
    ended = await house.app.wait(task.id, timeout=PATIENCE_S)
    assert (ended.state, ended.result) == ("succeeded", "the report of June")
    assert (ended.user, ended.priority, ended.pool) == ("ada", 3, "reports")
    assert ended.deadline_at == ended.submitted_at + timedelta(hours=1)
    text = at.isoformat().replace("+00:00", "Z")
    assert ended.key == f"schedule:monthly:{text}"
    [first, *_] = await house.app.stored_events(task.id)
    assert first.data == {"agent": "report", "pool": "reports", "schedule": "monthly", "instant": text}
    after = await house.app.schedules.get("monthly")
    assert (after.next_at, after.last_at, after.last_task, after.fired) == (None, at, task.id, 1)
    [decision] = await house.app.pauses.audit()
    assert (decision.who, decision.what, decision.subject) == ("ada", "schedule:create", "monthly")
    assert await house.violations() == []


async def test_a_process_without_the_agent_fires_for_those_that_have_it(house: House, heard: Heard) -> None:
    await house.app.schedules.put("now", "report", at=datetime.now(UTC))
    other = Outlast("other", store=house.store)
    worker = other.worker(WorkerSettings(sweep_s=0.05, poll_s=0.05))
    running = asyncio.create_task(worker.run())
    [said] = await heard.first(1)
    worker.stop()
    await running
    [task] = await tasks(house)
    assert (task.state, said.schedule, said.task) == ("queued", "now", task.id)


async def test_an_interval_goes_on(house: House, heard: Heard) -> None:
    await house.app.schedules.put("tick", "report", every=1)
    house.start()
    said = await heard.first(3)
    moments = [datetime.fromisoformat(each) for each in instants(await tasks(house))]
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(seconds=1)}
    # Known to be due, it is looked at when it is.
    assert all(each.late < 1 for each in said)


# ── once an instant ──────────────────────────────────────────────────────────────────────────────


async def test_processes_that_race_fire_each_instant_once(house: House, reopen: Reopen) -> None:
    """Duties of four processes at one instant of twenty schedules, whose look is not shared out."""
    stores = [house.store, await reopen(), await reopen(), await reopen()]
    first = await now_of(house) - 2 * HOUR
    for n in range(20):
        made = Schedule(
            tenant="default", id=f"s-{n}", agent="report", pool="reports", missed="all",
            timing=schedule.written(Every(every_us=HOUR)),
        )  # fmt: skip
        await house.store.put_schedule(PutSchedule(schedule=made, next_at=first, by="tests"))
    await asyncio.gather(*(schedules.fire_due(store) for store in stores * 2))
    rows = await house.store.list_schedules("default")
    # Whoever took less than all left the rest to others who had looked already.
    async with asyncio.timeout(PATIENCE_S):
        while min(row.fired for row in rows) < 3:
            await asyncio.gather(*(schedules.fire_due(store) for store in stores))
            rows = await house.store.list_schedules("default")
    assert [row.fired for row in rows] == [3] * 20
    found = await tasks(house)
    assert len(found) == 60
    assert len({view.key for view in found}) == 60
    assert await house.violations(quiet=False) == []


async def test_two_that_took_the_same_schedule_fire_it_once(house: House, reopen: Reopen) -> None:
    """As after a freeze: both have read it as due."""
    other = await reopen()
    await behind(house, Every(every_us=HOUR), await now_of(house) - HOUR // 2)
    row = await house.store.read_schedule("default", "behind")
    assert row is not None
    now = await now_of(house)
    mine, theirs = schedules.firings_of(row, now), schedules.firings_of(row, now)
    verdicts = await asyncio.gather(house.store.fire_schedules(mine), other.fire_schedules(theirs))
    assert sorted(verdict.kind for [verdict] in verdicts) == ["fired", "passed"]
    assert len(await tasks(house)) == 1


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(("point", "stored"), [("schedules.before_fire", 0), ("schedules.after_fire", 1)])
async def test_a_death_neither_skips_nor_doubles_an_instant(
    house: House, monkeypatch: pytest.MonkeyPatch, point: str, stored: int
) -> None:
    monkeypatch.setattr(schedules, "LEASE_US", 1)
    await behind(house, Every(every_us=HOUR), await now_of(house) - 1)

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    probes.install(die)
    try:
        with pytest.raises(Died):
            await schedules.fire_due(house.store)
    finally:
        probes.install(None)
    assert len(await tasks(house)) == stored
    # The dead one's look is over when the database's clock has gone on, which counts in thousandths.
    async with asyncio.timeout(20):
        while not await tasks(house):
            await schedules.fire_due(house.store)
    await schedules.fire_due(house.store)
    assert len(await tasks(house)) == 1


async def test_a_clock_that_is_wrong_fires_nothing_early(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine runs an hour ahead; the database's clock is the one that counts."""
    await house.app.schedules.put("soon", "report", at=datetime.now(UTC) + timedelta(minutes=30))
    right = clock.unix_us
    monkeypatch.setattr(clock, "unix_us", lambda: right() + HOUR)
    due = await schedules.fire_due(house.store)
    assert due.rows == ()
    assert due.next_due_us is not None
    assert 29 * MINUTE < due.next_due_us <= 30 * MINUTE
    assert await tasks(house) == []


# ── missed firings ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "most", "fired"),
    [("skip", 100, []), ("once", 100, [0]), ("all", 100, [3, 2, 1, 0]), ("all", 2, [1, 0])],
)
async def test_what_was_missed_is_made_up_for_by_policy(
    house: House, policy: str, most: int, fired: list[int]
) -> None:
    newest = await now_of(house) - 10 * MINUTE
    await behind(house, Every(every_us=HOUR), newest - 3 * HOUR, missed=policy, max_missed=most)
    await schedules.fire_due(house.store)
    assert instants(await tasks(house)) == [schedule.instant_text(newest - n * HOUR) for n in fired]
    view = await house.app.schedules.get("behind")
    assert view.next_at == datetime.fromtimestamp((newest + HOUR) / 1_000_000, UTC)
    assert view.fired == len(fired)
    assert bool(view.note) == (policy != "all" or most == 2)
    # It is not made up for again.
    await schedules.fire_due(house.store)
    assert len(await tasks(house)) == len(fired)


async def test_what_fires_together_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many firings are parted, by number and by the bytes of their inputs; a death in between loses none."""
    newest = await now_of(house) - SECOND_US
    await behind(
        house, Every(every_us=HOUR), newest - 9 * HOUR, missed="all", input='{"month": "a longer one"}'
    )
    monkeypatch.setattr(schedules, "MOST", 4)
    portions: list[int] = []
    fire = house.store.fire_schedules

    async def counted(firings: Any, **options: Any) -> Any:
        if len(portions) == 2:
            raise Died
        portions.append(len(firings))
        return await fire(firings, **options)

    monkeypatch.setattr(house.store, "fire_schedules", counted)
    monkeypatch.setattr(schedules, "LEASE_US", 1)
    with pytest.raises(Died):
        await schedules.fire_due(house.store)
    assert (portions, len(await tasks(house))) == ([4, 4], 8)
    portions.clear()
    monkeypatch.setattr(schedules, "MOST_BYTES", 1)
    await schedules.fire_due(house.store)
    assert portions == [1, 1]
    assert instants(await tasks(house)) == [
        schedule.instant_text(newest - n * HOUR) for n in range(9, -1, -1)
    ]


async def test_catching_up_honours_the_last_task(house: House) -> None:
    newest = await now_of(house) - 10 * MINUTE
    await behind(house, Every(every_us=HOUR), newest - 3 * HOUR, missed="all", overlap="skip")
    await schedules.fire_due(house.store)
    view = await house.app.schedules.get("behind")
    assert (view.fired, view.skipped, len(await tasks(house))) == (1, 3, 1)


async def test_jitter_delays_the_start_and_not_the_firing(house: House) -> None:
    first = await now_of(house) - SECOND_US
    # A wait of a few seconds would tell nothing.
    while schedule.spread("default", "behind", first, HOUR) < MINUTE:
        first -= 1
    await behind(house, Every(every_us=HOUR), first, jitter_us=HOUR)
    await schedules.fire_due(house.store)
    [task] = await tasks(house)
    assert (task.state, task.reason) == ("waiting", "timer")
    assert instants([task]) == [schedule.instant_text(first)]


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────


async def test_a_zone_that_this_system_lacks_is_left_to_others_with_a_note(house: House) -> None:
    await behind(house, Cron(expression="* * * * *", zone="Mars/Olympus_Mons"), await now_of(house) - 1)
    await house.app.schedules.put("fine", "report", at=datetime.now(UTC))
    await schedules.fire_due(house.store)
    assert [view.key and view.key.split(":")[1] for view in await tasks(house)] == ["fine"]
    view = await house.app.schedules.get("behind")
    assert "Mars/Olympus_Mons" in (view.note or "")
    assert view.fired == 0
    assert view.next_at is not None


async def test_a_firing_that_the_database_refuses_spares_its_neighbours(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.app.schedules.put("fine", "report", at=datetime.now(UTC))
    await house.app.schedules.put("odd", "report", at=datetime.now(UTC))
    made = schedules.submission_of

    def spoiled(row: Any, instant: int) -> Any:
        right = made(row, instant)
        return right if row.schedule.id == "fine" else replace(right, key="a\x01b")

    monkeypatch.setattr(schedules, "submission_of", spoiled)
    warnings: list[telemetry.Warned] = []
    end = telemetry.subscribe(lambda s: warnings.append(s) if isinstance(s, telemetry.Warned) else None)
    await schedules.fire_due(house.store)
    end()
    assert [view.key and view.key.split(":")[1] for view in await tasks(house)] == ["fine"]
    assert ["odd" in each.about for each in warnings] == [True]


async def test_a_store_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch, house: House) -> None:
    said: list[float] = []
    answers: list[Any] = [StoreUnavailable("away"), StoreUnavailable("away"), asyncio.CancelledError()]

    async def away(store: Any) -> Any:
        raise answers.pop(0)

    async def sleep(seconds: float) -> None:
        said.append(seconds)

    monkeypatch.setattr(schedules, "fire_due", away)
    monkeypatch.setattr(schedules.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await schedules.keep_firing(house.store, WorkerSettings(sweep_s=0.75))
    assert said == [1.5, 1.5]


# ── what people ask for ──────────────────────────────────────────────────────────────────────────

AT = datetime(2030, 1, 1, tzinfo=UTC)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cron": "0 0 30 2 *"}, InvalidSchedule, "never fires"),
    ({"cron": "0 0 * * *", "zone": "Mars/Olympus_Mons"}, InvalidSchedule, "time zone"),
    ({"every": 0}, InvalidSchedule, "more than zero"),
    ({"every": -5}, InvalidSchedule, "more than zero"),
    ({"every": f"{300 * 365}d"}, InvalidSchedule, "hundred years"),
    ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, InvalidSchedule, "in the past"),
    ({"at": datetime(2200, 1, 1, tzinfo=UTC)}, InvalidSchedule, "hundred years"),
    ({"at": datetime(2030, 1, 1)}, InvalidSchedule, "time zone"),
    ({}, InvalidSchedule, "none of them"),
    ({"at": AT, "every": 60}, InvalidSchedule, "every and at"),
    ({"at": AT, "missed": "never"}, InvalidSchedule, "missed"),
    ({"at": AT, "overlap": "queue"}, InvalidSchedule, "overlap"),
    ({"at": AT, "max_missed": 0}, InvalidSchedule, "max_missed"),
    ({"at": AT, "max_missed": 1001}, InvalidSchedule, "max_missed"),
    ({"at": AT, "jitter": "2d"}, InvalidSchedule, "jitter"),
    ({"at": AT, "jitter": -1}, InvalidSchedule, "jitter"),
    ({"at": AT, "id": ""}, InvalidKey, "empty"),
    ({"at": AT, "id": " "}, InvalidKey, "not allowed"),
    ({"at": AT, "id": "a/b"}, InvalidKey, "slash"),
    ({"at": AT, "id": "x" * 121}, InvalidKey, "120"),
    ({"at": AT, "agent": "re port"}, InvalidKey, "agent"),
    ({"at": AT, "agent": ""}, InvalidKey, "agent"),
    ({"at": AT, "agent": "nobody"}, AgentNotFound, "nobody"),
    ({"at": AT, "version": "7"}, AgentNotFound, "7"),
    ({"at": AT, "input": {"year": 1}}, InvalidInput, "year"),
    ({"at": AT, "input": [1]}, InvalidInput, "object"),
    ({"at": AT, "tenant": "a b"}, InvalidKey, "tenant"),
    ({"at": AT, "user": ""}, InvalidKey, "user"),
    ({"at": AT, "pool": "a b"}, InvalidKey, "pool"),
    ({"at": AT, "priority": 1001}, InvalidRequest, "priority"),
    ({"at": AT, "deadline": 0}, InvalidRequest, "deadline"),
    ({"at": AT, "by": ""}, InvalidKey, "by"),
    ({"at": AT, "reason": "a\x01"}, InvalidKey, "reason"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "error", "words"), REFUSED, ids=lambda value: str(value)[:40])
async def test_nonsense_is_refused_and_nothing_is_stored(
    house: House, said: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await house.app.schedules.apply(ScheduleRequest(**{"id": "s", "agent": "report", **said}))
    assert (await house.store.dump())["schedules"] == []


async def test_one_that_is_due_within_a_minute_ago_fires_at_once(house: House) -> None:
    await house.app.schedules.put("late", "report", at=datetime.now(UTC) - timedelta(seconds=50))
    await schedules.fire_due(house.store)
    assert len(await tasks(house)) == 1


async def test_the_same_again_fires_nothing_twice(house: House) -> None:
    at = datetime.now(UTC) - timedelta(seconds=30)
    first = await house.app.schedules.put("once", "report", at=at)
    await schedules.fire_due(house.store)
    kind, again = await house.app.schedules.apply(ScheduleRequest(id="once", agent="report", at=at))
    assert (kind, again.revision, again.next_at) == ("unchanged", first.revision, None)
    other = await house.app.schedules.put("once", "report", {"month": "July"}, at=at)
    assert (other.revision, other.next_at) == (2, None)
    await schedules.fire_due(house.store)
    assert len(await tasks(house)) == 1
    # Deleted and made again, it is recognised by its key.
    await house.app.schedules.delete("once")
    await house.app.schedules.put("once", "report", at=at)
    await schedules.fire_due(house.store)
    assert len(await tasks(house)) == 1


async def test_revisions_are_compared(house: House) -> None:
    await house.app.schedules.put("s", "report", every="1h", revision=0)
    with pytest.raises(ScheduleConflict, match="must not be there") as caught:
        await house.app.schedules.put("s", "report", every="2h", revision=0)
    assert caught.value.revision == 1
    assert (await house.app.schedules.put("s", "report", every="2h", revision=1)).revision == 2
    with pytest.raises(ScheduleConflict, match="revision 1 was seen"):
        await house.app.schedules.delete("s", revision=1)
    await house.app.schedules.pause("s", reason="x", revision=2)
    with pytest.raises(ScheduleConflict, match="revision 2 was seen"):
        await house.app.schedules.resume("s", revision=2)
    with pytest.raises(ScheduleConflict):
        await house.app.schedules.put("t", "report", every="2h", revision=3)


async def test_a_pause_stops_firing_and_is_not_made_up_for(house: House) -> None:
    first = await now_of(house) - 2 * HOUR - MINUTE
    await behind(house, Every(every_us=HOUR), first, missed="all")
    paused = await house.app.schedules.pause("behind", reason="the auditors", by="ada")
    assert (paused.paused, paused.paused_by, paused.next_at) == ("the auditors", "ada", None)
    await schedules.fire_due(house.store)
    preview = await house.app.schedules.preview("behind", count=2)
    resumed = await house.app.schedules.resume("behind", by="bob", reason="they left")
    assert resumed.paused is None
    assert [resumed.next_at] == list(preview[:1])
    assert resumed.next_at == datetime.fromtimestamp((first + 3 * HOUR) / 1_000_000, UTC)
    await schedules.fire_due(house.store)
    assert await tasks(house) == []
    # Each of them again says nothing new.
    assert (await house.app.schedules.resume("behind")).revision == resumed.revision
    trail = [(each.what, each.who) for each in await house.app.pauses.audit()]
    assert trail == [
        ("schedule:create", "tests"), ("schedule:pause", "ada"), ("schedule:resume", "bob"),
    ]  # fmt: skip


async def test_what_is_not_there_is_said(house: House) -> None:
    every = house.app.schedules
    for act in (
        every.get("none"), every.delete("none"), every.resume("none"), every.pause("none", reason="x"),
        every.preview("none"),
    ):  # fmt: skip
        with pytest.raises(ScheduleNotFound):
            await act
    await every.put("s", "report", every=60)
    with pytest.raises(ScheduleNotFound):
        await every.get("s", tenant="other")
    with pytest.raises(ConfigurationError):
        await every.put("s", test_what_is_not_there_is_said, every=60)


async def test_a_preview_of_times_not_yet_stored(house: House) -> None:
    found = await house.app.schedules.preview(cron="30 2 29 3 *", zone="Europe/Berlin", count=400)
    local = {(each.astimezone(UTC).hour, each.minute) for each in found}
    assert len(found) == 400
    # Half past two, or three where that was skipped.
    assert local <= {(0, 30), (1, 30), (1, 0)}
    for count in (0, 1001):
        with pytest.raises(InvalidSchedule):
            await house.app.schedules.preview(every=60, count=count)
    assert (await house.store.dump())["schedules"] == []


async def test_lists_are_by_id(house: House) -> None:
    for name in ("b", "a", "c"):
        await house.app.schedules.put(name, "report", every="1h")
    assert [view.id for view in await house.app.schedules.list(limit=2)] == ["a", "b"]
    assert [view.id for view in await house.app.schedules.list(after="b")] == ["c"]


# ── standing still ───────────────────────────────────────────────────────────────────────────────


async def test_who_has_nothing_to_fire_looks_every_other_second(
    monkeypatch: pytest.MonkeyPatch, house: House
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(schedules.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await schedules.keep_firing(house.store, WorkerSettings())
    assert pauses == [2.0, 2.0]
    pauses.clear()
    await house.app.schedules.put("soon", "report", at=datetime.now(UTC) + timedelta(seconds=1))
    with pytest.raises(asyncio.CancelledError):
        await schedules.keep_firing(house.store, WorkerSettings())
    assert all(0 < each < 1.1 for each in pauses)
