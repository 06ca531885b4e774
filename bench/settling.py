"""A thousand unknowns after one crash: how long until all are settled, by asking a real ticket service.

The ledger holds what a killed worker leaves: intents without outcomes; the service holds every ticket. The
next worker asks for each and makes none again. The service's log says how many questions it had open at once.
"""

from __future__ import annotations

import time

import httpx2

from bench.workloads import Progress, working
from outlast import Backoff, Outlast, Request, TaskContext, ToolCall, clock
from outlast.core import canonical, ids, values
from outlast.store.entries import Batch, CommitIntent, TaskWrites
from outlast.store.records import ClaimRequest, Serves, SessionRenewal
from outlast.testing.recorder import Call, Recorder

UNKNOWNS = 1_000


def make_app(url: str, tickets: str) -> Outlast:
    """Make an app whose one tool can be asked about."""
    app = Outlast("settling", database_url=url)

    async def find(call: ToolCall, invoice: str) -> str | None:
        found = await call.http.get(f"{tickets}/tickets", params={"idempotency_key": call.idempotency_key})
        return str(found.json()[0]["id"]) if found.json() else None

    @app.tool(effect="queryable", find=find, visible_within="1s", timeout="10m", retry=Backoff(attempts=3))
    async def file(call: ToolCall, invoice: str) -> str:
        reply = await call.http.post(f"{tickets}/tickets", json={"invoice": invoice, "amount": "1"})
        return str(reply.json()["id"])

    @app.agent
    async def filing(task: TaskContext, invoice: str) -> str:
        return str(await task.call(file, invoice=invoice))

    return app


async def _crash(app: Outlast, tickets: str, progress: Progress) -> None:
    """Leave a thousand operations as a killed worker leaves them: intents on disk, tickets made, no outcome.

    The leases are those of a session that nobody renews; the tickets are made under the operations' keys.
    """
    store = app.store
    session, writer = clock.new_id(ids.SESSION), clock.new_id(ids.WRITER)
    await store.renew(SessionRenewal(session=session, name="killed", ttl_us=1))
    serves = (Serves(agent="filing", version="1"),)
    reply = await store.claim(
        ClaimRequest(session=session, pools=("default",), serves=serves, limit=UNKNOWNS)
    )
    tool = app.registry.tools["file"]
    writes = []
    async with httpx2.AsyncClient(timeout=30) as client:
        for number, (claimed, loaded) in enumerate(
            zip(reply.claims, await store.load(reply.claims), strict=True)
        ):
            arguments = values.decode(loaded.input)
            request = canonical.fingerprint("tool", tool.name, arguments)
            intent = CommitIntent(
                key="file#1", position=1, kind="tool", name=tool.name, request=request,
                decision=canonical.decision_digest(request, tool.version, None), effect="queryable",
                arguments=values.encode(arguments), timeout_us=1_000_000,
            )  # fmt: skip
            writes.append(
                TaskWrites(tenant=claimed.tenant, task=claimed.task, epoch=claimed.epoch, entries=(intent,))
            )
            key = ids.operation_id(claimed.task, "file#1")
            await client.post(
                f"{tickets}/tickets", json={**arguments, "amount": "1"}, headers={"Idempotency-Key": key}
            )
            progress(0.5 * number / UNKNOWNS)
    verdicts = await store.flush(Batch(writer=writer, number=1, writes=tuple(writes)))
    assert all(verdict.kind == "accepted" and not verdict.refusals for verdict in verdicts)


async def measure(url: str, progress: Progress) -> dict[str, float]:
    """Answer the seconds from the first question to the last settlement, and the most questions open at
    once."""
    async with Recorder() as recorder:
        app = make_app(url, recorder.url)
        await app.open(migrate=True)
        handles = await app.submit_many(
            [Request(agent="filing", input={"invoice": f"INV-{number}"}) for number in range(UNKNOWNS)]
        )
        await _crash(app, recorder.url, progress)
        async with working(app, slots=UNKNOWNS):
            await recorder.wait_for(calls=1, method="GET", timeout=60)
            started = time.perf_counter()
            for number, handle in enumerate(handles):
                await handle.result(timeout="60s")
                progress(0.5 + 0.5 * number / UNKNOWNS)
            seconds = time.perf_counter() - started
        log = await recorder.log()
        posts = sum(call.method == "POST" for call in log)
        await app.close()
    if posts != UNKNOWNS:
        raise RuntimeError(f"{posts} tickets were asked for, where {UNKNOWNS} were expected")
    return {"settle_1000_s": seconds, "settle_most_at_once": _most_at_once(log)}


def _most_at_once(log: list[Call]) -> float:
    """Answer how many questions the service had open at the same time."""
    moments = sorted(
        moment
        for call in log
        if call.method == "GET" and call.ended_at is not None
        for moment in ((call.arrived_at, 1), (call.ended_at, -1))
    )
    open_now = most = 0
    for _, change in moments:
        open_now += change
        most = max(most, open_now)
    return float(most)
