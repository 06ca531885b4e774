"""What a worker asks for before its tasks begin."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.house import House

from outlast import TaskContext
from outlast.store.contract import SHORT_BYTES
from outlast.store.records import Claimed, Loaded


def watch_loads(house: House) -> list[list[str]]:
    """Answer what is asked for from now on, by call."""
    asked: list[list[str]] = []
    load = house.store.load

    async def watched(tasks: Sequence[Claimed]) -> list[Loaded]:
        asked.append([one.task for one in tasks])
        return await load(tasks)

    house.store.load = watched  # type: ignore[method-assign]
    return asked


async def test_nothing_is_asked_for_where_the_claim_has_brought_it(house: House) -> None:
    asked = watch_loads(house)

    @house.app.agent
    async def agent(task: TaskContext, text: str) -> str:
        return await task.step(text.upper)

    for text in ("one", "two"):
        assert (await house.run(agent, text=text)).result == text.upper()
    assert asked == []
    assert await house.violations() == []


async def test_what_the_claim_has_not_brought_is_asked_for_in_one_call(house: House) -> None:
    asked = watch_loads(house)

    @house.app.agent
    async def agent(task: TaskContext, text: str) -> str:
        return text + str(await task.wait("word")) if text == "told" else text

    texts = ("short", "x" * SHORT_BYTES, "told", "brief")
    short, long, told, brief = [await house.submit(agent, text=text) for text in texts]
    await told.signal("word", "!")
    house.start()
    results = [(await house.ended(handle)).result for handle in (short, long, told, brief)]
    assert results == ["short", "x" * SHORT_BYTES, "told!", "brief"]
    assert [sorted(call) for call in asked] == [sorted([long.id, told.id])]
    assert await house.violations() == []
