"""Many at once: each promise that names a number of one holds whoever comes at the same moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from outlast.store.contract import Store
from outlast.store.entries import Entry
from outlast.store.records import Claimed, ClaimRequest, Serves, SessionRenewal, TaskRef
from outlast.store.rows import Publication
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.scene import HOUR, Reopen, Scene


def by_the_databases_clock(store: Store, **of: Any) -> Scene:
    """Make a scene without a time of its own."""
    return Scene(store=store, now=None, **of)  # type: ignore[arg-type]


async def test_two_hundred_twins_of_one_key_are_one_task(scene: Scene, reopen: Reopen) -> None:
    stores = [scene.store, *[await reopen() for _ in range(3)]]
    first = scene.submission(announce=True)
    twins = [replace(first, task=scene.submission().task, input=scene.text("input")) for _ in range(200)]
    verdicts = await asyncio.gather(*(stores[n % 4].submit([twin]) for n, twin in enumerate(twins)))
    kinds = Counter(verdict.kind for [verdict] in verdicts)
    assert kinds == {"accepted": 1, "replayed": 199}
    assert len({verdict.task for [verdict] in verdicts}) == 1
    dump = await scene.store.dump()
    assert [len(dump[table]) for table in ("tasks", "inputs", "queue", "events", "outbox")] == [1] * 5
    assert check_all(dump) == []


async def test_rivals_for_one_key_have_one_winner_and_conflicts(scene: Scene, reopen: Reopen) -> None:
    stores = [scene.store, *[await reopen() for _ in range(3)]]
    key = scene.submission().key
    rivals = [replace(scene.submission(), key=key) for _ in range(60)]
    verdicts = await asyncio.gather(*(stores[n % 4].submit([one]) for n, one in enumerate(rivals)))
    assert Counter(verdict.kind for [verdict] in verdicts) == {"accepted": 1, "conflict": 59}
    [winner] = [verdict.task for [verdict] in verdicts if verdict.kind == "accepted"]
    assert {verdict.task for [verdict] in verdicts} == {winner}


async def test_batches_with_the_same_keys_in_any_order_do_not_deadlock(scene: Scene, reopen: Reopen) -> None:
    stores = [scene.store, *[await reopen() for _ in range(3)]]
    firsts = [scene.submission() for _ in range(40)]
    batches = []
    for n in range(16):
        twins = [replace(scene.submission(), key=f.key, request_digest=f.request_digest) for f in firsts]
        batches.append(twins if n % 2 else twins[::-1])
    answers = await asyncio.gather(*(stores[n % 4].submit(batch) for n, batch in enumerate(batches)))
    kinds = Counter(verdict.kind for verdicts in answers for verdict in verdicts)
    assert kinds == {"accepted": 40, "replayed": 15 * 40}
    assert len((await scene.store.dump())["tasks"]) == 40


async def test_eight_claimers_claim_each_of_500_tasks_once(scene: Scene, reopen: Reopen) -> None:
    records = [scene.submission(tenant=f"tenant-{n % 5}", agent="agent-x", pool="pool-x") for n in range(500)]
    await scene.store.submit(records)
    stores = [scene.store, *[await reopen() for _ in range(7)]]
    sessions = [await scene.session(ttl_us=HOUR) for _ in stores]
    taken: list[list[tuple[str, str, int]]] = []

    async def work(place: int) -> None:
        mine: list[tuple[str, str, int]] = []
        taken.append(mine)
        while True:
            request = ClaimRequest(
                session=sessions[place],
                pools=("pool-x",),
                serves=(Serves(agent="agent-x", version="v"),),
                limit=7,
            )
            reply = await stores[place].claim(request)
            assert not reply.refused
            if not reply.claims:
                return
            mine += [(claimed.tenant, claimed.task, claimed.epoch) for claimed in reply.claims]

    await asyncio.gather(*(work(place) for place in range(8)))
    claimed = [one for mine in taken for one in mine]
    assert sorted(claimed) == sorted((record.tenant, record.task, 1) for record in records)
    dump = await scene.store.dump()
    assert (len(dump["leases"]), len(dump["queue"])) == (500, 0)
    assert check_all(dump, accepted=records) == []


async def test_a_batch_in_doubt_is_applied_once_however_often_it_is_sent(
    scene: Scene, reopen: Reopen
) -> None:
    """The same batch from several connections at the same time, as after lost answers."""
    claims = [await scene.running(ttl_us=HOUR) for _ in range(5)]
    batch = scene.batch(
        *(scene.writes(c, scene.step(events=(scene.event(),)), scene.intent()) for c in claims)
    )
    stores = [scene.store, *[await reopen() for _ in range(3)]]
    answers = await asyncio.gather(*(stores[n % 4].flush(batch, now=scene.now) for n in range(24)))
    assert all(answer == answers[0] for answer in answers)
    assert [verdict.kind for verdict in answers[0]] == ["accepted"] * 5
    dump = await scene.store.dump()
    assert (len(dump["operations"]), len(dump["events"])) == (10, 5 * 3)
    assert check_all(dump) == []


async def test_workers_settlers_and_sweepers_at_once_keep_every_promise(scene: Scene, reopen: Reopen) -> None:
    """Everybody does their work at the same time: nothing is lost, nothing is done twice, everything ends."""
    count = 60
    records = [
        scene.submission(tenant=f"tenant-{n % 3}", agent="agent-x", pool="pool-x", announce=n % 2 == 0)
        for n in range(count)
    ]
    await scene.store.submit(records)
    stores = [scene.store, *[await reopen() for _ in range(3)]]
    done = asyncio.Event()

    async def work(place: int) -> None:
        mine = by_the_databases_clock(stores[place], writer=f"wr_{place}", _last=100_000 * (place + 1))
        session = f"ses_{place}"
        renewal = SessionRenewal(session=session, name=session, ttl_us=HOUR)
        assert (await mine.store.renew(renewal)).alive
        serves = [Serves(agent="agent-x", version="v")]
        while not done.is_set():
            reply = await mine.claim(session, pools=["pool-x"], serves=serves, limit=5)
            if not reply.claims:
                await asyncio.sleep(0)
            for claimed in reply.claims:
                [loaded] = await mine.store.load([claimed])
                if not loaded.operations:
                    # Its first attempt: a call whose answer is lost, then a wait for somebody to settle it.
                    intent = mine.intent("call")
                    await through(mine, claimed, intent)
                    await through(mine, claimed, await mine.outcome(claimed, "call", "unknown"))
                    await through(mine, claimed, mine.suspension("reconciliation", facts=claimed.facts))
                elif loaded.operations[0].state == "unknown":
                    await through(mine, claimed, mine.suspension("reconciliation", facts=claimed.facts))
                else:
                    await through(mine, claimed, mine.success())

    async def through(mine: Scene, claimed: Claimed, entry: Entry) -> None:
        while True:
            verdict = await mine.flush(claimed, entry)
            assert verdict.refusals == ()
            if verdict.kind == "accepted":
                return
            assert verdict.kind == "deferred"
            await asyncio.sleep(0)

    async def settle() -> None:
        settled = 0
        while settled < count:
            for row in (await scene.store.dump())["unsettled"]:
                task = TaskRef(tenant=row["tenant"], task=row["task"])
                settlement = scene.settlement(task, row["key"])
                [verdict] = await stores[1].settle([settlement])
                settled += verdict.kind == "settled"
            await asyncio.sleep(0)

    async def sweep() -> None:
        while not done.is_set():
            await by_the_databases_clock(stores[2]).sweep()
            await asyncio.sleep(0)

    async def watch() -> None:
        while any(row["state"] != "succeeded" for row in (await scene.store.dump())["tasks"]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        done.set()

    async with asyncio.timeout(120):
        await asyncio.gather(watch(), settle(), sweep(), *(work(place) for place in range(4)))
    dump = await scene.store.dump()
    published = []
    while messages := await scene.store.take_messages(100):
        published += [(m.tenant, m.task, m.topic) for m in messages]
        await scene.store.confirm_messages(
            [Publication(tenant=m.tenant, task=m.task, number=m.number) for m in messages]
        )
    assert len(published) == count
    dump = await scene.store.dump()
    assert check_all(dump, accepted=records, published=published, quiet=True) == []
    assert {row["attempt"] for row in dump["operations"]} == {1}
    assert Counter(row["state"] for row in dump["operations"]) == {"succeeded": count}
