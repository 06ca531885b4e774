"""What the middleware answers, request by request, in front of an app in this process, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.otherside.conftest import a_moment

from outlast.errors import StoreUnavailable
from outlast.otherside import IdempotencyMiddleware, shelf_for
from outlast.store.shelf import KeyAnswer, KeyHold, Shelf

App = Callable[[dict[str, Any], Any, Any], Any]


class Tickets:
    """A service that counts what it does. body: what it reads; then: what it does beside answering."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.status = 201
        self.body = b'{"ticket": 1}'
        self.headers = [(b"content-type", b"application/json"), (b"x-kind", b"one"), (b"set-cookie", b"a=b")]
        self.pieces: list[bytes] | None = None
        self.then: Callable[[], Any] | None = None
        self.began = asyncio.Event()
        self.door = asyncio.Event()
        self.door.set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            self.runs.append({"type": scope["type"]})
            return
        message = await receive()
        told = scope.get("outlast")
        self.runs.append({"body": message["body"], "told": told, "extensions": scope.get("extensions")})
        self.began.set()
        await self.door.wait()
        if self.then is not None:
            await self.then()
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for piece in self.pieces or ():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if self.pieces else self.body})


@pytest.fixture
def tickets() -> Tickets:
    return Tickets()


Make = Callable[..., httpx2.AsyncClient]


@pytest.fixture
async def make(shelf: Shelf, tickets: Tickets) -> AsyncIterator[Make]:
    made: list[tuple[IdempotencyMiddleware, httpx2.AsyncClient]] = []

    def one(on: Shelf = shelf, **options: Any) -> httpx2.AsyncClient:
        middleware = IdempotencyMiddleware(tickets, on, **options)
        transport = httpx2.ASGITransport(middleware, raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://service")
        made.append((middleware, client))
        return client

    yield one
    for middleware, client in made:
        await middleware.drain()
        await client.aclose()


async def post(client: httpx2.AsyncClient, key: str | None = "op-1", **options: Any) -> httpx2.Response:
    headers = {**options.pop("headers", {}), **({} if key is None else {"Idempotency-Key": key})}
    method, path = options.pop("method", "POST"), options.pop("path", "/tickets?a=1")
    return await client.request(method, path, headers=headers, **{"json": {"invoice": 1}, **options})


def code(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["type"] == f"urn:outlast:problem:{document['code']}"
    return answer.status_code, document["code"]


# ── one answer ───────────────────────────────────────────────────────────────────────────────────


async def test_a_repeat_gets_the_first_answer(make: Make, tickets: Tickets) -> None:
    client = make()
    first = await post(client)
    tickets.body, tickets.status = b"another", 200
    again = await post(client, '"op-1"')
    assert (first.status_code, first.content) == (again.status_code, again.content) == (201, b'{"ticket": 1}')
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-kind"] == "one"
    assert again.headers["content-length"] == "13"
    # A cookie is for whoever asked first.
    assert first.headers["set-cookie"] == "a=b"
    assert "set-cookie" not in again.headers
    (run,) = tickets.runs
    assert run["body"] == b'{"invoice":1}'
    assert {name: run["told"][name] for name in ("key", "takeover", "epoch")} == {
        "key": "op-1", "takeover": 0, "epoch": None,
    }  # fmt: skip
    assert run["extensions"] == {}


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 409, 422, 500, 502])
async def test_every_answer_that_may_follow_from_work_is_kept(
    make: Make, tickets: Tickets, status: int
) -> None:
    tickets.status = status
    tickets.body = b"" if status == 204 else b"x"
    client = make()
    first, again = await post(client), await post(client)
    assert first.status_code == again.status_code == status
    assert first.content == again.content == tickets.body
    assert len(tickets.runs) == 1


@pytest.mark.parametrize("status", [425, 429, 503])
async def test_what_was_not_processed_gives_the_key_back(make: Make, tickets: Tickets, status: int) -> None:
    client = make()
    tickets.status = status
    assert (await post(client)).status_code == status
    tickets.status = 201
    # Even to another request: this key stands for nothing.
    assert (await post(client, json={"invoice": 2})).status_code == 201
    assert [run["told"]["takeover"] for run in tickets.runs] == [0, 0]


async def test_what_gives_a_key_back_can_be_said(make: Make, tickets: Tickets) -> None:
    client = make(release_on={500})
    tickets.then = _raise
    assert (await post(client)).status_code == 500
    tickets.then, tickets.status = None, 503
    assert (await post(client)).status_code == 503
    assert (await post(client)).headers["idempotent-replayed"] == "true"
    assert len(tickets.runs) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"json": {"invoice": 2}},
        {"path": "/tickets?a=2"},
        {"path": "/other?a=1"},
        {"method": "PUT"},
        {"headers": {"Content-Type": "text/json"}},
    ],
)
async def test_other_content_under_the_key_is_refused(
    make: Make, tickets: Tickets, other: dict[str, Any]
) -> None:
    client = make()
    await post(client)
    assert code(await post(client, **other)) == (422, "idempotency_conflict")
    assert len(tickets.runs) == 1


async def test_two_clients_may_use_one_key(make: Make, tickets: Tickets) -> None:
    client = make()
    one = await post(client, headers={"Authorization": "Bearer one"})
    other = await post(client, headers={"Authorization": "Bearer other"}, json={"invoice": 2})
    assert one.status_code == other.status_code == 201
    assert len(tickets.runs) == 2


async def test_whose_key_it_is_can_be_said(make: Make, tickets: Tickets) -> None:
    async def account(scope: Any) -> str:
        return dict(scope["headers"])[b"x-account"].decode()

    client = make(scope_of=account)
    first = await post(client, headers={"X-Account": "a", "Authorization": "Bearer one"})
    again = await post(client, headers={"X-Account": "a", "Authorization": "Bearer fresh"})
    other = await post(client, headers={"X-Account": "b", "Authorization": "Bearer one"})
    assert [a.headers.get("idempotent-replayed") for a in (first, again, other)] == [None, "true", None]
    assert len(tickets.runs) == 2


# ── what is looked at ────────────────────────────────────────────────────────────────────────────


async def test_what_has_no_key_passes(make: Make, tickets: Tickets) -> None:
    client = make()
    for _ in range(2):
        assert (await post(client, None)).status_code == 201
        assert (await client.get("/tickets", headers={"Idempotency-Key": "op-1"})).status_code == 201
    assert [run["told"] for run in tickets.runs] == [None] * 4


async def test_a_key_can_be_required(make: Make, tickets: Tickets) -> None:
    client = make(required=True, methods=["post"])
    assert code(await post(client, None)) == (400, "idempotency_key_missing")
    assert (await post(client, None, method="PUT")).status_code == 201
    assert len(tickets.runs) == 1


@pytest.mark.parametrize("key", ["", " ", "k" * 256, '"open', "a\tb"])
async def test_a_bad_key_is_refused_before_anything_is_done(make: Make, tickets: Tickets, key: str) -> None:
    assert code(await post(make(), key)) == (400, "invalid_key")
    assert tickets.runs == []


async def test_websockets_and_lifespan_pass(shelf: Shelf, tickets: Tickets) -> None:
    middleware = IdempotencyMiddleware(tickets, shelf)
    for kind in ("websocket", "lifespan"):
        await middleware({"type": kind}, None, None)
    assert tickets.runs == [{"type": "websocket"}, {"type": "lifespan"}]


async def test_a_body_over_the_bound_claims_nothing(make: Make, tickets: Tickets) -> None:
    client = make(max_body=10)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"12345"

    assert code(await post(client, json=None, content=b"x" * 11)) == (413, "body_too_large")
    assert code(await post(client, json=None, content=chunks())) == (413, "body_too_large")
    assert tickets.runs == []
    assert (await post(client, json=None, content=b"x" * 10)).status_code == 201
    assert tickets.runs[0]["body"] == b"x" * 10


async def test_a_body_that_is_cut_claims_nothing(make: Make, shelf: Shelf, tickets: Tickets) -> None:
    middleware = IdempotencyMiddleware(tickets, shelf)
    messages = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"op-1")]}
    await middleware(scope, receive, sent.append)
    assert (sent, tickets.runs) == ([], [])
    assert (await post(make(), json={"another": 1})).status_code == 201


# ── twins ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_twin_is_told_to_come_again_or_waits(make: Make, tickets: Tickets) -> None:
    hasty, patient = make(), make(wait="20s")
    tickets.door.clear()
    first = asyncio.create_task(post(hasty))
    await tickets.began.wait()
    twin = await post(hasty)
    assert code(twin) == (409, "in_flight")
    assert twin.headers["retry-after"] == "1"
    # No longer than its own sender waits.
    async with asyncio.timeout(10):
        assert code(await post(patient, headers={"Outlast-Deadline": "50"})) == (409, "in_flight")
    assert code(await post(patient, json={"invoice": 2})) == (422, "idempotency_conflict")
    waiting = asyncio.create_task(post(patient))
    tickets.door.set()
    assert (await first).status_code == 201
    assert (await waiting).headers["idempotent-replayed"] == "true"
    assert len(tickets.runs) == 1


async def test_a_client_that_goes_away_does_not_cut_the_handler(make: Make, tickets: Tickets) -> None:
    client = make(wait="20s")
    tickets.door.clear()
    first = asyncio.create_task(post(client))
    await tickets.began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    tickets.door.set()
    assert (await post(client)).headers["idempotent-replayed"] == "true"
    assert len(tickets.runs) == 1


# ── handlers that fail ───────────────────────────────────────────────────────────────────────────


async def _raise() -> None:
    raise RuntimeError("a secret")


async def test_a_handler_that_raises_has_answered_500(make: Make, tickets: Tickets, shelf: Shelf) -> None:
    client = make()
    tickets.then = _raise
    first = await post(client)
    assert code(first) == (500, "handler_failed")
    assert "secret" not in first.text
    tickets.then = None
    again = await post(client)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert len(tickets.runs) == 1
    # The server gets the exception, to log it.
    tickets.then = _raise
    loud = httpx2.ASGITransport(IdempotencyMiddleware(tickets, shelf))
    async with httpx2.AsyncClient(transport=loud, base_url="http://service") as raising:
        with pytest.raises(RuntimeError, match="a secret"):
            await post(raising, "op-2")


async def test_a_handler_that_answers_half_has_failed(shelf: Shelf) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    transport = httpx2.ASGITransport(IdempotencyMiddleware(half, shelf))
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        assert code(await post(client)) == (500, "handler_failed")


async def test_a_handler_that_hangs_is_cut_and_has_answered_504(make: Make, tickets: Tickets) -> None:
    client = make(timeout="50ms")
    tickets.door.clear()
    first = await post(client)
    assert code(first) == (504, "handler_timeout")
    tickets.door.set()
    assert (await post(client)).content == first.content
    assert len(tickets.runs) == 1


async def test_a_handler_that_does_not_let_itself_be_cut_answers_nobody(shelf: Shelf) -> None:
    going, over = asyncio.Event(), asyncio.Event()

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        while not going.is_set():
            try:
                await going.wait()
            except asyncio.CancelledError:
                continue
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})
        over.set()

    transport = httpx2.ASGITransport(IdempotencyMiddleware(stubborn, shelf, timeout="50ms"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        first = await post(client)
        going.set()
        await over.wait()
        assert (code(first), (await post(client)).content) == ((504, "handler_timeout"), first.content)


# ── answers that are not kept ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pieces", "media"),
    [([b"x" * 60, b"y" * 60], b"text/plain"), ([b"data: 1\n\n"], b"text/event-stream; charset=utf-8")],
)
async def test_a_large_or_streamed_answer_passes_and_its_repeat_is_refused(
    make: Make, tickets: Tickets, pieces: list[bytes], media: bytes
) -> None:
    client = make(max_answer=100)
    tickets.pieces, tickets.headers, tickets.status = pieces, [(b"content-type", media)], 202
    first = await post(client)
    assert (first.status_code, first.content) == (202, b"".join(pieces))
    again = await post(client)
    assert code(again) == (409, "answer_not_kept")
    assert again.json()["first_status"] == 202
    assert code(await post(client, json={"invoice": 2})) == (422, "idempotency_conflict")
    assert len(tickets.runs) == 1


async def test_an_answer_at_the_bound_is_kept_whatever_its_pieces(make: Make, tickets: Tickets) -> None:
    client = make(max_answer=100)
    tickets.pieces = [b"x" * 50, b"y" * 50]
    first, again = await post(client), await post(client)
    assert first.content == again.content == b"x" * 50 + b"y" * 50
    tickets.pieces, tickets.body = None, b"z" * 101
    assert (await post(client, "op-2")).content == b"z" * 101
    assert code(await post(client, "op-2")) == (409, "answer_not_kept")


async def test_a_stream_is_sent_as_it_comes_and_learns_that_its_client_is_gone(shelf: Shelf) -> None:
    gone = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        gone.set()

    inbound: asyncio.Queue[Any] = asyncio.Queue()
    outbound: asyncio.Queue[Any] = asyncio.Queue()
    inbound.put_nowait({"type": "http.request", "body": b""})
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"op-1")]}
    middleware = IdempotencyMiddleware(stream, shelf)
    serving = asyncio.create_task(middleware(scope, inbound.get, outbound.put))
    assert (await outbound.get())["status"] == 200
    assert (await outbound.get())["body"] == b"data: 1\n\n"
    inbound.put_nowait({"type": "http.disconnect"})
    await serving
    assert gone.is_set()
    verdict = await shelf.look(KeyHold(scope="", key="op-1", holder=""))
    assert verdict is not None
    assert verdict.kind == "not_kept"


# ── epochs ───────────────────────────────────────────────────────────────────────────────────────


def epoch(number: int, task: str = "task_1") -> dict[str, Any]:
    return {"headers": {"Outlast-Epoch": str(number), "Outlast-Task": task}}


async def test_an_older_epoch_is_refused_under_any_key(make: Make, tickets: Tickets) -> None:
    client = make()
    assert (await post(client, "op-1", **epoch(5))).status_code == 201
    assert (await post(client, "op-2", **epoch(6))).status_code == 201
    for key in ("op-1", "op-3"):
        stale = await post(client, key, **epoch(5))
        assert code(stale) == (409, "stale_epoch")
        assert stale.json()["epoch"] == 6
    # A resend by the task's new holder gets what the old one was answered.
    assert (await post(client, "op-1", **epoch(6))).headers["idempotent-replayed"] == "true"
    assert (await post(client, "op-4", **epoch(1, "task_2"))).status_code == 201
    assert (await post(client, "op-5")).status_code == 201
    assert [run["told"]["epoch"] for run in tickets.runs] == [5, 6, 1, None]


async def test_without_a_task_an_epoch_is_the_keys(make: Make, tickets: Tickets) -> None:
    client = make()
    await post(client, "op-1", headers={"Outlast-Epoch": "7"})
    assert code(await post(client, "op-1", headers={"Outlast-Epoch": "6"})) == (409, "stale_epoch")
    assert (await post(client, "op-2", headers={"Outlast-Epoch": "6"})).status_code == 201


async def test_one_client_cannot_raise_anothers_epoch(make: Make, tickets: Tickets) -> None:
    client = make()
    await post(client, "op-1", headers={**epoch(99)["headers"], "Authorization": "one"})
    other = await post(client, "op-1", headers={**epoch(1)["headers"], "Authorization": "other"})
    assert other.status_code == 201


async def test_of_many_epochs_at_once_none_is_admitted_after_a_higher_one(
    make: Make, tickets: Tickets
) -> None:
    client = make()
    answers = await asyncio.gather(*(post(client, f"op-{n}", **epoch(n)) for n in range(1, 40)))
    assert answers[-1].status_code == 201
    assert {a.status_code for a in answers} <= {201, 409}
    for n, answer in enumerate(answers, 1):
        again = await post(client, f"op-{n}", **epoch(39))
        assert ("idempotent-replayed" in again.headers) == (answer.status_code == 201)
    assert len(tickets.runs) == 39


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_that_comes_after_its_retention_is_a_new_one(make: Make, tickets: Tickets) -> None:
    client = make(retention="1us")
    assert (await post(client)).status_code == 201
    await a_moment()
    assert (await post(client, json={"invoice": 2})).status_code == 201
    assert [run["told"]["takeover"] for run in tickets.runs] == [0, 0]


async def test_a_key_that_is_worked_under_is_nobody_elses_however_old(make: Make, tickets: Tickets) -> None:
    client = make(retention="1us")
    tickets.door.clear()
    first = asyncio.create_task(post(client))
    await tickets.began.wait()
    await a_moment()
    assert code(await post(client)) == (409, "in_flight")
    tickets.door.set()
    assert (await first).status_code == 201
    assert len(tickets.runs) == 1


async def test_sweeping_forgets_what_was_kept_for_its_time_and_nothing_else(
    make: Make, shelf: Shelf, tickets: Tickets
) -> None:
    short, long = make(retention="1us", epoch_retention="1us"), make()
    await post(long, "kept", **epoch(1, "kept"))
    for n in range(5):
        await post(short, f"op-{n}", **epoch(1, f"task_{n}"))
    tickets.door.clear()
    tickets.began.clear()
    working = asyncio.create_task(post(short, "working"))
    await tickets.began.wait()
    await a_moment()
    assert await shelf.sweep() == 10
    assert await shelf.sweep() == 0
    tickets.door.set()
    assert (await working).status_code == 201
    assert (await post(long, "kept", **epoch(1, "kept"))).headers["idempotent-replayed"] == "true"
    assert code(await post(long, "x", **epoch(0, "kept"))) == (409, "stale_epoch")


async def test_a_process_sweeps_by_itself(make: Make, shelf: Shelf, tickets: Tickets) -> None:
    client = make(retention="1us", sweep="1us")
    await post(client)
    await a_moment()
    await post(client, "op-2")
    await client._transport.app.drain()  # type: ignore[attr-defined]
    assert await shelf.look(KeyHold(scope="", key="op-1", holder="")) is None


# ── a database that is away ──────────────────────────────────────────────────────────────────────


class Away:
    """A shelf whose verbs can be told to fail."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.fails: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        async def verb(*arguments: Any) -> Any:
            if self.fails.get(name, 0) > 0:
                self.fails[name] -= 1
                raise StoreUnavailable("away", retry_after=7)
            return await getattr(self._shelf, name)(*arguments)

        return verb


async def test_without_a_claim_nothing_is_done(make: Make, tickets: Tickets, shelf: Shelf) -> None:
    away = Away(shelf)
    away.fails = {"claim": 1}
    client = make(away)
    answer = await post(client)
    assert code(answer) == (503, "store_unavailable")
    assert answer.headers["retry-after"] == "7"
    assert tickets.runs == []
    assert (await post(client)).status_code == 201


async def test_an_answer_is_kept_when_the_database_comes_back(
    make: Make, tickets: Tickets, shelf: Shelf
) -> None:
    away = Away(shelf)
    away.fails = {"answer": 2}
    client = make(away)
    assert (await post(client)).status_code == 201
    assert (await post(client)).headers["idempotent-replayed"] == "true"


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    make: Make, tickets: Tickets, shelf: Shelf
) -> None:
    away = Away(shelf)
    away.fails = {"answer": 1000}
    client = make(away, lease="200ms", wait="20s")
    assert (await post(client)).content == tickets.body
    away.fails = {}
    # The next one is told that somebody may have acted.
    assert (await post(client)).status_code == 201
    assert [run["told"]["takeover"] for run in tickets.runs] == [0, 1]


async def test_a_key_that_was_taken_over_and_given_back_keeps_its_count(
    make: Make, tickets: Tickets, shelf: Shelf
) -> None:
    away = Away(shelf)
    away.fails = {"answer": 1000}
    client = make(away, lease="200ms", wait="20s")
    await post(client)
    away.fails, tickets.status = {}, 503
    assert (await post(client)).status_code == 503
    tickets.status = 201
    assert (await post(client)).status_code == 201
    assert [run["told"]["takeover"] for run in tickets.runs] == [0, 1, 2]


async def test_a_stale_holder_changes_nothing(shelf: Shelf, make: Make, tickets: Tickets) -> None:
    await post(make())
    stale = KeyHold(scope="", key="op-1", holder="hold_of_another")
    assert await shelf.answer(stale, KeyAnswer(status=500, headers="[]", body=b"no")) is False
    assert await shelf.answer(stale, KeyAnswer(status=201, headers="[]", body=b"no")) is False
    assert await shelf.give_up(stale) is False
    assert await shelf.renew([stale], 1_000_000) == [False]
    assert (await post(make())).content == tickets.body


@pytest.mark.parametrize("options", [{"methods": "POST"}, {"lease": 0}, {"retention": "soon"}])
def test_nonsense_is_refused_when_it_is_said(options: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"methods|lease|retention"):
        IdempotencyMiddleware(Tickets(), shelf_for("sqlite://:memory:"), **options)


async def test_a_database_that_cannot_be_used_means_503_and_nothing_done(
    tickets: Tickets, tmp_path: Path, bare_postgres_url: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "no.db").write_bytes(b"no database" * 100)
    for url in (
        f"sqlite:///{tmp_path / 'folder'}",
        f"sqlite:///{tmp_path / 'no.db'}",
        f"sqlite:///{tmp_path / 'without-tables.db'}",
        bare_postgres_url,
        "postgresql://nobody@127.0.0.1:1/nothing",
    ):
        shelf = shelf_for(url)
        transport = httpx2.ASGITransport(IdempotencyMiddleware(tickets, shelf))
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            assert code(await post(client)) == (503, "store_unavailable"), url
        await shelf.close()
    assert tickets.runs == []
