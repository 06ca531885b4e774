"""What the gateway adds to a request: the same service asked directly and through it, in one run.

``python -m bench.gateway [--json] [--seconds 5] [--postgres URL]`` starts an embedded PostgreSQL with its
commits on disk (or uses an empty database of yours), a service and a gateway, each a process of its own on
the loopback, and asks in turn over one connection each. Every request is an operation of its own, whose
intent was committed before; it costs two commits (what passes, how it ended), one look at the store, and a
hop. To reach: 3 ms more at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import asyncpg

from bench.asking import Asking
from bench.otherside import bare_tickets, p95
from bench.workloads import Progress
from outlast import tokens
from outlast.core import ids
from outlast.gateway import Gateway
from outlast.gateway.serving import Server
from outlast.gateway.settings import GatewaySettings
from outlast.opening import store_for
from outlast.store.contract import Store
from outlast.store.entries import Batch, CommitIntent, TaskWrites
from outlast.store.records import ClaimRequest, Serves, SessionRenewal, Submission
from outlast.testing.servers import EmbeddedPostgres
from outlast.tools.passing import Pass

TARGET_MS = 3.0
SECRET = "a secret of the bench, and of nobody else"
WARM_UP = 30
HOUR_US = 3_600_000_000


async def _serve(url: str, there: str) -> None:
    """Serve a gateway until killed."""
    store = store_for(url)
    await store.open()
    settings = GatewaySettings(allow=(there,), ranges=("127.0.0.1/32",))
    gateway = Gateway(store, SECRET, settings)
    server = Server(gateway, "127.0.0.1:0")
    await server.run_until_stopped(lambda: print(server.port, flush=True))


async def _called(store: Store, count: int, hosts: tuple[str, ...]) -> list[Pass]:
    """Have operations that run; answer what a token for each says."""
    now = (await store.health()).now
    session = ids.new_id(ids.SESSION, now // 1000, 1)
    await store.renew(SessionRenewal(session=session, name="bench", ttl_us=HOUR_US))
    task = ids.new_id(ids.TASK, now // 1000, 1)
    await store.submit(
        [
            Submission(
                tenant="bench", task=task, key=None, request_digest="d", agent="a", pool="p", priority=0,
                input="{}", user=None, trace=None,
            )
        ]
    )  # fmt: skip
    reply = await store.claim(
        ClaimRequest(
            session=session, pools=("p",), serves=(Serves(agent="a", version="1"),), limit=1, config="c"
        )
    )
    (claimed,) = reply.claims
    said = []
    for start in range(0, count, 500):
        intents = tuple(
            CommitIntent(
                key=f"op-{n}", position=n, kind="tool", name="send", request="r", decision="d",
                effect="keyed", arguments="{}", timeout_us=HOUR_US,
            )
            for n in range(start, min(start + 500, count))
        )  # fmt: skip
        writes = TaskWrites(tenant="bench", task=task, epoch=claimed.epoch, entries=intents)
        await store.flush(Batch(writer="bench", number=start // 500 + 1, writes=(writes,)))
        said += [
            Pass(
                tenant="bench", task=task, epoch=claimed.epoch, key=intent.key, attempt=1, decision="d",
                approval=None, hosts=hosts, expires_at=now + HOUR_US,
            )
            for intent in intents
        ]  # fmt: skip
    return said


async def measure(url: str, seconds: float, progress: Progress) -> dict[str, float]:
    """Measure on a migrated database: medians with and without the gateway in milliseconds, and a commit."""
    store = store_for(url)
    await store.open()
    bare = await bare_tickets()
    there = f"http://127.0.0.1:{bare.port}"
    through = await Asking.start("bench.gateway", url, there)

    async def ask(token: str) -> float:
        return await through.post(f"{there}/tickets", f"Proxy-Authorization: Bearer {token}")

    raw = await asyncpg.connect(url)
    await raw.execute("create table if not exists raw_commits (n bigint)")
    found: dict[str, list[float]] = {"bare": [], "gateway": [], "commit": []}
    try:
        said = await _called(store, WARM_UP + int(seconds * 400), (there,))
        signed = iter([tokens.sign(SECRET, "gateway", one.parts()) for one in said])
        for n in range(WARM_UP):
            await bare.ask(f"warm-{n}")
            await ask(next(signed))
        used = through.cpu_ms()
        start = time.perf_counter()
        for n, token in enumerate(signed):
            passed = time.perf_counter() - start
            if passed >= seconds:
                break
            progress(passed / seconds)
            found["bare"].append(await bare.ask(f"op-{n}"))
            found["gateway"].append(await ask(token))
            began = time.perf_counter()
            await raw.execute("insert into raw_commits values (1)")
            found["commit"].append((time.perf_counter() - began) * 1000)
        cpu = (through.cpu_ms() - used) / len(found["gateway"])
    finally:
        await raw.close()
        await bare.stop()
        await through.stop()
        await store.close()
    p50 = {name: statistics.median(values) for name, values in found.items()}
    return {
        "gateway_bare_p50_ms": p50["bare"],
        "gateway_p50_ms": p50["gateway"],
        "gateway_added_p50_ms": p50["gateway"] - p50["bare"],
        "gateway_added_p95_ms": p95(found["gateway"]) - p95(found["bare"]),
        "gateway_cpu_ms": cpu,
        "gateway_raw_commit_ms": p50["commit"],
    }


def _silent(_: float) -> None:
    pass


async def _migrated(url: str, seconds: float) -> dict[str, float]:
    store = store_for(url)
    await store.migrate()
    await store.close()
    return await measure(url, seconds, _silent)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--serve", nargs=2, metavar=("URL", "THERE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(_serve(*arguments.serve))
        return
    if arguments.postgres:
        report = asyncio.run(_migrated(arguments.postgres, arguments.seconds))
    else:
        with EmbeddedPostgres() as server:
            report = asyncio.run(_migrated(server.create_database("gateway"), arguments.seconds))
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, value in report.items()}, indent=2))
        return
    for name, value in report.items():
        print(f"{name:<32} {value:>10,.3f}")
    added = report["gateway_added_p50_ms"]
    verdict = "reached" if added <= TARGET_MS else "not reached"
    print(f"{verdict}: {added:.2f} ms of {TARGET_MS} ms at the median")


if __name__ == "__main__":
    main()
