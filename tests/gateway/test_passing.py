"""What is sent on, what comes back, and what neither may hold; raw bytes on the other side judge."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from tests.gateway.desk import HOST, TRACE, Desk, Other, other_side, token

from outlast.testing.store_suite.scene import SECOND
from outlast.tools.passing import Pass


@pytest.fixture
async def there(closed_desk: Desk, other: Other) -> AsyncIterator[Desk]:
    """A desk whose gateway lets requests through to the other side, and takes and answers 1000 bytes."""
    async with closed_desk.open(
        allow=(f"http://{HOST}:{other.port}",), max_request_bytes=1000, max_answer_bytes=1000
    ):
        yield closed_desk


async def said_for(desk: Desk, other: Other, **changes: Any) -> Pass:
    _, said = await desk.called(**changes)
    return replace(said, hosts=(f"http://{HOST}:{other.port}",))


def at(desk: Desk, other: Other, path: str = "/") -> str:
    return desk.reverse(f"http://{HOST}:{other.port}{path}")


# ── forms ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", "Outlast-Token"])
async def test_a_client_that_is_told_of_a_proxy_gets_through(there: Desk, other: Other, scheme: str) -> None:
    said = await said_for(there, other)
    if scheme == "Basic":
        headers = {"Proxy-Authorization": f"Basic {base64.b64encode(f'x:{token(said)}'.encode()).decode()}"}
    elif scheme == "Outlast-Token":
        headers = {scheme: token(said)}
    else:
        headers = {"Proxy-Authorization": f"{scheme} {token(said)}"}
    proxy = httpx2.Proxy(there.url, headers=headers)
    async with httpx2.AsyncClient(proxy=proxy, trust_env=False) as client:
        answer = await client.put(f"http://{HOST}:{other.port}/a%2Fb/c?d=%20&e", content=b"body")
    assert (answer.status_code, answer.text) == (200, "ok")
    assert other.target() == "PUT /a%2Fb/c?d=%20&e HTTP/1.1"
    assert other.bodies == [b"body"]
    assert token(said).encode() not in other.heads[0]


async def test_the_address_of_a_proxy_with_the_token_in_it_is_enough(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    proxy = there.url.replace("://", f"://outlast:{token(said)}@")
    async with httpx2.AsyncClient(proxy=proxy, trust_env=False) as client:
        assert (await client.get(f"http://{HOST}:{other.port}/x")).status_code == 200


async def test_tunnels_are_refused_with_the_reason(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(there.url.rpartition(":")[2]))
    head = f"CONNECT {HOST}:{other.port} HTTP/1.1\r\nHost: {HOST}\r\nOutlast-Token: {token(said)}\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
    assert b"could be checked" in await reader.read(2000)
    writer.close()
    assert other.connections == 0


@pytest.mark.parametrize("path", ["/", "/ftp/host/", "/http", "/http/", "/http//x", "/http/user@host/", "/x"])
async def test_what_is_no_target_is_refused(there: Desk, path: str) -> None:
    answer = await there.client.get(there.url + path)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_target")


async def test_it_says_how_it_is(there: Desk) -> None:
    answer = await there.client.get(f"{there.url}/healthz")
    assert (answer.status_code, answer.json()) == (200, {"store": "reachable"})


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_gateway_says_whose_request_it_is(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    lies = {
        "Idempotency-Key": "mine", "Outlast-Task": "task_mine", "Outlast-Epoch": "99",
        "Outlast-Deadline": "7000", "traceparent": "00-mine", "Via": "1.0 me",
    }  # fmt: skip
    await there.send(said, at(there, other), content=b"x", headers=lies)
    headers = other.headers()
    assert headers["idempotency-key"] == [f"{said.task}:{said.key}"]
    assert headers["outlast-task"] == [said.task]
    assert headers["outlast-epoch"] == [str(said.epoch)]
    assert headers["outlast-deadline"] == ["7000"], "the earlier of both"
    assert headers["traceparent"] == [TRACE]
    assert headers["host"] == [f"{HOST}:{other.port}"]
    assert headers["via"] == ["1.1 outlast"]
    await there.send(said, at(there, other), content=b"x", headers={"Outlast-Deadline": "90000"})
    assert 50_000 < int(other.headers()["outlast-deadline"][0]) <= 60_000


async def test_what_is_of_one_connection_goes_no_further(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    other.answer = (
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Outlast-Gateway: refused\r\nX-Kept: a\r\nX-Kept: b\r\nProxy-Authenticate: Basic\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    sent = {
        "Connection": "X-Mine, keep-alive", "X-Mine": "1", "TE": "trailers", "X-Kept": "yes",
        "Proxy-Authorization": "Bearer x", "Proxy-Connection": "keep-alive",
        "Authorization": "Bearer of-the-service",
    }  # fmt: skip
    answer = await there.send(said, at(there, other), content=b"x", headers=sent)
    headers = other.headers()
    for name in ("connection", "x-mine", "te", "proxy-authorization", "proxy-connection", "outlast-token"):
        assert name not in headers, name
    assert headers["authorization"] == ["Bearer of-the-service"]
    assert headers["x-kept"] == ["yes"]
    assert headers["content-length"] == ["1"]
    assert token(said).encode() not in other.heads[0]
    for name in ("x-hop", "keep-alive", "proxy-authenticate"):
        assert name not in answer.headers, name
    assert answer.headers.get_list("x-kept") == ["a", "b"]
    assert answer.headers.get_list("outlast-gateway") == ["passed"]


async def test_redirects_are_passed_on_and_never_followed(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    async with other_side("127.0.0.2") as inside:
        place = f"http://127.0.0.2:{inside.port}/"
        other.answer = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        answer = await there.send(said, at(there, other), "GET")
        assert (answer.status_code, answer.headers["location"]) == (302, place)
        assert (len(other.heads), inside.connections) == (1, 0)


async def test_cookies_of_one_call_do_not_travel_with_another(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    other.answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    there.client.cookies.jar.clear()
    assert (await there.send(said, at(there, other), "GET")).headers["set-cookie"] == "a=b; Path=/"
    async with httpx2.AsyncClient(trust_env=False) as another:
        await another.get(at(there, other), headers={"Outlast-Token": token(said)})
    assert "cookie" not in other.headers()


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_bound_is_refused(there: Desk, other: Other, chunked: bool) -> None:
    said = await said_for(there, other)

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 100):
            yield b"x" * 100
        yield b"x" * (size % 100)

    def body(size: int) -> Any:
        return pieces(size) if chunked else b"x" * size

    for size in (999, 1000):
        assert (await there.send(said, at(there, other), content=body(size))).status_code == 200
        assert len(other.bodies[-1]) == size
        assert other.headers()["content-length"] == [str(size)]
    answer = await there.send(said, at(there, other), content=body(1001))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert len(other.heads) == 2


async def test_an_answer_up_to_the_bound_is_passed_on_as_it_is(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    for size in (0, 999, 1000):
        other.answer = (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: mine\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size
        )
        async with there.client.stream(
            "POST", at(there, other), headers={"Outlast-Token": token(said)}
        ) as answer:
            body = b"".join([piece async for piece in answer.aiter_raw()])
        assert (len(body), answer.headers["content-length"]) == (size, str(size))
    other.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"y" * 1001
    answer = await there.send(said, at(there, other), content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (502, "answer_too_large")
    assert answer.headers["outlast-gateway"] == "unknown"
    assert (await there.notes(said))[-1] == {
        **(await there.notes(said))[-1], "phase": "ended", "how": "answer_too_large", "status": 200,
    }  # fmt: skip


async def test_a_streamed_answer_over_the_bound_is_cut(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    chunk = b"64\r\n" + b"y" * 100 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    other.answer = head + chunk * 10 + b"0\r\n\r\n"
    assert len((await there.send(said, at(there, other), content=b"x")).content) == 1000
    other.answer = head + chunk * 11 + b"0\r\n\r\n"
    with pytest.raises(httpx2.RemoteProtocolError):
        await there.send(said, at(there, other), content=b"x")
    last = (await there.notes(said))[-1]
    assert (last["phase"], last["how"], last.get("says")) == ("ended", "answer_too_large", None)


async def test_a_streamed_answer_comes_as_it_is_made(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    other.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
    async with there.client.stream(
        "POST", at(there, other), headers={"Outlast-Token": token(said)}
    ) as answer:
        pieces = answer.aiter_raw()
        # Nothing more is sent by the other side until this piece is here.
        assert await anext(pieces) == b"first"
        other.cut = True


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_passes(there: Desk, other: Other, status: int) -> None:
    said = await said_for(there, other)
    other.answer = b"HTTP/1.1 %d X\r\n\r\n" % status
    assert (await there.send(said, at(there, other), "GET")).status_code == status
    other.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"
    head = await there.send(said, at(there, other), "HEAD")
    assert (head.status_code, head.headers["content-length"]) == (200, "5000")


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_cannot_be_reached_was_not_sent(closed_desk: Desk) -> None:
    async with other_side() as gone:
        port = gone.port
    desk, place = closed_desk, f"http://{HOST}:{port}"
    _, said = await desk.called()
    said = replace(said, hosts=(place,))
    async with desk.open(allow=(place,)):
        answer = await desk.send(said, desk.reverse(f"{place}/"))
    assert (answer.status_code, answer.json()["code"]) == (502, "unreachable")
    assert answer.headers["outlast-gateway"] == "not-sent"
    passed, ended = await desk.notes(said)
    assert (passed["phase"], ended["phase"], ended["how"], ended["says"]) == (
        "passed", "refused", "unreachable", "did_not_happen",
    )  # fmt: skip


async def test_an_other_side_that_hangs_is_left_at_the_deadline(there: Desk, other: Other) -> None:
    there.scene.now = (await there.store.health()).now
    said = await said_for(there, other, timeout_us=SECOND)
    other.hold = asyncio.Event()
    answer = await there.send(said, at(there, other), content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (504, "no_answer")
    assert answer.headers["outlast-gateway"] == "unknown"
    assert len(other.heads) == 1
    async with asyncio.timeout(10):
        await other.left.wait()
    # Counted from before the store was asked, so never later than the deadline, and a little earlier.
    assert said.expires_at - SECOND // 2 < (await there.store.health()).now
    last = (await there.notes(said))[-1]
    assert (last["phase"], last["how"], last.get("says")) == ("ended", "no_answer", None)


@pytest.mark.parametrize("bytes_", [b"", b"HTTP/1.1 2", b"not http at all\r\n\r\n"])
async def test_an_other_side_that_breaks_off_leaves_it_open(there: Desk, other: Other, bytes_: bytes) -> None:
    said = await said_for(there, other)
    other.answer, other.cut = bytes_, True
    answer = await there.send(said, at(there, other), content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (502, "answer_broken")
    assert answer.headers["outlast-gateway"] == "unknown"
    assert len(other.heads) == 1, "nothing is sent twice"
    last = (await there.notes(said))[-1]
    assert (last["phase"], last["how"], last.get("says")) == ("ended", "answer_broken", None)


async def test_an_answer_that_is_cut_comes_cut(there: Desk, other: Other) -> None:
    said = await said_for(there, other)
    other.answer, other.cut = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", True
    with pytest.raises(httpx2.RemoteProtocolError):
        await there.send(said, at(there, other), content=b"x")
    last = (await there.notes(said))[-1]
    assert (last["how"], last["status"], last["bytes"], last.get("says")) == ("answer_broken", 200, 4, None)


async def test_a_client_that_goes_away_leaves_its_request_to_be_finished(closed_desk: Desk) -> None:
    desk = closed_desk
    _, said = await desk.called()
    async with desk.open(allow=(f"http://{HOST}:{desk.recorder.port}",)):
        await desk.recorder.hold("call")
        sending = asyncio.create_task(desk.send(said))
        await desk.recorder.wait_for(held="call")
        sending.cancel()
        await asyncio.wait([sending])
        await desk.recorder.release("call")
        # Whoever stops a gateway lets it finish.
    _, ended = await desk.notes(said)
    assert (ended["phase"], ended["status"], ended["says"]) == ("ended", 201, "happened")
    (call,) = await desk.recorder.log()
    assert (call.status, call.client_gone) == (201, False)
