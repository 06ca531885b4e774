"""Histories of clients that meet on a real store: workers that freeze, answers that are lost, people in a
hurry; and whether they can have happened."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from outlast.errors import StoreUnavailable
from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import Batch
from outlast.store.records import Claimed, Serves, SessionRenewal, SweepRequest
from outlast.store.rows import EventCursor
from outlast.testing.checkers import check_all
from outlast.testing.history import UNKNOWN, History, Witness, judge, judge_streams
from outlast.testing.store_suite.scene import SECOND, Reopen, Scene

TASKS = 4
WORKERS = 4
ROUNDS = 25
TTL_S = 10
SERVES = (Serves(agent="agent", version="1"),)


class Clock:
    """The database's clock, as far as verbs are told it: each look is a moment later."""

    def __init__(self, now: int) -> None:
        self.now = now

    def pass_time(self, us: int) -> int:
        self.now += us
        return self.now


async def test_leases_are_linearizable(scene: Scene, reopen: Reopen) -> None:
    """Workers claim, write, stay away for longer than their session lasts, and write all the same."""
    history, clock = History(time.monotonic), Clock(scene.now)
    for _ in range(TASKS):
        await scene.submit(agent="agent", pool="pool", version="1")
    stores = [scene.store, *[await reopen() for _ in range(WORKERS - 1)]]

    async def work(number: int) -> None:
        client, fate = f"worker-{number}", random.Random(number)
        mine = _beside(scene, Witness(stores[number], history, client), client, number, clock)
        held: dict[str, Claimed] = {}
        session = await mine.session(TTL_S * SECOND)
        for _ in range(ROUNDS):
            mine.now = clock.pass_time(SECOND // 10)
            match fate.choice(["claim", "write", "write", "write", "end", "away", "sweep", "give up"]):
                case "claim":
                    reply = await mine.claim(session, pools=["pool"], serves=SERVES, limit=2)
                    if reply.refused:
                        session = await mine.session(TTL_S * SECOND)
                    held.update({one.task: one for one in reply.claims})
                case "write" | "end" as what if held:
                    one = fate.choice(list(held.values()))
                    entries: list[Any] = [mine.step(events=(mine.event(),))]
                    if what == "end":
                        entries.append(mine.release())
                    if (await mine.flush(one, *entries)).kind == "stale" and fate.random() < 0.7:
                        held.pop(one.task)
                case "give up" if held:
                    # Nobody waits for the answer, and the batch is on its way all the same.
                    one = held.pop(fate.choice(list(held)))
                    writes = mine.writes(one, mine.step())
                    batch = Batch(writer=f"{client}-{mine.number()}", number=1, writes=(writes,))
                    flushing = asyncio.create_task(mine.store.flush(batch, now=mine.now))
                    await asyncio.sleep(0)
                    flushing.cancel()
                case "away":
                    clock.pass_time(TTL_S * SECOND)
                    await asyncio.sleep(0)
                case "sweep":
                    await mine.store.sweep(SweepRequest(), now=mine.now)
                case _:
                    session = await _renewed(mine, session)

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    # However the dice fell: a lease that is lost, and one that is given back. Of a task of its own, since the
    # others may all have been parked by now.
    await scene.submit(agent="agent", pool="last", version="1")
    last = _beside(scene, Witness(scene.store, history, "last"), "last", WORKERS, clock)
    for swept, answer in ((True, "stale"), (False, "ended"), (False, "ended"), (False, "ended")):
        last.now = clock.pass_time(TTL_S * SECOND + 1)
        await last.sweep()
        reply = await last.claim(await last.session(TTL_S * SECOND), pools=["last"], serves=SERVES)
        if swept:
            last.now = clock.pass_time(TTL_S * SECOND + 1)
            await last.sweep()
        await last.flush(reply.claims[0], last.release())
        assert [*history][-1].answer == answer
    answers = {one.answer for one in history if one.asked[0] == "write"}
    assert {"written", "ended", "stale"} <= answers
    assert max(one.answer for one in history if one.asked[0] == "claim") > 3  # type: ignore[type-var]
    assert judge(history) == []
    assert check_all(await scene.store.dump()) == []


async def _renewed(mine: Scene, session: str) -> str:
    """Renew a session; where it is over, open another."""
    renewal = SessionRenewal(session=session, name="worker", ttl_us=TTL_S * SECOND)
    renewed = await mine.store.renew(renewal, now=mine.now)
    return session if renewed.alive else await mine.session(TTL_S * SECOND)


def _beside(scene: Scene, store: Any, client: str, number: int, clock: Clock) -> Scene:
    """Make a scene of the same world for one more client, with values of its own."""
    return Scene(
        store=cast(Store, store),
        now=clock.now,
        tenant=scene.tenant,
        writer=client,
        _last=100_000 * (number + 1),
    )


async def test_what_is_accepted_stays_and_ends_once(scene: Scene, reopen: Reopen) -> None:
    """Clients submit under the same keys, some without waiting, and look; a worker ends all."""
    history = History(time.monotonic)
    stores = [scene.store, *[await reopen() for _ in range(2)]]
    first = [scene.submission(agent="agent", pool="pool", version="1") for _ in range(12)]
    told: dict[str, str] = {}

    async def submit(number: int) -> None:
        fate = random.Random(number)
        for record in fate.sample(first, len(first)):
            twin = replace(record, task=scene.submission().task)
            place = history.invoke(f"client-{number}", ("life", str(record.key)), "submit")
            asked = asyncio.create_task(stores[number % 3].submit([twin]))
            if fate.random() < 0.3:
                await asyncio.sleep(0)
                asked.cancel()
                continue
            [verdict] = await asked
            told[verdict.task] = str(record.key)
            history.answered(place, (verdict.task, verdict.kind == "replayed"))

    async def look(number: int) -> None:
        fate = random.Random(number)
        while len(ended) < len(first):
            for task, key in fate.sample(sorted(told.items()), len(told)):
                place = history.invoke(f"reader-{number}", ("life", key), "read", task)
                rows = await stores[number % 3].read_tasks([ref(task)])
                history.answered(place, _stands(rows))
            await asyncio.sleep(0)

    def ref(task: str) -> Any:
        return EventCursor(tenant=scene.tenant, task=task, after=0)

    ended: set[str] = set()

    async def work() -> None:
        session = await scene.session()
        while len(ended) < len(first):
            reply = await scene.claim(session, pools=["pool"], serves=SERVES, limit=3)
            for one in reply.claims:
                fails = len(ended) % 2
                await scene.write(one, scene.failure() if fails else scene.success())
                ended.add(one.task)
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(*(submit(number) for number in range(4)), look(0), look(1), work())
    await look(2)
    assert judge(history) == []
    dump = await scene.store.dump()
    assert len(dump["tasks"]) == len(first)
    assert check_all(dump, accepted=[(scene.tenant, task) for task in told]) == []


def _stands(rows: Any) -> Any:
    if not rows:
        return "missing"
    [row] = rows
    return (row.round, row.state if row.state in ("succeeded", "failed", "cancelled") else "live")


async def test_a_question_has_one_answer(scene: Scene, reopen: Reopen) -> None:
    history = History(time.monotonic)
    stores = [scene.store, *[await reopen() for _ in range(2)]]
    asked = [await scene.asked(await scene.running()) for _ in range(6)]

    async def decide(number: int) -> None:
        fate = random.Random(number)
        for approval in fate.sample(asked, len(asked)):
            verdict, who = fate.choice(["approve", "reject"]), f"person:{number}"
            place = history.invoke(f"person-{number}", ("decision", approval.id), "decide", verdict, who)
            record = scene.decision(approval, verdict, by=who)
            deciding = asyncio.create_task(stores[number % 3].decide([record], now=scene.now))
            if fate.random() < 0.2:
                await asyncio.sleep(0)
                deciding.cancel()
                continue
            [decided] = await deciding
            stands = await stores[number % 3].read_approval(scene.tenant, approval.id)
            assert stands is not None
            standing = {"approved": "approve", "rejected": "reject"}[stands.state]
            history.answered(place, "taken" if decided.kind in ("decided", "repeated") else standing)

    await asyncio.gather(*(decide(number) for number in range(6)))
    assert judge(history) == []
    assert check_all(await scene.store.dump()) == []


async def test_readers_of_a_stream_are_told_a_prefix(scene: Scene, reopen: Reopen) -> None:
    """Two writers append to streams, one with a lease and one without, while readers come and go."""
    stores = [scene.store, *[await reopen() for _ in range(2)]]
    claimed = [await scene.running() for _ in range(3)]
    told: dict[str, list[list[tuple[int, str]]]] = {one.task: [[] for _ in range(3)] for one in claimed}
    done = asyncio.Event()

    async def append() -> None:
        for _ in range(12):
            for one in claimed:
                step = scene.step(events=(scene.event(), scene.event("log")))
                # Deferred while a signal is being posted.
                while (await scene.flush(one, step)).kind == "deferred":
                    pass

    async def post() -> None:
        for _ in range(12):
            for one in claimed:
                await stores[1].post([scene.signal(one)], now=scene.now)

    async def follow(number: int) -> None:
        fate = random.Random(number)
        last = False
        while not last:
            last = done.is_set()
            for one in claimed:
                events = told[one.task][number]
                after = events[-1][0] if events else 0
                cursor = EventCursor(tenant=scene.tenant, task=one.task, after=after)
                found = await stores[number].read_events(
                    [cursor], limit=fate.randint(1, 4) if not last else 500
                )
                events += [(event.number, event.kind) for event in found]
            await asyncio.sleep(0)

    following = [asyncio.create_task(follow(number)) for number in range(3)]
    await asyncio.gather(append(), post())
    done.set()
    await asyncio.gather(*following)
    kept = {one.task: [(row.number, row.kind) for row in await scene.events(one)] for one in claimed}
    assert judge_streams(told, kept) == []
    assert all(told[task][reader] == kept[task] for task in kept for reader in range(3))


async def test_a_store_that_hands_out_an_epoch_twice_is_told(scene: Scene) -> None:
    """The judge sees it when a real store does what it must not: here one that forgets whose lease it is."""
    history = History(time.monotonic)

    class Forgetful:
        """Hides that a lease is gone, and lets others be told the same."""

        def __getattr__(self, name: str) -> Any:
            return getattr(scene.store, name)

        async def flush(self, batch: Any, *, now: int | None = None) -> Any:
            verdicts = await scene.store.flush(batch, now=now)
            return [replace(one, kind="accepted", state="running") for one in verdicts]

    mine = _beside(scene, Witness(cast(Store, Forgetful()), history, "a"), "a", 1, Clock(scene.now))
    theirs = _beside(scene, Witness(scene.store, history, "b"), "b", 2, Clock(scene.now))
    record = await scene.submit()
    mine.remember(record)
    first = await mine.claim_task(record)
    mine.now = scene.pass_time(61 * SECOND)
    await mine.sweep()
    theirs.now = scene.now
    theirs.remember(record)
    await theirs.write(await theirs.claim_task(record), theirs.step())
    await mine.flush(first, mine.step())
    (violation,) = judge(history)
    assert violation.promise == "histories_of_lease"
    assert "a: write 1 -> 'written'" in violation.text


async def test_a_flush_that_raised_and_is_sent_again_is_one_operation(scene: Scene) -> None:
    history = History(time.monotonic)

    class Away:
        """Carries the first batch out and does not say so."""

        said = False

        def __getattr__(self, name: str) -> Any:
            return getattr(scene.store, name)

        async def flush(self, batch: Any, *, now: int | None = None) -> Any:
            verdicts = await scene.store.flush(batch, now=now)
            if not self.said:
                self.said = True
                raise StoreUnavailable("the answer is lost")
            return verdicts

    witness = Witness(cast(Store, Away()), history, "a")
    mine = _beside(scene, witness, "a", 1, Clock(scene.now))
    record = await scene.submit()
    mine.remember(record)
    scene.remember(record)
    claimed = await mine.claim_task(record)
    batch = mine.batch(mine.writes(claimed, mine.step()))
    try:
        await witness.flush(batch, now=mine.now)
    except StoreUnavailable:
        pass
    mine.now = scene.pass_time(61 * SECOND)
    await scene.sweep()
    other = await _beside(scene, Witness(scene.store, history, "b"), "b", 2, Clock(scene.now)).claim(
        await scene.session(), pools=[record.pool], serves=[Serves(agent=record.agent, version="version-77")]
    )
    assert [one.epoch > claimed.epoch for one in other.claims] == [True]
    [verdict] = await witness.flush(batch, now=mine.now)
    assert verdict.kind == "accepted"
    assert len([one for one in history if one.asked[0] == "write"]) == 1
    assert judge(history) == []


async def test_a_flush_that_was_rejected_leaves_its_number_to_the_next_one(scene: Scene) -> None:
    history = History(time.monotonic)
    witness = Witness(scene.store, history, "a")
    mine = _beside(scene, witness, "a", 1, Clock(scene.now))
    claimed, other = await scene.running(), await scene.running()
    after_its_end = mine.writes(claimed, mine.release(), mine.step())
    rejected = mine.batch(after_its_end, mine.writes(other, mine.step()))
    with pytest.raises(BatchRejected):
        await witness.flush(rejected, now=mine.now)
    [verdict] = await witness.flush(replace(rejected, writes=rejected.writes[1:]), now=mine.now)
    assert verdict.kind == "accepted"
    assert [one.answer for one in history if one.asked[0] == "write"] == [UNKNOWN, UNKNOWN, "written"]
