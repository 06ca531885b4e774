"""``python -m bench [--quick] [--json] [--postgres URL]``: every workload on both stores, beside the raw
baseline.

Figures depend on the machine and its mood; the ratios to the raw baseline of the same run are what is
compared. ``--quick`` takes under a minute and leaves out the million-row claims and the idle and size
figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import claims, faults, footprint, gateway, http, otherside, people, raw, settling, workloads
from bench.apps import make_app
from outlast import Outlast
from outlast.cli.collecting import collect_seldom
from outlast.testing.servers import EmbeddedPostgres

T = TypeVar("T")
Figures = dict[str, Any]

RATIOS = {
    "w1_drain": (0.34, 1.1),
    "w2": (1.3, 4.6),
    "w2e": (0.7, 2.2),
    "w4_single": (0.21, 1.8),
    "w4_batch": (2.1, 4.6),
}
"""Figures per raw commit to reach, on PostgreSQL and on SQLite."""
REACH = {"fan_out_x_drain": "0.7", "decision_p50_ms": "20 ms"}
"""Figures to reach that are compared with nothing raw."""

ADDED = {"otherside_added_p50_ms": otherside.TARGET_MS, "gateway_added_p50_ms": gateway.TARGET_MS}
"""Milliseconds that a request may take more."""


class Bench:
    """One run: its scale, its progress bar, its figures."""

    def __init__(self, quick: bool, progress: Progress) -> None:
        self.quick = quick
        self.progress = progress

    async def measure(self, label: str, work: Callable[[workloads.Progress], Awaitable[T]]) -> T:
        """Run one measurement under a progress bar of its own."""
        bar = self.progress.add_task(label, total=1.0)
        answer = await work(lambda part: self.progress.update(bar, completed=part))
        self.progress.update(bar, completed=1.0)
        return answer

    async def store(self, name: str, fresh: Callable[[], Awaitable[Outlast]]) -> Figures:
        """Run every workload on one store; each on a fresh, empty database."""
        seconds = 2.0 if self.quick else 5.0
        scale = 1 if self.quick else 5
        found: Figures = {}

        async def on_fresh(work: Callable[[Outlast], Awaitable[T]]) -> T:
            app = await fresh()
            try:
                return await work(app)
            finally:
                await app.close()

        async def timed(key: str, work: Callable[[Outlast, workloads.Progress], Awaitable[T]]) -> T:
            return await self.measure(f"{name} {key}", lambda p: on_fresh(lambda app: work(app, p)))

        found["w1_drain"] = await timed("w1_drain", lambda a, p: workloads.drain(a, "one", 4000 * scale, p))
        found["w1_e2e"] = await timed("w1_e2e", lambda a, p: workloads.end_to_end(a, seconds, 16, p))
        found["w2"] = 10 * await timed("w2", lambda a, p: workloads.drain(a, "ten", 1500 * scale, p))
        found["w2e"] = 10 * await timed("w2e", lambda a, p: workloads.drain(a, "effects", 700 * scale, p))
        p50, p95 = await timed("w3", lambda a, p: workloads.latency(a, 100 * scale, p))
        found["w3_p50_ms"], found["w3_p95_ms"] = p50, p95
        found["w4_single"] = await timed("w4_single", lambda a, p: workloads.submits(a, seconds, 16, p))
        found["w4_batch"] = await timed("w4_batch", lambda a, p: workloads.batch_submits(a, seconds, p))
        found["fan_out"] = await timed("fan_out", lambda a, p: people.fan_out(a, 2 * scale, p))
        found["fan_out_x_drain"] = found["fan_out"] / found["w1_drain"]
        p50, p95 = await timed("decision", lambda a, p: people.decision(a, 30 * scale, p))
        found["decision_p50_ms"], found["decision_p95_ms"] = p50, p95
        return found


async def postgres(bench: Bench, server_url: str | None) -> tuple[Figures, float]:
    """Measure PostgreSQL, embedded by default; answers its figures and the HTTP submits per second on it."""
    server = None if server_url else EmbeddedPostgres()
    made = 0

    def database() -> str:
        nonlocal made
        made += 1
        if server is None:
            assert server_url is not None
            return server_url
        return server.create_database(f"bench_{made}")

    async def fresh() -> Outlast:
        app = make_app(database())
        await app.open(migrate=True)
        return app

    try:
        rate, span = await bench.measure(
            "postgres raw", lambda p: raw.postgres(database(), 2.0 if bench.quick else 5.0)
        )
        found: Figures = {"raw_commits": rate, "raw_commit_ms": span}
        found.update(await bench.store("postgres", fresh))
        url = database()
        app = make_app(url)
        await app.open(migrate=True)
        found.update(
            await bench.measure(
                "postgres claims", lambda p: claims.postgres(app, url, p, big=not bench.quick)
            )
        )
        await app.close()
        url = database()
        app = make_app(url)
        await app.open(migrate=True)
        await app.close()
        http_rate = await bench.measure(
            "http submits", lambda p: http.submits(url, 2.0 if bench.quick else 5.0)
        )
        url = database()
        found.update(
            await bench.measure(
                "postgres otherside", lambda p: otherside.measure(url, 2.0 if bench.quick else 5.0, p)
            )
        )
        url = database()
        app = make_app(url)
        await app.open(migrate=True)
        await app.close()
        found.update(
            await bench.measure(
                "postgres gateway", lambda p: gateway.measure(url, 2.0 if bench.quick else 5.0, p)
            )
        )
        if not bench.quick:
            url = database()
            found.update(await bench.measure("postgres takeover", lambda p: faults.takeover(url, p)))
            url = database()
            found.update(await bench.measure("postgres intents", lambda p: faults.intents(url, 15.0, p)))
            url = database()
            found.update(await bench.measure("postgres settling", lambda p: settling.measure(url, p)))
            url = database()
            found.update(await bench.measure("postgres footprint", lambda p: footprint.postgres(url, p)))
            url = database()
            admin = await asyncpg.connect(url)
            count = footprint.counter(admin)
            found.update(
                await bench.measure("postgres waiting", lambda p: people.beside_waiting(url, count, p))
            )
            await admin.close()
        return found, http_rate
    finally:
        if server is not None:
            server.stop()


async def sqlite(bench: Bench, folder: Path) -> Figures:
    """Measure SQLite in a folder on disk."""
    made = 0

    async def fresh() -> Outlast:
        nonlocal made
        made += 1
        app = make_app(f"sqlite:///{folder}/bench_{made}.db")
        await app.open(migrate=True)
        return app

    async def baseline(_: workloads.Progress) -> tuple[float, float]:
        return raw.sqlite(folder, 2.0 if bench.quick else 5.0)

    rate, span = await bench.measure("sqlite raw", baseline)
    found: Figures = {"raw_commits": rate, "raw_commit_ms": span}
    found.update(await bench.store("sqlite", fresh))
    app = await fresh()
    found.update(await bench.measure("sqlite claims", lambda p: claims.sqlite(app, p, big=not bench.quick)))
    await app.close()
    if not bench.quick:
        url = f"sqlite:///{folder}/settling.db"
        found.update(await bench.measure("sqlite settling", lambda p: settling.measure(url, p)))
        url = f"sqlite:///{folder}/footprint.db"
        found.update(await bench.measure("sqlite footprint", lambda p: footprint.sqlite(url, p)))
        url = f"sqlite:///{folder}/waiting.db"
        found.update(await bench.measure("sqlite waiting", lambda p: people.beside_waiting(url, None, p)))
    return found


def table(report: dict[str, Any]) -> Table:
    """Lay the figures out beside the raw baseline and what is to be reached."""
    shown = Table(title="Outlast, beside the raw baseline of this run")
    for column in ("figure", "postgres", "x raw", "to reach", "sqlite", "x raw", "to reach"):
        shown.add_column(column, justify="left" if column == "figure" else "right")
    postgres_figures, sqlite_figures = report["postgres"], report["sqlite"]
    for key in dict.fromkeys([*postgres_figures, *sqlite_figures]):
        cells = [key]
        for place, figures in enumerate((postgres_figures, sqlite_figures)):
            value = figures.get(key)
            cells.append("-" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
            if key in RATIOS and value is not None:
                cells += [f"{value / figures['raw_commits']:.2f}", f"{RATIOS[key][place]:.2f}"]
            elif key == "w3_p50_ms" and value is not None:
                cells += [f"{value / figures['raw_commit_ms']:.1f}", ("12", "11")[place]]
            elif key in ADDED and value is not None:
                cells += [f"{value / figures['raw_commit_ms']:.1f}", f"{ADDED[key]} ms"]
            elif key in REACH and value is not None:
                cells += ["", REACH[key]]
            else:
                cells += ["", ""]
        shown.add_row(*cells)
    shown.add_row("http_submit_per_s", f"{report['http_submit_per_s']:,.0f}", "", "700", "", "", "")
    return shown


async def run(quick: bool, server_url: str | None, progress: Progress) -> dict[str, Any]:
    """Measure everything."""
    bench = Bench(quick, progress)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        sqlite_figures = await sqlite(bench, Path(folder))
    postgres_figures, http_rate = await postgres(bench, server_url)
    return {"postgres": postgres_figures, "sqlite": sqlite_figures, "http_submit_per_s": http_rate}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute, without the million-row claims")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    parser.add_argument(
        "--postgres", metavar="URL", help="an empty database to use instead of the embedded server"
    )
    arguments = parser.parse_args()
    # As `outlast worker` does it.
    collect_seldom()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        report = asyncio.run(run(arguments.quick, arguments.postgres, progress))
    if arguments.json:
        print(json.dumps({k: _rounded(v) for k, v in report.items()}, indent=2))
    else:
        Console().print(table(report))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 3)


if __name__ == "__main__":
    main()
