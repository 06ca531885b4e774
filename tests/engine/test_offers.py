"""A worker that waits for work claims in the transaction of those who submit in its process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House
from tests.offering import Watched, tell, told_of

from outlast import TaskContext
from outlast.engine.offers import Offer, Offers
from outlast.errors import StoreUnavailable
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.records import ClaimRequest, Serves, Submission
from outlast.submitting import ALONG_BYTES, Request

IDLE_S = 60.0
"""How long a worker of these tests waits before it looks again by itself."""


@pytest.fixture
async def watched(store: Store) -> Watched:
    """The store, watched."""
    return Watched(store)


@pytest.fixture
async def idle(watched: Watched) -> Any:
    """An open app with a worker that has done one task, and waits for another."""
    house = House(watched)  # type: ignore[arg-type]
    tell(house.app)

    @house.app.agent
    async def echo(task: TaskContext, text: str = "") -> str:
        return text

    async with house:
        house.start(poll_s=IDLE_S)
        await house.run("echo", text="first")
        await offered(house)
        watched.verbs.clear()
        yield house


async def offered(house: House) -> None:
    """Wait until a worker offers to claim."""
    await told_of(house.app).wait()


async def under_way(
    house: House, watched: Watched, *, text: str
) -> tuple[asyncio.Task[TaskHandle], asyncio.Event]:
    """Submit beside a worker; answer the caller, and what lets its transaction begin."""
    held, go = asyncio.Event(), asyncio.Event()

    async def slow(work: Any) -> Any:
        held.set()
        await go.wait()
        return await work()

    watched.along = slow
    calling = asyncio.create_task(house.submit("echo", text=text))
    async with asyncio.timeout(PATIENCE_S):
        await held.wait()
    return calling, go


async def attempts(house: House, handle: TaskHandle) -> list[tuple[int, str]]:
    """Answer how each attempt at a task has ended."""
    said = [(one.epoch, one.kind) for one in await house.events(handle) if one.kind.startswith("attempt.")]
    return [one for one in said if one[1] != "attempt.started"]


async def test_what_is_submitted_is_claimed_with_it(idle: House, watched: Watched) -> None:
    for number in range(3):
        await offered(idle)
        handle = await idle.submit("echo", text=f"{number}")
        assert (await idle.ended(handle)).result == f"{number}"
    assert watched.verbs == ["submit 1 and claim"] * 3


async def test_many_at_once_are_submitted_alone(idle: House, watched: Watched) -> None:
    handles = await idle.app.submit_many([Request(agent="echo", input={"text": "x"}) for _ in range(20)])
    for handle in handles:
        assert (await idle.ended(handle)).state == "succeeded"
    assert watched.verbs[0] == "submit 20"


async def test_a_long_one_is_submitted_alone(idle: House, watched: Watched) -> None:
    handle = await idle.submit("echo", text="x" * ALONG_BYTES)
    assert len((await idle.ended(handle)).result) == ALONG_BYTES
    assert watched.verbs[0] == "submit 1"


async def test_a_worker_that_serves_something_else_is_not_asked(idle: House, watched: Watched) -> None:
    handle = await idle.app.submit("echo", {"text": "elsewhere"}, pool="elsewhere")
    assert (await handle.get()).state == "queued"
    assert watched.verbs == ["submit 1"]


async def test_the_transaction_of_a_caller_claims_nothing(
    idle: House, watched: Watched, backdoor: Any
) -> None:
    async with backdoor.transaction() as connection:
        handle = await idle.app.submit("echo", {"text": "mine"}, connection=connection)
    watched.wakes.hint("queue")
    assert (await idle.ended(handle)).result == "mine"
    assert watched.verbs == ["submit 1", "claim 1"]


async def test_where_the_way_is_not_open_both_are_done_apart(idle: House, watched: Watched) -> None:
    async def closed(_: Any) -> None:
        return None

    watched.along = closed
    handle = await idle.submit("echo", text="apart")
    assert (await idle.ended(handle)).result == "apart"
    assert watched.verbs == ["submit 1 and claim", "submit 1", "claim 1"]


async def test_a_lost_answer_leaves_the_task_accepted_once_and_its_lease_given_back(
    idle: House, watched: Watched
) -> None:
    async def lost(work: Any) -> None:
        verdicts, reply = await work()
        assert (len(verdicts), len(reply.claims)) == (1, 1)
        raise StoreUnavailable("the answer was lost")

    watched.along = lost
    handle = await idle.submit("echo", text="lost")
    assert (await idle.ended(handle)).result == "lost"
    assert await attempts(idle, handle) == [(1, "attempt.released"), (3, "attempt.succeeded")]
    assert sorted(watched.verbs) == ["claim 1", "reconcile", "submit 1", "submit 1 and claim"]
    assert len(await idle.app.list()) == 2


async def test_a_store_that_is_away_is_asked_again(idle: House, watched: Watched) -> None:
    async def away(_: Any) -> None:
        raise StoreUnavailable("no connection")

    watched.along = away
    handle = await idle.submit("echo", text="again")
    assert (await idle.ended(handle)).result == "again"
    assert await attempts(idle, handle) == [(1, "attempt.succeeded")]


async def test_a_fault_is_the_callers_and_the_worker_goes_on(idle: House, watched: Watched) -> None:
    async def broken(_: Any) -> None:
        raise ZeroDivisionError("a fault of our own")

    watched.along = broken
    with pytest.raises(ZeroDivisionError):
        await idle.submit("echo", text="never")
    watched.along = lambda work: work()
    await offered(idle)
    assert "reconcile" in watched.verbs
    handle = await idle.submit("echo", text="next")
    assert (await idle.ended(handle)).result == "next"


async def test_a_worker_that_is_cancelled_takes_nothing_from_the_caller(
    idle: House, watched: Watched
) -> None:
    calling, go = await under_way(idle, watched, text="kept")
    [(_, running)] = idle.workers
    idle.workers.clear()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    go.set()
    handle = await calling
    # Its session is gone, so that it claims nothing.
    assert (await handle.get()).state == "queued"
    idle.start()
    assert (await idle.ended(handle)).result == "kept"


async def test_a_caller_who_gives_up_takes_nothing_from_the_worker(idle: House, watched: Watched) -> None:
    calling, go = await under_way(idle, watched, text="given up")
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    go.set()
    await offered(idle)
    newest, _ = await idle.app.list()
    assert (await idle.app.wait(newest.id, timeout=PATIENCE_S)).result == "given up"
    assert watched.verbs == ["submit 1 and claim"]


async def test_a_worker_that_stops_waits_for_whoever_has_taken_its_offer(
    idle: House, watched: Watched
) -> None:
    calling, go = await under_way(idle, watched, text="late")
    (worker, running), *_ = idle.workers
    worker.stop()
    go.set()
    handle = await calling
    await idle.stop()
    assert running.done()
    # It was run, or given back: either way nobody has to wait for a lease to end.
    assert (await handle.get()).state in ("queued", "succeeded")
    idle.start()
    assert (await idle.ended(handle)).result == "late"


class TestOffers:
    """The open offers of a process."""

    def submission(self, **changes: Any) -> Submission:
        """Make a task."""
        given = {"tenant": "t", "task": "task_1", "key": None, "request_digest": "", "agent": "echo"}
        return Submission(**{**given, "pool": "default", **changes})

    def offer(self, *, agent: str = "echo", version: str = "2", default: bool = True) -> Offer:
        """Offer to claim."""
        serves = (Serves(agent=agent, version=version, default=default),)
        request = ClaimRequest(session="s", pools=("default",), serves=serves, limit=1, config="")
        return Offer(request, lambda: None)

    async def test_one_is_taken_once(self) -> None:
        offers, offer = Offers(), self.offer()
        offers.make(offer)
        assert offers.take([self.submission()]) is offer
        assert offers.take([self.submission()]) is None
        assert not offers.withdraw(offer)

    async def test_one_that_is_withdrawn_is_not_taken(self) -> None:
        offers, offer = Offers(), self.offer()
        offers.make(offer)
        assert offers.withdraw(offer)
        assert offers.take([self.submission()]) is None

    @pytest.mark.parametrize(
        ("changes", "taken"),
        [
            ({}, True),
            ({"version": "2"}, True),
            ({"version": "1"}, False),
            ({"agent": "other"}, False),
            ({"pool": "other"}, False),
        ],
    )
    async def test_one_is_taken_by_what_it_serves(self, changes: dict[str, Any], taken: bool) -> None:
        offers = Offers()
        offers.make(self.offer())
        assert (offers.take([self.submission(**changes)]) is not None) is taken

    async def test_a_version_that_is_not_the_default_takes_only_what_asks_for_it(self) -> None:
        offers = Offers()
        offers.make(self.offer(default=False))
        assert offers.take([self.submission()]) is None
        assert offers.take([self.submission(version="2")]) is not None

    def test_one_of_another_event_loop_is_left_there(self) -> None:
        offers = Offers()

        async def make() -> None:
            offers.make(self.offer())

        async def take() -> Offer | None:
            return offers.take([self.submission()])

        asyncio.run(make())
        assert asyncio.run(take()) is None
