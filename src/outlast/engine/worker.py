"""A worker process: claims tasks, runs them, gives them back.

Purpose: keep ``slots`` tasks running, as long as there are any that it can serve.

Identity: its session's incarnation id; its name is a label.

State: serving, then draining (claim no more, let tasks reach their next boundary), then stopped.

What is fenced: all that its runs write; the worker itself writes only its session.

Failure by failure: the store is away: claims are tried again every quarter of a second, runs go on until they
need the disk. The session is lost: every run is given up and a new session begins. SIGTERM: ``stop`` drains
within ``grace_s`` and leases are given back at once, so that others go on without waiting for their end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from outlast import clock, probes, telemetry
from outlast.core import values
from outlast.engine import acceptance, undoing
from outlast.engine.context import TaskContext, tool_spec_of
from outlast.engine.finding import Inquiries
from outlast.engine.hearing import Hearing
from outlast.engine.host import CallbackPlace, GatewayPlace
from outlast.engine.housekeeping import schedules, sweeper
from outlast.engine.housekeeping.delivering import keep_delivering
from outlast.engine.housekeeping.settler import Settler
from outlast.engine.journal import Journal, Told
from outlast.engine.limits import Limits
from outlast.engine.nursery import Nursery
from outlast.engine.offers import Offer, Offers
from outlast.engine.processes import Processes
from outlast.engine.registry import Registry
from outlast.engine.run import Run
from outlast.engine.session import Session
from outlast.engine.settings import WorkerSettings
from outlast.errors import ConfigurationError, StoreUnavailable
from outlast.store.contract import Store
from outlast.store.entries import EndAttempt
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Evidence,
    Held,
    Loaded,
    Serves,
)
from outlast.store.rows import EndRow
from outlast.tools.http import make_client

T = TypeVar("T")
PAUSE_S = 0.005
"""Seconds until a worker looks again that was given less than it had slots for, unless it is woken before."""
CUT_S = 5.0
"""Seconds in which a run that was cut has to bring its ending to disk."""
LATE_S = 2.0
"""Seconds that a stop waits at least for what outlives its run, when its grace time is over."""


class Worker:
    """Run tasks of a registry's agents from a store."""

    attempt_of: type[Run] = Run
    """What runs a claimed task."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        settings: WorkerSettings | None = None,
        *,
        callback: Callable[[str, str, str, bool], CallbackPlace] | None = None,
        gateway: GatewayPlace | None = None,
        ended: Callable[[EndRow], None] | None = None,
        offers: Offers | None = None,
    ) -> None:
        """Make a worker. ended: told of each success of a task, once it is on disk. offers: where those who
        submit in this process look for a worker that waits."""
        registry.check()
        self.settings = settings or WorkerSettings()
        self.registry = registry
        self.store = store
        self.draining = False
        self.grace_ends: float | None = None
        self.runs: dict[Run, asyncio.Task[None]] = {}
        self.busy = asyncio.Event()
        self._of_task: dict[tuple[str, str], Run] = {}
        self.session = Session(store, self.settings, self._session_lost)
        # Named after the session, so that the writer's row goes when the session is retired.
        self.journal = Journal(store, self.settings, f"{self.session.id}/journal")
        self.inquiries = Inquiries()
        self.limits = Limits()
        self.nursery = Nursery(self)
        self.processes = Processes(self.settings.processes)
        self.gateway = gateway
        self._callback = callback
        self._ended = ended
        self._offers = Offers() if offers is None else offers
        self._warned: set[str] = set()
        self._strays = 0
        self._spec_of = tool_spec_of(registry.tools)
        self._config = registry.configuration()
        self._slot_free = asyncio.Event()
        self._leaving = 0
        self._stopping = asyncio.Event()
        self._idling: asyncio.Timeout | None = None
        self._stragglers: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._client: Any = None

    # -- what runs need -------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """A run needs its slot no more."""
        self._leaving += 1
        self._slot_free.set()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a blocking function in a thread, or in place under a simulation."""
        if clock.seams().inline:
            return function()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                max_workers=min(64, self.settings.slots), thread_name_prefix="outlast-step"
            )
        work = self._threads.submit(function)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.cancel() and not work.done():
                self._stray(work)
            raise

    def _stray(self, work: Future[Any]) -> None:
        """Count a thread that nobody waits for any more, and that cannot be stopped, until it returns."""
        loop = asyncio.get_running_loop()
        self._strays += 1
        telemetry.emit(
            telemetry.Warned(
                about="a sync step was cut and its thread runs on; it takes a slot until it returns",
                advice='bound its time in itself, or let it run in a process: @app.step(executor="process")',
            )
        )

        def back() -> None:
            self._strays -= 1
            self._slot_free.set()

        def returned(_: Future[Any]) -> None:
            # The worker may be gone, and its loop with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(back)

        work.add_done_callback(returned)

    async def in_process(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> str:
        """Call a function in a process of its own, or in place under a simulation; answer its result as JSON
        text."""
        if clock.seams().inline:
            return values.encode(values.normalise(function(*args, **named)))
        return await self.processes.run(function, args, named)

    def callback(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback is answered. Raises ConfigurationError without a secret."""
        if self._callback is None:
            raise ConfigurationError("this worker cannot make callbacks: make it with app.worker()")
        return self._callback(tenant, task, key, signed)

    def teller(self, run: Run, ending: EndAttempt) -> Told | None:
        """Answer whom of this process to tell what became of the end of a task."""
        parent = self.nursery.teller(run, ending) if ending.heard else None
        ended = self._ended
        # How a task ends otherwise may be the store's to say.
        if ended is None or ending.task_state != "succeeded":
            return parent

        def told(other: str | None, error: Exception | None) -> None:
            if other is None and error is None:
                ended(
                    EndRow(
                        tenant=run.tenant,
                        task=run.task,
                        agent=run.claimed.agent,
                        version=run.claimed.version,
                        state="succeeded",
                        result=ending.result,
                        error=None,
                    )
                )
            if parent is not None:
                parent(other, error)

        return told

    def run_of(self, tenant: str, task: str) -> Run | None:
        """Answer the run of a task in this process."""
        return self._of_task.get((tenant, task))

    def warn_once(self, about: str, advice: str) -> None:
        """Tell developers something, the first time that it is seen in this process."""
        if about not in self._warned:
            self._warned.add(about)
            telemetry.emit(telemetry.Warned(about=about, advice=advice))

    def http_client(self) -> Any:
        """The HTTP client that all tool calls of this process share."""
        if self._client is None:
            self._client = make_client()
        return self._client

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again while it is away."""
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="ask", detail=str(error)))
                await asyncio.sleep(0.5)

    def keep_evidence(self, evidence: Evidence) -> None:
        """Store evidence that has no lease, as soon as the store takes it."""
        keeping = self.insist(lambda: self.store.note([evidence]))
        self.straggle(asyncio.get_running_loop().create_task(keeping))

    def straggle(self, task: asyncio.Task[Any]) -> None:
        """Watch over work that outlives its run; a stop waits for it within the grace time."""
        self._stragglers.add(task)
        task.add_done_callback(self._straggled)

    def _straggled(self, task: asyncio.Task[Any]) -> None:
        self._stragglers.discard(task)
        if not task.cancelled():
            task.exception()

    # -- serving --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin to drain: claim no more, give every task back at its next boundary. Safe to call twice."""
        self.draining = True
        self._stopping.set()
        self._slot_free.set()
        self._end_idling()
        for run in list(self.runs):
            if not run.active:
                run.interrupt("drained", "the worker is stopping")

    def duties(self) -> list[Coroutine[Any, Any, Any]]:
        """Answer what is done beside claiming, for as long as the worker serves."""
        return [
            self.session.keep(),
            sweeper.keep_sweeping(self.store, self.settings),
            Settler(self).keep(),
            Hearing(self).keep(),
            keep_delivering(self.store, self.settings),
            schedules.keep_firing(self.store, self.settings),
        ]

    async def run(self) -> None:
        """Serve until ``stop``; returns when every lease is given back or its grace time is over."""
        pools = self.settings.pools
        serves = self.registry.serves()
        if not pools:
            pools = tuple(sorted({spec.pool for spec in self.registry.agents.values()}))
        self.session.serves = {
            "pools": pools,
            "agents": [[serve.agent, serve.version] for serve in serves],
            "tools": {tool.name: tool.effect for tool in self.registry.tools.values()},
        }
        duties: list[asyncio.Task[Any]] = []
        journal = asyncio.create_task(self.journal.run())
        try:
            opening = asyncio.create_task(self.session.open())
            await self._first(opening, self._stopping.wait())
            if self._stopping.is_set():
                return
            duties += [asyncio.create_task(duty) for duty in self.duties()]
            claiming = asyncio.create_task(self._claim(pools, serves))
            duties.append(claiming)
            done, _ = await asyncio.wait({*duties, journal}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # A duty ends only by a fault, or the claimer by a stop.
                task.result()
        finally:
            self.draining = True
            await self._drain()
            for task in (*duties, journal):
                task.cancel()
            await asyncio.gather(*duties, journal, return_exceptions=True)
            await self.session.close()
            self.limits.close()
            await self.processes.close()
            if self._client is not None:
                await self._client.aclose()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    async def _first(work: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
        waiting = asyncio.ensure_future(other)
        done, pending = await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for task in done:
            task.result()

    async def _claim(self, pools: tuple[str, ...], serves: tuple[Serves, ...]) -> None:
        """Claim as many tasks as there are free slots, for as long as the worker serves."""
        away = in_doubt = False
        fence = 0
        idle_s: float | None = None
        while not self.draining:
            # Tasks that only wait for their ending to reach the disk hold no slot, so that the next ones are
            # claimed meanwhile; there are never more of them than slots.
            free = self.settings.slots - len(self.runs) + min(self._leaving, self.settings.slots)
            free -= self._strays
            if free <= 0:
                self._slot_free.clear()
                await self._slot_free.wait()
                continue
            try:
                if in_doubt:
                    fence += 1
                    held = [Held(tenant=run.tenant, task=run.task, epoch=run.epoch) for run in self.runs]
                    await self.store.reconcile(self.session.id, held, fence=fence)
                in_doubt = True
                request = ClaimRequest(
                    session=self.session.id,
                    pools=pools,
                    serves=serves,
                    limit=free,
                    config=self._config,
                    fence=fence,
                )
                if idle_s is None:
                    reply = await self.store.claim(request)
                else:
                    seconds, idle_s = idle_s, None
                    offered = await self._wait_for_work(seconds, request)
                    if offered is None:
                        in_doubt = False
                        continue
                    reply = offered
                loaded = await self._load(reply)
                in_doubt = False
                if away:
                    telemetry.emit(telemetry.StoreBack(duty="claim"))
                away = False
            except StoreUnavailable as error:
                # What a lost answer had claimed is given back before the next claim.
                telemetry.emit(telemetry.StoreAway(duty="claim", detail=str(error)))
                away = True
                await self._pause(0.25)
                continue
            self.session.saw_now(reply.now)
            if reply.refused:
                # The session was swept while this process was away: a new one begins now, not at the next
                # renewal. A stop does not wait for a store that is away.
                await self._first(asyncio.create_task(self.session.open()), self._stopping.wait())
                continue
            if not reply.claims:
                idle_s = self.settings.poll_s
                continue
            telemetry.emit(telemetry.TasksClaimed(count=len(reply.claims)))
            probes.reach("worker.claimed")
            for claimed in reply.claims:
                self._start(request.session, claimed, loaded[claimed.tenant, claimed.task])
            if len(reply.claims) < request.limit:
                # There is hardly more: the next look does not stand in the way of the new runs.
                idle_s = PAUSE_S
            else:
                # Let the new runs begin before the next claim.
                await asyncio.sleep(0)

    async def _load(self, reply: ClaimReply) -> dict[tuple[str, str], Loaded]:
        """Answer what was claimed by its name: what the claim has brought along, and the rest asked for."""
        loaded = {(one.tenant, one.task): one for one in reply.loaded}
        missing = [one for one in reply.claims if (one.tenant, one.task) not in loaded]
        if missing:
            loaded |= {(one.tenant, one.task): one for one in await self.store.load(missing)}
        return loaded

    async def _wait_for_work(self, seconds: float, request: ClaimRequest) -> ClaimReply | None:
        """Wait for a hint, so many seconds, or a stop, and offer to claim meanwhile; answer what a claim came
        to that somebody has taken along. Raises StoreUnavailable where nobody knows."""
        offer = Offer(request, self._end_idling)
        self._offers.make(offer)
        # In this very asyncio task, since the store keeps for each what it was told last.
        try:
            async with asyncio.timeout(None) as self._idling:
                if not self.draining:
                    await self.store.wakes.wait("queue", seconds)
        except TimeoutError:
            pass
        finally:
            self._idling = None
            taken = not self._offers.withdraw(offer)
        return await offer.reply() if taken else None

    def _end_idling(self) -> None:
        """Wait for work no longer."""
        # A second one may find the wait ended by the first, and not yet woken.
        if self._idling is not None and not self._idling.expired():
            self._idling.reschedule(asyncio.get_running_loop().time())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _start(self, session: str, claimed: Claimed, loaded: Loaded) -> None:
        spec = self.registry.agents[claimed.agent, claimed.version]
        run = self.attempt_of(self, claimed, loaded, spec)
        run.session_id = session
        probes.reach("worker.loaded")
        undoing.prepare(run)
        acceptance.prepare(run)
        context = TaskContext(run, self._spec_of)
        task = asyncio.get_running_loop().create_task(run.execute(context))
        self.runs[run] = task
        self._of_task[run.tenant, run.task] = run
        self.busy.set()
        task.add_done_callback(lambda done: self._finished(run, done))
        if session != self.session.id:
            run.interrupt("lost", "the session ended before the task began")

    def _finished(self, run: Run, task: asyncio.Task[None]) -> None:
        self.runs.pop(run, None)
        if self._of_task.get((run.tenant, run.task)) is run:
            del self._of_task[run.tenant, run.task]
        self.nursery.leave(run)
        if not self.runs:
            self.busy.clear()
        self._leaving -= run.leaving
        self._slot_free.set()
        if run.interruption == "lost":
            telemetry.emit(
                telemetry.AttemptEnded(
                    tenant=run.tenant,
                    task=run.task,
                    epoch=run.epoch,
                    agent=run.spec.name,
                    end="lost",
                    detail=run.detail,
                )
            )
        if not task.cancelled() and (error := task.exception()) is not None:
            telemetry.emit(
                telemetry.Warned(about=f"attempt of {run.task}: {type(error).__name__}", advice=str(error))
            )

    def _session_lost(self, session: str) -> None:
        telemetry.emit(telemetry.SessionLost(session=session, tasks=len(self.runs)))
        for run in list(self.runs):
            if run.session_id == session:
                run.interrupt("lost", "the session was swept while this process was away")

    async def _drain(self) -> None:
        """Give back every lease: calls under way get the grace time, then they are cut and left open.

        What does not end even so is left to the sweeper.
        """
        self.grace_ends = clock.monotonic() + self.settings.grace_s
        for run in list(self.runs):
            if not run.active:
                run.interrupt("drained", "the worker is stopping")
        if self.runs:
            _, late = await asyncio.wait(set(self.runs.values()), timeout=self.settings.grace_s)
            if late:
                for run in list(self.runs):
                    run.interrupt("drained", "the worker is stopping and its grace time is over")
                await asyncio.wait(late, timeout=CUT_S)
        left_s = max(LATE_S, self.grace_ends - clock.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nothing_late(), left_s)

    async def _nothing_late(self) -> None:
        """Wait for work that outlives its run. What it hands in may be refused, and is then kept as evidence,
        which is such work again."""
        await self.journal.settled()
        while self._stragglers:
            await asyncio.wait(set(self._stragglers))
            await self.journal.settled()
