"""Child tasks: one child however often its parent runs, its end told once, and no orphan left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import ChildCancelled, ChildFailed, Outlast, TaskContext
from outlast.core import ids
from outlast.engine.children import child_id
from outlast.errors import AgentNotFound, InvalidInput, StoreUnavailable, WaitTimeout
from outlast.store.contract import BatchRejected
from outlast.store.posting import Cancel, Delivered, News
from outlast.store.records import Submission, Submitted, SweepRequest, TaskRef
from outlast.testing.store_suite.scene import HOUR


def research(app: Outlast) -> Any:
    @app.agent
    async def research(task: TaskContext, number: int = 0) -> int:
        if number < 0:
            raise ValueError("not below zero")
        return number * number

    return research


def lasting(app: Outlast) -> Any:
    @app.agent
    async def lasting(task: TaskContext) -> Any:
        return await task.wait("go")

    return lasting


async def delivered(house: House) -> None:
    """Stop every worker, and deliver what ends have left."""
    await house.stop()
    while (await house.store.deliver(100)).more:
        pass


def test_ids_of_children_sort_by_number_next_to_their_parent() -> None:
    parent, later = (ids.new_id(ids.TASK, 1_790_000_000_000 + ms, 7 << 60) for ms in (0, 1))
    numbered = [child_id(parent, f"research#{number}") for number in (1, 2, 9, 10, 99, 100, 1_000, 999_999)]
    assert numbered == sorted(numbered)
    odd = ("research", "#", "a#b", "#\N{SUPERSCRIPT TWO}", "research#1000001", "other#1", "x" * 199)
    made = [*numbered, *(child_id(parent, key) for key in odd), child_id(later, "research#1")]
    assert len(set(made)) == len(made)
    assert all(ids.parse_id(one).prefix == ids.TASK for one in made)
    assert [ids.unix_ms_of(one) for one in made] == [1_790_000_000_000] * (len(made) - 1) + [
        1_790_000_000_001
    ]
    assert all(one < later for one in made[:-1])


async def test_a_childs_result_is_its_parents_operation(house: House) -> None:
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> Any:
        handle = task.spawn(child, {"number": 7})
        return [handle.id, await handle.result(), await handle]

    view = await house.run(parent)
    made, *results = view.result
    assert results == [49, 49]
    assert made == child_id(view.id, "research#1")
    operation = (await house.operations(view))["research#1"]
    assert (operation.kind, operation.state, operation.result) == ("child", "succeeded", 49)
    spawned = await house.app.get(made)
    assert (spawned.state, spawned.result) == ("succeeded", 49)
    (row,) = await house.store.read_tasks([TaskRef(tenant="default", task=made)])
    assert row.parent == view.id
    assert await house.violations() == []


async def test_a_parent_waits_without_a_slot_and_its_children_take_it(house: House) -> None:
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> list[int]:
        handles = [task.spawn(child, {"number": number}) for number in range(5)]
        return list(await task.gather(*(handle.result() for handle in handles)))

    house.start(slots=1)
    handle = await house.submit(parent)
    view = await house.ended(handle)
    assert view.result == [0, 1, 4, 9, 16]
    assert view.attempts >= 2
    assert len(await house.app.list(agent="research")) == 5
    assert await house.violations() == []


async def test_failures_of_children_are_told_apart_and_raised_the_same_on_replay(house: House) -> None:
    child, long = research(house.app), lasting(house.app)
    seen: list[list[str]] = []

    @house.app.agent
    async def parent(task: TaskContext) -> list[str]:
        failing, cut = task.spawn(child, {"number": -1}), task.spawn(long)
        said = []
        for handle in (failing, cut):
            try:
                if handle is cut:
                    await cut.cancel("not needed any more")
                await handle.result()
            except (ChildFailed, ChildCancelled) as error:
                said.append(f"{error.code} {error.reason} {error}".replace(handle.id, "it"))
        seen.append(said)
        await task.sleep(0.05)
        return said

    view = await house.run(parent)
    assert view.result == [
        "child_failed agent_error child it failed: ValueError: not below zero",
        "child_cancelled cancelled child it was cancelled: not needed any more",
    ]
    assert len(seen) >= 2
    assert seen == [view.result] * len(seen)
    assert await house.violations() == []


async def test_what_a_child_does_not_take_is_refused_at_once(house: House) -> None:
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> None:
        with pytest.raises(InvalidInput):
            task.spawn(child, {"number": "many"})
        with pytest.raises(AgentNotFound):
            task.spawn("nobody")

    assert (await house.run(parent)).state == "succeeded"
    assert await house.app.list(agent="research") == []


async def test_a_parent_that_ends_takes_its_children_with_it_but_not_the_detached(house: House) -> None:
    long = lasting(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> list[str]:
        kept, detached = task.spawn(long), task.spawn(long, detached=True)
        # Nobody waits for them to be accepted: the ending does.
        return [kept.id, detached.id]

    view = await house.run(parent)
    kept, detached = view.result
    cut = await house.app.wait(kept, timeout=PATIENCE_S)
    assert cut.state == "cancelled"
    assert cut.error is not None
    assert cut.error["message"] == "its parent ended"
    assert (await house.app.get(detached)).ended_at is None
    await house.app.signal(detached, "go", 1)
    assert (await house.app.wait(detached, timeout=PATIENCE_S)).result == 1
    await delivered(house)
    assert await house.violations() == []


async def test_a_cancel_goes_down_the_tree(house: House) -> None:
    begun: set[str] = set()
    both = asyncio.Event()

    @house.app.agent
    async def lasting(task: TaskContext) -> None:
        begun.add(task.id)
        if len(begun) == 2:
            both.set()
        await task.wait("go")

    @house.app.agent
    async def middle(task: TaskContext) -> None:
        await task.gather(*(task.spawn(lasting).result() for _ in range(2)))

    @house.app.agent
    async def top(task: TaskContext) -> None:
        await task.spawn(middle)

    handle = await house.submit(top)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await both.wait()
    await handle.cancel("enough", by="kim")
    tree = [*await house.app.list(agent="lasting"), *await house.app.list(agent="middle")]
    assert len(tree) == 3
    for view in tree:
        assert (await house.app.wait(view.id, timeout=PATIENCE_S)).state == "cancelled"
    assert (await house.ended(handle)).state == "cancelled"
    # What the children had left for a parent that is gone is gone too.
    await delivered(house)
    assert (await house.store.dump())["posts"] == []
    assert await house.violations() == []


async def test_the_answer_of_a_submit_is_lost_and_there_is_one_child(house: House) -> None:
    child = research(house.app)
    submit, lost = house.store.submit, []

    async def forgetful(batch: list[Submission], **options: Any) -> list[Submitted]:
        answers = await submit(batch, **options)
        if any(one.parent for one in batch) and len(lost) < 2:
            lost.append(len(batch))
            raise StoreUnavailable("the connection broke before the answer came")
        return answers

    @house.app.agent
    async def parent(task: TaskContext) -> list[int]:
        handles = [task.spawn(child, {"number": number}) for number in range(3)]
        return [await handle for handle in handles]

    handle = await house.submit(parent)
    house.store.submit = forgetful  # type: ignore[method-assign, assignment]
    house.start()
    assert (await house.ended(handle)).result == [0, 1, 4]
    assert lost == [3, 3]
    assert len(await house.app.list(agent="research")) == 3
    (row,) = [row for row in (await house.store.dump())["tasks"] if row["id"] == handle.id]
    assert row["children"] == 3
    assert await house.violations() == []


async def test_what_is_on_record_is_not_submitted_again(house: House) -> None:
    child, long = research(house.app), lasting(house.app)
    submit, sent = house.store.submit, []

    async def counted(batch: list[Submission], **options: Any) -> list[Submitted]:
        sent.extend(one.task for one in batch if one.parent)
        return await submit(batch, **options)

    @house.app.agent
    async def parent(task: TaskContext) -> list[Any]:
        handles = [task.spawn(child, {"number": 3}), task.spawn(long)]
        await task.sleep(0.05)
        await handles[1].cancel()
        return [task.attempt, await handles[0]]

    handle = await house.submit(parent)
    house.store.submit = counted  # type: ignore[method-assign, assignment]
    house.start()
    attempt, result = (await house.ended(handle)).result
    assert attempt >= 2
    assert result == 9
    assert sorted(sent) == sorted(child_id(handle.id, key) for key in ("research#1", "lasting#1"))
    assert await house.violations() == []


async def test_a_child_that_cannot_be_stored_is_its_own_parents_fault(house: House) -> None:
    """Children of many parents are submitted together."""
    child = research(house.app)
    submit, refused, wrong = house.store.submit, [], set[str]()

    async def picky(batch: list[Submission], **options: Any) -> list[Submitted]:
        if any(one.parent and one.parent.task in wrong for one in batch):
            refused.append(len(batch))
            raise BatchRejected("a value that no database takes")
        return await submit(batch, **options)

    @house.app.agent
    async def parent(task: TaskContext) -> list[int]:
        handles = [task.spawn(child, {"number": number}) for number in range(3)]
        return [await handle for handle in handles]

    parents = [await house.submit(parent) for _ in range(4)]
    wrong.add(parents[1].id)
    house.store.submit = picky  # type: ignore[method-assign, assignment]
    house.start()
    views = [await house.ended(one) for one in parents]
    assert [view.state for view in views] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert views[1].error is not None
    assert views[1].error["code"] == "journal_rejected"
    assert refused[0] == 12
    assert len(await house.app.list(agent="research")) == 9
    assert await house.violations() == []


async def test_a_parent_that_lost_its_lease_has_no_child_accepted(house: House) -> None:
    """Its lease is taken before the submit of the child; the next attempt spawns it."""
    child = research(house.app)
    submit, taken = house.store.submit, []

    async def after_a_sweep(batch: list[Submission], **options: Any) -> list[Submitted]:
        if any(one.parent for one in batch) and not taken:
            at = (await house.store.health()).now
            taken.extend((await house.store.sweep(SweepRequest(), now=at + HOUR)).lost)
            answers = await submit(batch, **options)
            assert [one.kind for one in answers] == ["stale"]
            assert (await house.store.dump())["operations"] == []
            return answers
        return await submit(batch, **options)

    @house.app.agent
    async def parent(task: TaskContext) -> list[int]:
        return [task.attempt, await task.spawn(child, {"number": 3})]

    handle = await house.submit(parent)
    house.store.submit = after_a_sweep  # type: ignore[method-assign, assignment]
    house.start()
    attempt, result = (await house.ended(handle)).result
    assert result == 9
    assert attempt >= 2
    assert [ref.task for ref in taken] == [handle.id]
    assert len(await house.app.list(agent="research")) == 1
    assert await house.violations() == []


async def test_a_parent_that_is_being_cancelled_has_no_child_accepted(house: House) -> None:
    child = research(house.app)
    submit, answered = house.store.submit, []

    async def after_a_cancel(batch: list[Submission], **options: Any) -> list[Submitted]:
        if any(one.parent for one in batch):
            await house.app.cancel(handle.id, by="kim")
            answers = await submit(batch, **options)
            answered.extend(one.kind for one in answers)
            return answers
        return await submit(batch, **options)

    @house.app.agent
    async def parent(task: TaskContext) -> Any:
        return await task.spawn(child)

    handle = await house.submit(parent)
    house.store.submit = after_a_cancel  # type: ignore[method-assign, assignment]
    house.start()
    assert (await house.ended(handle)).state == "cancelled"
    await house.stop()
    assert answered == ["stale"]
    assert await house.app.list(agent="research") == []
    assert await house.violations() == []


async def test_a_result_that_does_not_come_in_time(house: House) -> None:
    long = lasting(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> Any:
        handle = task.spawn(long)
        said = []
        for timeout in (0, 0.1):
            try:
                await handle.result(timeout=timeout)
            except WaitTimeout as error:
                said.append(error.code)
        await handle.cancel()
        try:
            await handle.result(timeout="1h")
        except ChildCancelled as error:
            said.append(error.code)
        # Nothing wakes it for the hour.
        await task.wait("end")
        return said

    handle = await house.submit(parent)
    house.start()
    await house.waits(handle, "signal")
    assert (await house.store.dump())["timers"] == []
    await handle.signal("end")
    assert (await house.ended(handle)).result == ["wait_timeout", "wait_timeout", "child_cancelled"]
    assert await house.violations() == []


async def test_children_of_a_loser_go_on_and_can_be_asked_for_again(house: House) -> None:
    long = lasting(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> Any:
        handle = task.spawn(long)
        first = await task.first(handle.result(timeout="1h"), task.wait("now"))
        await house.app.signal(handle.id, "go", "late", key="once")
        return [*first, await handle.result()]

    handle = await house.submit(parent)
    house.start()
    await house.waits(handle, "signal")
    await handle.signal("now", 1)
    assert (await house.ended(handle)).result == [1, 1, "late"]
    assert await house.violations() == []


async def test_a_child_lives_no_longer_than_its_parent_may(house: House) -> None:
    long = lasting(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> list[str]:
        kept, detached = task.spawn(long, deadline="2h"), task.spawn(long, detached=True, deadline="2h")
        await task.gather(kept.accepted(), detached.accepted())
        return [kept.id, detached.id]

    handle = await house.app.submit(parent, deadline="1h")
    house.start()
    view = await house.ended(handle)
    kept, detached = [await house.app.get(task) for task in view.result]
    assert view.deadline_at is not None
    assert kept.deadline_at is not None
    assert detached.deadline_at is not None
    # By two readings of the database's clock, the worker's being older.
    assert (kept.deadline_at - view.deadline_at).total_seconds() < 1
    assert detached.deadline_at > view.deadline_at


async def test_a_fan_out_comes_back_whole_and_in_order(house: House) -> None:
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> int:
        handles = [task.spawn(child, {"number": number}) for number in range(300)]
        results = await task.gather(*(handle.result() for handle in handles))
        assert results == [number * number for number in range(300)]
        return task.attempt

    deliver, batches = house.store.deliver, []

    async def counted(limit: int, **options: Any) -> Delivered:
        delivered = await deliver(limit, **options)
        batches.append(len(delivered.told))
        return delivered

    house.store.deliver = counted  # type: ignore[method-assign]
    house.start(linger_s=5.0, sweep_s=1.0)
    view = await house.ended(await house.submit(parent))
    assert view.state == "succeeded", view.error
    assert view.result == 1
    # Their worker runs their parent as well, and tells it; the delivery may be there first now and then.
    assert sum(batches) < 150
    assert await house.violations() == []


async def test_a_worker_that_runs_both_tells_the_parent_itself(house: House) -> None:
    """Nobody delivers; what the ends have left is taken with their record."""
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> list[Any]:
        handles = [task.spawn(child, {"number": number}) for number in (2, -1, 3)]
        said: list[Any] = []
        for handle in handles:
            try:
                said.append(await handle)
            except ChildFailed as error:
                said.append(error.reason)
        return said

    async def nobody(limit: int, **options: Any) -> Delivered:
        return Delivered()

    house.store.deliver = nobody  # type: ignore[method-assign]
    house.start(linger_s=HOUR / 1_000_000)
    view = await house.ended(await house.submit(parent))
    assert view.result == [4, "agent_error", 9]
    dump = await house.store.dump()
    assert (dump["posts"], dump["inbox"]) == ([], [])
    assert await house.violations() == []


async def test_an_end_that_became_another_is_delivered(house: House) -> None:
    """A cancel comes as the child returns; its worker has not heard of it, and goes by what was written."""

    @house.app.agent
    async def cut(task: TaskContext) -> int:
        async def ask() -> None:
            request = Cancel(tenant="default", task=task.id, by="person:ann", reason="too late")
            await house.store.cancel([request])

        await task.step(ask)
        return 1

    @house.app.agent
    async def parent(task: TaskContext) -> str:
        try:
            await task.spawn(cut)
        except ChildCancelled as error:
            return str(error).partition(": ")[2]
        return "it succeeded"

    async def deaf(session: str, heard: Any, **options: Any) -> list[News]:
        return [news for news in await ask_news(session, heard, **options) if not news.cancelling]

    ask_news = house.store.news
    house.store.news = deaf  # type: ignore[method-assign]
    # Nobody looks by himself in time.
    house.start(sweep_s=HOUR / 1_000_000, linger_s=HOUR / 1_000_000)
    view = await house.ended(await house.submit(parent))
    assert view.result == "too late"
    assert await house.violations() == []


async def test_an_end_that_comes_as_its_parents_attempt_is_over_is_delivered(house: House) -> None:
    """The end says that the parent hears of it, which is true no more when it is on disk."""
    child = research(house.app)

    @house.app.agent
    async def parent(task: TaskContext) -> list[int]:
        return [await task.spawn(child, {"number": 3}), task.attempt]

    flush = house.store.flush

    async def held(batch: Any, **options: Any) -> Any:
        heard = [one for one in batch.writes if getattr(one.entries[-1], "heard", False)]
        for run in list(worker.runs) if heard else ():
            if run.spec.name == "parent" and run.epoch == 1:
                run.interrupt("outpaced")
        return await flush(batch, **options)

    house.store.flush = held  # type: ignore[method-assign]
    # Nobody looks by himself in time.
    worker = house.start(sweep_s=HOUR / 1_000_000, linger_s=HOUR / 1_000_000)
    view = await house.ended(await house.submit(parent))
    assert view.result == [9, 2]
    assert await house.violations() == []
