"""The relay: what passes, what does not, and what each side is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.testing.proxy import Loss, Proxy


class Echo:
    """A server that answers every line with itself, and knows what it was asked and who is there."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.there = 0
        self.changed = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.there += 1
        try:
            while line := await reader.readline():
                self.asked.append(line)
                self.changed.set()
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            self.there -= 1
            self.changed.set()
            writer.close()

    async def until(self, there: int) -> None:
        async with asyncio.timeout(10):
            while self.there != there:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", echo.port, label=lambda head: head[:1].decode()) as made:
        yield made


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(proxy: Proxy) -> Stream:
    return await asyncio.open_connection("127.0.0.1", proxy.listens_on)


async def ask(stream: Stream, line: bytes, seconds: float = 10) -> bytes:
    stream[1].write(line)
    return await asyncio.wait_for(stream[0].readline(), seconds)


async def over(stream: Stream) -> bool:
    try:
        return await asyncio.wait_for(stream[0].read(1), 10) == b""
    except ConnectionError:
        return True


async def test_a_healthy_relay_is_not_noticed(proxy: Proxy, echo: Echo) -> None:
    stream = await connect(proxy)
    assert await ask(stream, b"a1\n") == b"a1\n"
    assert proxy.labels == ["a"]
    stream[1].close()
    await echo.until(0)


async def test_over_a_unix_socket(echo: Echo, tmp_path: Path) -> None:
    async with Proxy("127.0.0.1", echo.port, path=tmp_path / "s"):
        stream = await asyncio.open_unix_connection(tmp_path / "s")
        assert await ask(stream, b"a1\n") == b"a1\n"


async def test_a_cut_is_felt_on_both_sides_and_by_those_alone_who_are_meant(proxy: Proxy, echo: Echo) -> None:
    first, second = await connect(proxy), await connect(proxy)
    assert (await ask(first, b"a1\n"), await ask(second, b"b1\n")) == (b"a1\n", b"b1\n")
    assert proxy.cut("a") == 1
    assert await over(first)
    await echo.until(1)
    assert await ask(second, b"b2\n") == b"b2\n"


async def test_a_half_open_connection_is_open_to_the_server(proxy: Proxy, echo: Echo) -> None:
    stream = await connect(proxy)
    await ask(stream, b"a1\n")
    assert proxy.halve() == 1
    assert await over(stream)
    another = await connect(proxy)
    await ask(another, b"b1\n")
    # The new one came after the other would have been missed.
    assert echo.there == 2


async def test_silence_holds_back_and_healing_passes_on(proxy: Proxy, echo: Echo) -> None:
    stream = await connect(proxy)
    await ask(stream, b"a1\n")
    proxy.hush()
    with pytest.raises(TimeoutError):
        await ask(stream, b"a2\n", 0.1)
    later = await connect(proxy)
    later[1].write(b"b1\n")
    assert echo.asked == [b"a1\n"]
    proxy.heal()
    assert await asyncio.wait_for(stream[0].readline(), 10) == b"a2\n"
    assert await asyncio.wait_for(later[0].readline(), 10) == b"b1\n"


async def test_slowness(proxy: Proxy) -> None:
    stream = await connect(proxy)
    proxy.slow(0.1)
    began = asyncio.get_running_loop().time()
    assert await ask(stream, b"a1\n") == b"a1\n"
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_a_lost_answer_was_asked(proxy: Proxy, echo: Echo) -> None:
    first, second = await connect(proxy), await connect(proxy)
    await ask(first, b"a1\n")
    await ask(second, b"b1\n")
    proxy.lose_answer(Loss(label="b", begins=b"b3"))
    assert await ask(first, b"a2\n") == b"a2\n"
    assert await ask(second, b"b2\n") == b"b2\n"
    second[1].write(b"b3\n")
    assert await over(second)
    assert echo.asked[-1] == b"b3\n"
    assert proxy.lost == 1
    assert await ask(first, b"b3\n") == b"b3\n"


async def test_refusal_and_another_server(proxy: Proxy, echo: Echo) -> None:
    proxy.refuse()
    assert await over(await connect(proxy))
    proxy.heal()
    proxy.port = 1
    assert await over(await connect(proxy))
    proxy.port = echo.port
    assert await ask(await connect(proxy), b"a1\n") == b"a1\n"
