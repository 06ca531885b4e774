"""What the other processes of a test do: started as ``python processes.py <duty> <url> <args>``, one JSON
line out."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from outlast import clock
from outlast.core import ids
from outlast.store.entries import (
    Batch,
    CommitIntent,
    EndAttempt,
    NewEvent,
    RecordOperation,
    RecordOutcome,
    TaskWrites,
)
from outlast.store.records import ClaimRequest, Serves, SessionRenewal, Submission
from outlast.store.rows import Publication
from outlast.store.sqlite import SqliteStore

AGENT, POOL = "agent-x", "pool-x"
EVENT = (NewEvent(kind="operation.succeeded", data='{"operation": "step"}'),)


def submission(number: int, **changes: object) -> Submission:
    """Make a submission with a key of its own."""
    values = {
        "tenant": f"tenant-{number % 3}",
        "task": clock.new_id(ids.TASK),
        "key": f"key-{number}",
        "request_digest": f"digest-{number}",
        "agent": AGENT,
        "pool": POOL,
        "announce": True,
        **changes,
    }
    return Submission(**values)  # type: ignore[arg-type]


async def submit(store: SqliteStore, count: int) -> object:
    """Submit one by one, eight at a time, at a steady pace; tell how long each took."""
    numbers = iter(range(count))
    seconds: list[float] = []

    async def caller() -> None:
        for number in numbers:
            began = time.perf_counter()
            [verdict] = await store.submit([submission(number)])
            assert verdict.kind == "accepted"
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)

    await asyncio.gather(*(caller() for _ in range(8)))
    return sorted(seconds)


async def work(store: SqliteStore, name: str) -> object:
    """Run tasks of five steps until told to stop; tell how many."""
    session, stopped, done, number = clock.new_id(ids.SESSION), stop_signal(), 0, 0
    request = ClaimRequest(
        session=session, pools=(POOL,), serves=(Serves(agent=AGENT, version="1"),), limit=20
    )
    renewed = 0.0

    async def flush(*writes: TaskWrites) -> None:
        nonlocal number
        number += 1
        verdicts = await store.flush(Batch(writer=session, number=number, writes=writes))
        assert {verdict.kind for verdict in verdicts} == {"accepted"}
        assert not any(verdict.refusals for verdict in verdicts)

    while not stopped.is_set():
        if time.monotonic() - renewed > 1:
            renewed = time.monotonic()
            await store.renew(SessionRenewal(session=session, name=name, ttl_us=60_000_000))
        reply = await store.claim(request)
        if not reply.claims:
            await store.wakes.wait("queue", 0.25)
            continue
        await store.load(reply.claims)
        for step in range(5):
            await flush(
                *(
                    TaskWrites(
                        tenant=one.tenant,
                        task=one.task,
                        epoch=one.epoch,
                        entries=(
                            RecordOperation(
                                key=f"step-{step}",
                                position=step,
                                kind="step",
                                name="step",
                                state="succeeded",
                                request="r",
                                result="{}",
                                events=EVENT,
                            ),
                        ),
                    )
                    for one in reply.claims
                )
            )
        end = EndAttempt(attempt_end="succeeded", task_state="succeeded", result="{}")
        await flush(
            *(
                TaskWrites(tenant=one.tenant, task=one.task, epoch=one.epoch, entries=(end,))
                for one in reply.claims
            )
        )
        done += len(reply.claims)
    return done


async def relay(store: SqliteStore, _: str) -> object:
    """Publish outbox rows until told to stop; tell how many."""
    stopped, done = stop_signal(), 0
    while not stopped.is_set():
        messages = await store.take_messages(100)
        await store.confirm_messages(
            [Publication(tenant=one.tenant, task=one.task, number=one.number) for one in messages]
        )
        done += len(messages)
        if not messages:
            await store.wakes.wait("events", 0.1)
    return done


async def calls(store: SqliteStore, task: str) -> object:
    """Claim one task and commit intents and outcomes until killed, each told on a line once it is
    committed."""
    session = clock.new_id(ids.SESSION)
    await store.renew(SessionRenewal(session=session, name="caller", ttl_us=60_000_000))
    request = ClaimRequest(
        session=session, pools=(POOL,), serves=(Serves(agent=AGENT, version="1"),), limit=1
    )
    [one] = (await store.claim(request)).claims
    for number in range(1, 1_000_000):
        key = f"call-{number}"
        intent = CommitIntent(
            key=key,
            position=number,
            kind="tool",
            name="call",
            request="r",
            decision="d",
            effect="keyed",
            arguments="{}" + " " * 2000,
            timeout_us=1_000_000,
            events=EVENT,
        )
        outcome = RecordOutcome(key=key, attempt=1, turn=1, state="succeeded", result="{}", events=EVENT)
        writes = TaskWrites(tenant=one.tenant, task=one.task, epoch=one.epoch, entries=(intent, outcome))
        await store.flush(Batch(writer=session, number=number, writes=(writes,)))
        print(number, flush=True)
    return None


async def wait(store: SqliteStore, topic: str) -> object:
    """Say that the wait begins, wait for a hint, and say how it ended."""
    waiting = asyncio.create_task(store.wakes.wait(topic, 30))
    await asyncio.sleep(0)
    print("waiting", flush=True)
    return await waiting


async def idle(store: SqliteStore, seconds: str) -> object:
    """Wait for work that never comes; tell what share of a processor that took."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < float(seconds):
        await store.wakes.wait("queue", 0.5)
    return (time.process_time() - used) / (time.monotonic() - began)


async def hold(store: SqliteStore, _: str) -> object:
    """Stop for ever inside a write transaction."""

    def freeze(tx: object) -> None:
        print("holding", flush=True)
        # To this very thread: of a process another may stop first, while this one commits.
        signal.raise_signal(signal.SIGSTOP)

    await store._desk().write(freeze)  # what no verb does: a closure of the test's own
    return None


def stop_signal() -> asyncio.Event:
    """Answer an event that SIGTERM sets."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    return stopped


DUTIES: dict[str, Callable[[SqliteStore, str], Awaitable[object]]] = {
    "submit": lambda store, count: submit(store, int(count)),
    "work": work,
    "relay": relay,
    "calls": calls,
    "wait": wait,
    "idle": idle,
    "hold": hold,
}


async def main(duty: str, url: str, argument: str) -> None:
    """Carry out one duty on a store of this process's own."""
    store = SqliteStore(url)
    await store.open()
    try:
        print(json.dumps(await DUTIES[duty](store, argument)), flush=True)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
