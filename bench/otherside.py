"""What the middleware adds to a request: the same service bare and behind it, in one run.

``python -m bench.otherside [--json] [--seconds 5] [--postgres URL]`` starts an embedded PostgreSQL with its
commits on disk (or uses an empty database of yours) and two uvicorn processes on the loopback, and asks them
in turn over one connection each, so that both see the same machine. Every request has a key of its own: it
costs a claim and an answer kept, two commits. Replays of one key and a raw commit are measured beside. To
reach: 1.5 ms more at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from typing import Any

import asyncpg
import uvicorn

from bench.asking import Asking
from bench.workloads import Progress
from outlast.otherside import IdempotencyMiddleware, shelf_for
from outlast.testing.servers import EmbeddedPostgres

TARGET_MS = 1.5
WARM_UP = 50


async def _tickets(scope: Any, receive: Any, send: Any) -> None:
    """Read the request and answer a ticket."""
    if scope["type"] != "http":
        return
    await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"16")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ticket": "R1"}'})


def _serve(url: str) -> None:
    """Serve the tickets until killed: bare without a URL, else behind the middleware."""
    app: Any = _tickets if not url else IdempotencyMiddleware(_tickets, shelf_for(url))
    # With its protocol named, asyncio switches Nagle's algorithm off, as it does for a server of its own.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


class _Tickets(Asking):
    """The service of tickets."""

    async def ask(self, key: str) -> float:
        """Make a ticket under a key; answer how many milliseconds that took."""
        return await self.post("/tickets", f"Idempotency-Key: {key}")


async def bare_tickets() -> _Tickets:
    """Start the service without anything before it."""
    return await _Tickets.start("bench.otherside", "")


async def measure(url: str, seconds: float, progress: Progress) -> dict[str, float]:
    """Measure on a database: medians of both services in milliseconds, what is added, and a raw commit."""
    shelf = shelf_for(url)
    await shelf.prepare()
    await shelf.close()
    bare, kept = await bare_tickets(), await _Tickets.start("bench.otherside", url)
    raw = await asyncpg.connect(url)
    await raw.execute("create table if not exists raw_commits (n bigint)")
    found: dict[str, list[float]] = {"bare": [], "middleware": [], "replay": [], "commit": []}
    try:
        for n in range(WARM_UP):
            await bare.ask(f"warm-{n}")
            await kept.ask(f"warm-{n}")
        used = bare.cpu_ms(), kept.cpu_ms()
        start, n = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds:
            n += 1
            progress(passed / seconds)
            found["bare"].append(await bare.ask(f"op-{n}"))
            found["middleware"].append(await kept.ask(f"op-{n}"))
            found["replay"].append(await kept.ask("warm-0"))
            began = time.perf_counter()
            await raw.execute("insert into raw_commits values (1)")
            found["commit"].append((time.perf_counter() - began) * 1000)
        # A replay costs the service a request as well, and counts as half of what is asked of it.
        cpu = (kept.cpu_ms() - used[1]) / (2 * n) - (bare.cpu_ms() - used[0]) / n
    finally:
        await raw.close()
        await bare.stop()
        await kept.stop()
    p50 = {name: statistics.median(values) for name, values in found.items()}
    return {
        "otherside_bare_p50_ms": p50["bare"],
        "otherside_p50_ms": p50["middleware"],
        "otherside_added_p50_ms": p50["middleware"] - p50["bare"],
        "otherside_added_replay_p50_ms": p50["replay"] - p50["bare"],
        "otherside_added_p95_ms": p95(found["middleware"]) - p95(found["bare"]),
        "otherside_added_cpu_ms": cpu,
        "otherside_raw_commit_ms": p50["commit"],
    }


def _silent(_: float) -> None:
    pass


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.otherside", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        _serve(arguments.serve)
        return
    if arguments.postgres:
        report = asyncio.run(measure(arguments.postgres, arguments.seconds, _silent))
    else:
        with EmbeddedPostgres() as server:
            report = asyncio.run(measure(server.create_database("otherside"), arguments.seconds, _silent))
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, value in report.items()}, indent=2))
        return
    for name, value in report.items():
        print(f"{name:<32} {value:>10,.3f}")
    added = report["otherside_added_p50_ms"]
    verdict = "reached" if added <= TARGET_MS else "not reached"
    print(f"{verdict}: {added:.2f} ms of {TARGET_MS} ms at the median")


if __name__ == "__main__":
    main()
