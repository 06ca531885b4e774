"""The simulation's loop: asyncio's own behaviour in virtual time, and what it does to nodes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from outlast.testing.simulation import SimulationLoop, Stuck, current_node


def run(work: Coroutine[Any, Any, Any], *, seed: int = 1, **options: Any) -> tuple[Any, SimulationLoop]:
    loop = SimulationLoop(Random(seed), **options)
    try:
        result = loop.run(loop.start(loop.root, work), max_steps=100_000, max_seconds=1e6)
        assert loop.accidents == []
        return result, loop
    finally:
        loop.close()


def test_time_is_virtual_and_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - before

    began = time.monotonic()
    passed, loop = run(main())
    assert passed == 86_400
    assert loop.time() == 86_400
    assert time.monotonic() - began < 60


def test_asyncio_behaves_as_on_the_real_loop() -> None:
    flag: contextvars.ContextVar[str] = contextvars.ContextVar("flag", default="outside")

    async def say(text: str, after: float) -> str:
        await asyncio.sleep(after)
        return text

    async def main() -> list[Any]:
        seen: list[Any] = []
        seen.append(await asyncio.gather(say("a", 3), say("b", 1), say("c", 2)))
        done, pending = await asyncio.wait(
            {asyncio.create_task(say("slow", 9)), asyncio.create_task(say("fast", 1))},
            return_when=asyncio.FIRST_COMPLETED,
        )
        seen.append([task.result() for task in done])
        for task in pending:
            task.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(say("late", 10), 1)
        with pytest.raises(ExceptionGroup, match="unhandled"):
            await _group()
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        feeding = asyncio.create_task(_feed(queue))
        seen.append([await queue.get() for _ in range(3)])
        await feeding
        context = contextvars.copy_context()
        context.run(flag.set, "inside")
        seen.append(await asyncio.create_task(_read(flag), context=context))
        seen.append(await asyncio.to_thread(sum, [1, 2, 3]))
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(1, event.set)
        await event.wait()
        return seen

    async def _group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(say("cut", 100))
            group.create_task(_raise())

    async def _raise() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def _feed(queue: asyncio.Queue[int]) -> None:
        for number in range(3):
            await queue.put(number)

    async def _read(variable: contextvars.ContextVar[str]) -> str:
        return variable.get()

    seen, loop = run(main())
    assert seen == [["a", "b", "c"], ["fast"], [0, 1, 2], "inside", 6]
    # 3 for the gather, 1 + 5 + 1 + 1 for the waits that are cut, 1 for the event.
    assert loop.time() == 12


@pytest.mark.parametrize("seed", range(20))
def test_callbacks_of_a_node_keep_their_order_and_nodes_do_not(seed: int) -> None:
    loop = SimulationLoop(Random(seed))
    one, other = loop.add_node("one"), loop.add_node("other")
    seen: list[str] = []
    for number in range(8):
        for node in (one, other):
            loop.call_soon(seen.append, f"{node.name}{number}", context=node.context)
    loop.run(loop.start(loop.root, asyncio.sleep(1)), max_steps=100, max_seconds=2)
    loop.close()
    for node in (one, other):
        assert [each for each in seen if each.startswith(node.name)] == [f"{node.name}{n}" for n in range(8)]
    assert len(seen) == 16


def test_every_order_of_two_nodes_is_drawn() -> None:
    orders = set()
    for seed in range(60):
        loop = SimulationLoop(Random(seed))
        seen: list[str] = []
        for name in ("x", "y"):
            node = loop.add_node(name)
            for number in range(2):
                loop.call_soon(seen.append, f"{name}{number}", context=node.context)
        loop.run(loop.start(loop.root, asyncio.sleep(1)), max_steps=100, max_seconds=2)
        loop.close()
        orders.add(tuple(seen))
    assert len(orders) == 6  # two sequences of two, interleaved in every way


def test_any_order_shuffles_within_a_node_too() -> None:
    orders = set()
    for seed in range(40):
        loop = SimulationLoop(Random(seed), order="any")
        seen: list[int] = []
        for number in range(3):
            loop.call_soon(seen.append, number)
        loop.run(loop.start(loop.root, asyncio.sleep(1)), max_steps=100, max_seconds=2)
        loop.close()
        orders.add(tuple(seen))
    assert len(orders) == 6


def test_a_crashed_node_runs_nothing_any_more_and_no_finally() -> None:
    loop = SimulationLoop(Random(1))
    node = loop.add_node("victim")
    seen: list[str] = []

    async def work() -> None:
        assert current_node() is node
        try:
            seen.append("began")
            await asyncio.sleep(5)
            seen.append("went on")
        finally:
            seen.append("finally")

    async def main() -> None:
        task = loop.start(node, work())
        await asyncio.sleep(1)
        loop.crash(node)
        # Neither a timer, nor a cancellation, nor a callback from outside wakes anything of it.
        task.cancel()
        loop.call_soon(seen.append, "called", context=node.context)
        await asyncio.sleep(100)
        del task
        gc.collect()

    loop.run(loop.start(loop.root, main()), max_steps=1000, max_seconds=1000)
    assert seen == ["began"]
    loop.close()


def test_closing_ends_coroutines_that_wait_in_their_finally() -> None:
    loop = SimulationLoop(Random(1))
    node = loop.add_node("victim")

    async def stubborn() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.create_task(asyncio.sleep(1))
            await asyncio.sleep(1)

    async def main() -> None:
        loop.start(node, stubborn())
        await asyncio.sleep(1)
        loop.crash(node)

    loop.run(loop.start(loop.root, main()), max_steps=1000, max_seconds=1000)
    loop.close()
    # A coroutine that was not ended would now say so, which fails the test (filterwarnings).
    gc.collect()


def test_a_frozen_node_goes_on_where_it_stood_and_time_has_gone_by() -> None:
    loop = SimulationLoop(Random(1))
    node = loop.add_node("frozen")
    seen: list[float] = []

    async def work() -> None:
        while True:
            seen.append(loop.time())
            await asyncio.sleep(1)

    async def main() -> None:
        loop.start(node, work())
        await asyncio.sleep(2.5)
        loop.freeze(node)
        await asyncio.sleep(10)
        loop.thaw(node)
        await asyncio.sleep(1.1)

    loop.run(loop.start(loop.root, main()), max_steps=1000, max_seconds=1000)
    loop.close()
    assert seen == [0, 1, 2, 12.5, 13.5]


def test_the_place_of_tasks_in_a_set_is_the_same_in_every_run() -> None:
    async def number(value: int) -> int:
        return value

    async def main() -> list[int]:
        tasks = {asyncio.create_task(number(value)) for value in range(50)}
        # Something else in memory between two runs would change the order of addresses.
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    ballast = []
    orders = set()
    for size in range(5):
        orders.add(tuple(run(main())[0]))
        ballast.append([object() for _ in range(1000 * size)])
    assert len(orders) == 1


def test_a_world_that_cannot_end_is_stuck() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def wait() -> None:
        await asyncio.Event().wait()

    async def tick() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(10)

    for work, why in ((spin(), "after"), (wait(), "nothing is left"), (tick(), "by second")):
        loop = SimulationLoop(Random(1))
        with pytest.raises(Stuck, match=why):
            loop.run(loop.start(loop.root, work), max_steps=1000, max_seconds=1000)
        loop.close()


def test_what_a_callback_raises_is_kept_for_the_judge() -> None:
    loop = SimulationLoop(Random(1))
    loop.call_soon(lambda: 1 / 0)
    loop.run(loop.start(loop.root, asyncio.sleep(1)), max_steps=100, max_seconds=2)
    loop.close()
    assert len(loop.accidents) == 1
    assert "ZeroDivisionError" in loop.accidents[0]
