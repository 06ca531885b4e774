"""Handlers that fail, hang or stream, bodies that are cut or too large, and a store that is away."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from outlast.drills.otherside.scene import Played, Scene, invoice_of, label
from outlast.drills.stage import Check

__all__ = [
    "bad_keys",
    "client_gone",
    "cut_body",
    "hangs",
    "large_answer",
    "large_body",
    "raises",
    "store_away",
]
__all__ += ["streams"]

BAD_KEYS: Final = (b"", b"k" * 256, b'"open', b"a\tb", "clé".encode())


async def raises(scene: Scene, cell: str) -> Played:
    """Raise in the handler after it has acted."""
    service = await scene.service("one")
    told = [label(await service.post(cell, fail=True)) for _ in range(2)]
    return Played(cell=cell, told=told)


async def hangs(scene: Scene, cell: str) -> Played:
    """Hang in the handler after it has acted."""
    service = await scene.service("narrow-hung", retention="1h")
    told = [label(await service.post(cell, hang=True)) for _ in range(2)]
    return Played(cell=cell, told=told)


async def client_gone(scene: Scene, cell: str) -> Played:
    """Leave while the handler works, and come again."""
    service = await scene.service("two")
    first = asyncio.create_task(service.post(cell, door=cell))
    await service.began(cell)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    twin = asyncio.create_task(service.post(cell, door=cell))
    await service.open(cell)
    return Played(cell=cell, told=[label(await twin)])


async def cut_body(scene: Scene, cell: str) -> Played:
    """Send a half of a request and leave; then send the whole."""
    service = await scene.service("one")
    host, port = service.client.base_url.host, service.client.base_url.port
    assert port is not None
    text = json.dumps({"invoice": invoice_of(cell)}).encode()
    _, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /tickets HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {cell}\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    writer.write(head.encode() + text[: len(text) // 2])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    return Played(cell=cell, told=[label(await service.post(cell))])


async def large_body(scene: Scene, cell: str) -> Played:
    """Send a body over the bound."""
    service = await scene.service("narrow")
    return Played(cell=cell, told=[label(await service.post(cell, more="x" * 3_000)) for _ in range(2)])


async def _passes(scene: Scene, cell: str, media: str, piece: int) -> Played:
    service = await scene.service("narrow-passing", retention="1h")
    first = await service.post(cell, stream=media, piece=piece)
    again = await service.post(cell, stream=media, piece=piece)
    return Played(
        cell=cell,
        told=[label(first), label(again)],
        checks=(Check(what="bytes that came", expected=4 * piece, seen=len(first.content)),),
    )


async def large_answer(scene: Scene, cell: str) -> Played:
    """Answer more than is kept."""
    return await _passes(scene, cell, "application/json", 1_000)


async def streams(scene: Scene, cell: str) -> Played:
    """Answer with a stream of events."""
    return await _passes(scene, cell, "text/event-stream", 10)


async def bad_keys(scene: Scene, cell: str) -> Played:
    """Send keys of every bad shape, and none."""
    service = await scene.service("narrow")
    url = service.client.base_url.join("/tickets")
    body = {"invoice": invoice_of(cell)}
    answers = [
        await service.client.post(url, json=body, headers=[(b"Idempotency-Key", key)]) for key in BAD_KEYS
    ]
    answers.append(await service.client.post(url, json=body))
    two = [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")]
    answers.append(await service.client.post(url, json=body, headers=two))
    statuses = {answer.status_code for answer in answers}
    return Played(
        cell=cell,
        told=[label(answer) if answer.content else str(answer.status_code) for answer in answers],
        checks=(Check(what="statuses", expected={400}, seen=statuses),),
    )


async def store_away(scene: Scene, cell: str) -> Played:
    """Serve in front of a store that cannot be reached."""
    away = (
        "postgresql://nobody@127.0.0.1:1/nothing"
        if scene.url.startswith("postgresql")
        else f"sqlite:///{scene.folder / 'nowhere' / 'keys.db'}"
    )
    service = await scene.service("away", url=away, prepares=False)
    answers = [await service.post(cell) for _ in range(2)]
    waits = {"retry-after" in answer.headers for answer in answers}
    return Played(
        cell=cell,
        told=[label(answer) for answer in answers],
        checks=(Check(what="it says when to come again", expected={True}, seen=waits),),
    )
