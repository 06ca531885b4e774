"""One asyncio event loop for a world of nodes, whose time is virtual and whose order is drawn from a seed.

Purpose: run unchanged asyncio code of many processes in one thread, so that every order of events that a
machine could show can be drawn, and drawn again.

Identity: a handle belongs to the node that its context names; what a node's code starts belongs to that node.

State: per node a queue of handles that may run now, and one heap of timers for all. The next handle is taken
from a node chosen by the seeded generator, by default the oldest of that node, as asyncio promises. When
nothing may run, time jumps to the next timer. A timer that only ends a wait does so there and then, and takes
no handle of its own: what may go wrong in between is drawn with the handle of whoever waited.

Clock: virtual; it stands still while code runs. Nothing here sleeps, polls or opens a selector.

Failure by failure: a crashed node loses its handles, and later ones are refused; its coroutines stay
referenced until the loop is closed, so that no ``finally`` of it runs while the world goes on. A frozen
node's handles are held back while time goes on, and run after it thaws.

Not covered: sockets, subprocesses, signals and real threads. ``run_in_executor`` calls in place. Code that
blocks blocks the world.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from random import Random
from types import coroutine
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Order = Literal["fifo", "any"]
_CLOSE_TRIES = 50

# Coroutines that will not end even when closed again and again: letting them go would be louder.
_undead: list[Any] = []


class Stuck(RuntimeError):
    """The world ran out of its bound of handles or of virtual time, or nothing is left that could happen."""


class Node:
    """One process of the world, as the loop sees it: made by ``SimulationLoop.add_node``.

    counted: whether its handles count for alarms. dead and frozen: see ``crash`` and ``freeze``.
    """

    __slots__ = ("context", "counted", "dead", "frozen", "index", "name", "ready")

    def __init__(self, name: str, index: int, counted: bool) -> None:
        self.name = name
        self.index = index
        self.counted = counted
        self.ready: deque[_Handle] = deque()
        self.dead = False
        self.frozen = False
        # Empty, so that nothing of whoever runs the simulation leaks into it.
        self.context = Context()
        self.context.run(_node.set, self)

    def __repr__(self) -> str:
        return f"<node {self.name}{' dead' if self.dead else ''}{' frozen' if self.frozen else ''}>"


_node: ContextVar[Node] = ContextVar("outlast_simulation_node")


def current_node() -> Node:
    """Answer the node whose code is running. Raises LookupError outside a simulation."""
    return _node.get()


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Set a future's result unless it is over; what a timer calls that only ends a wait."""
    if not future.done():
        future.set_result(result)


@coroutine
def give_way() -> Generator[None, None, None]:
    """Let others run first: what ``asyncio.sleep(0)`` does, for less."""
    yield


_ENDS_A_WAIT = frozenset({resolve, asyncio.futures._set_result_unless_cancelled})  # type: ignore[attr-defined]
"""What timers call that only ends a wait: ``resolve``, and what ``asyncio.sleep`` uses."""


class _Handle(asyncio.TimerHandle):
    __slots__ = ("node",)
    _when: float  # of timers alone

    def __init__(self, callback: Callable[..., Any] | None, args: Any, context: Context, node: Node) -> None:
        # The base class would ask the loop about debugging and note the place; nothing here needs either.
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = callback is None
        self.node = node

    def __repr__(self) -> str:
        return f"<handle of {self.node.name}: {self._callback!r}>"

    def cancel(self) -> None:
        self._cancelled = True
        # Let go of what the callback holds.
        self._callback, self._args = None, ()


class _Task(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    __slots__ = ("number",)

    def __init__(self, number: int, coro: Coroutine[Any, Any, T], **more: Any) -> None:
        self.number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    """A future with the same property; whoever makes it gives it its number."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class SimulationLoop(asyncio.AbstractEventLoop):
    """Run the handles of many nodes in a seeded order and in virtual time.

    random: chooses whose handle is next. order: ``fifo`` keeps each node's handles in the order in which they
    became ready, as asyncio does; ``any`` draws among them too. start: the first virtual second.
    """

    def __init__(self, random: Random, *, order: Order = "fifo", start: float = 0.0) -> None:
        self._draw = random.random
        self._any = order == "any"
        self._now = start
        self._nodes: list[Node] = []
        self._runnable: list[Node] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = 0
        self._tasks: list[_Task[Any]] = []
        self._running = self._stopping = self._closed = False
        self.counted = 0
        """Handles run so far by nodes that count."""
        self.alarm = -1
        """At which number of counted handles ``on_alarm`` is called, with the node that ran the last one."""
        self.on_alarm: Callable[[Node], None] = lambda _: None
        self.trace = bytearray()
        """Whose handle ran, step by step: the nodes' numbers, a byte each."""
        self.accidents: list[str] = []
        """What callbacks raised and tasks never told anybody."""
        self.root = self.add_node("world")

    @property
    def steps(self) -> int:
        """Handles run so far."""
        return len(self.trace)

    # -- nodes ----------------------------------------------------------------------------------------------

    def add_node(self, name: str, *, counted: bool = False) -> Node:
        """Add a node; nothing runs on it yet. counted: see ``counted``."""
        node = Node(name, len(self._nodes), counted)
        self._nodes.append(node)
        return node

    def start(self, node: Node, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Make a task on a node."""
        task: asyncio.Task[T] = self.create_task(coro, name=name, context=node.context.copy())
        return task

    def crash(self, node: Node) -> None:
        """End a node as SIGKILL would: none of its code runs again, no ``finally`` either."""
        node.dead = True
        node.ready.clear()
        if node in self._runnable:
            self._runnable.remove(node)

    def freeze(self, node: Node) -> None:
        """Stop a node as SIGSTOP would; time goes on."""
        node.frozen = True
        if node in self._runnable:
            self._runnable.remove(node)

    def thaw(self, node: Node) -> None:
        """Let a frozen node go on."""
        if node.frozen:
            node.frozen = False
            if node.ready:
                self._runnable.append(node)

    # -- running --------------------------------------------------------------------------------------------

    def run(self, main: asyncio.Future[T], *, max_steps: int, max_seconds: float) -> T:
        """Run until ``main`` is done and answer its result.

        max_steps: handles, max_seconds: virtual seconds, from now on. Raises Stuck, and what ``main`` raised.
        """
        main.add_done_callback(lambda _: self.stop(), context=self.root.context)
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._running, self._stopping = True, False
        try:
            self._run(self.steps + max_steps, self._now + max_seconds)
        finally:
            self._running = False
            events._set_running_loop(before)
        return main.result()

    def _run(self, last_step: int, last_second: float) -> None:
        runnable, draw, trace, any_order = self._runnable, self._draw, self.trace, self._any
        while not self._stopping:
            if not runnable:
                self._jump(last_second)
                continue
            choices = len(runnable)
            place = int(draw() * choices) if choices > 1 else 0
            node = runnable[place]
            ready = node.ready
            if any_order and len(ready) > 1:
                chosen = int(draw() * len(ready))
                ready[chosen], ready[-1] = ready[-1], ready[chosen]
                handle = ready.pop()
            else:
                handle = ready.popleft()
            if not ready:
                runnable[place] = runnable[-1]
                runnable.pop()
            if handle._cancelled:
                continue
            trace.append(node.index & 0xFF)
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"a callback of {node.name}", "exception": error})
            if node.counted:
                self.counted += 1
                if self.counted == self.alarm:
                    self.on_alarm(node)
            if len(trace) >= last_step:
                raise Stuck(f"no end after {len(trace)} handles, at second {self._now:.3f}")

    def _jump(self, last_second: float) -> None:
        """Move time to the next timer and make ready all that are due then."""
        timers = self._timers
        while timers:
            when, _, handle = heapq.heappop(timers)
            if handle._cancelled or handle.node.dead:
                continue
            if when > last_second:
                raise Stuck(f"no end by second {last_second:.3f}")
            self._now = max(self._now, when)
            self._make_ready(handle)
            while timers and timers[0][0] <= self._now:
                self._make_ready(heapq.heappop(timers)[2])
            return
        raise Stuck(f"nothing is left that could happen, at second {self._now:.3f}")

    def _make_ready(self, handle: _Handle) -> None:
        node = handle.node
        if node.dead or handle._cancelled:
            return
        if handle._callback in _ENDS_A_WAIT:
            handle._callback(*handle._args)  # type: ignore[misc]
            return
        node.ready.append(handle)
        if len(node.ready) == 1 and not node.frozen:
            self._runnable.append(node)

    def close(self) -> None:
        """End the world: close every coroutine that is left, in a loop that refuses whatever it starts."""
        if self._closed:
            return
        self._closed = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                # A node can die between making a coroutine and starting it.
                warnings.simplefilter("ignore", RuntimeWarning)
                self._bury_all()
        finally:
            events._set_running_loop(before)

    def _bury_all(self) -> None:
        # Closing may make tasks; those come to the end of the list.
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _bury(task)
        self._tasks.clear()
        self._timers.clear()
        for node in self._nodes:
            node.ready.clear()

    # -- what asyncio asks of a loop ------------------------------------------------------------------------

    def time(self) -> float:
        """Answer the virtual time in seconds."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Let a callback run as soon as its node is drawn; refused on a dead node."""
        if context is None:
            context = copy_context()
        node = context.get(_node, self.root)
        if node.dead or self._closed:
            return _Handle(None, None, context, node)
        handle = _Handle(callback, args, context, node)
        ready = node.ready
        ready.append(handle)
        if len(ready) == 1 and not node.frozen:
            self._runnable.append(node)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Let a callback run after ``delay`` virtual seconds; refused on a dead node."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Let a callback run at a virtual second; refused on a dead node."""
        if context is None:
            context = copy_context()
        node = context.get(_node, self.root)
        if node.dead or self._closed:
            return _Handle(None, None, context, node)
        handle = _Handle(callback, args, context, node)
        handle._when = when
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        self._numbers += 1
        future: _Future[Any] = _Future(loop=self)
        future.number = self._numbers
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        """Make a task of this loop, on the node that its context names."""
        self._numbers += 1
        task: _Task[Any] = _Task(
            self._numbers, coro, loop=self, name=name or f"task-{self._numbers}", context=context
        )
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call in place; the answer comes in a handle of its own, so that a crash can fall before it."""
        future: asyncio.Future[T] = self.create_future()
        try:
            self.call_soon(_answer, future, func(*args), None)
        # Whatever the function raises is the caller's to see.
        except Exception as error:
            self.call_soon(_answer, future, None, error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what would be logged; an accident is for the caller of the simulation to judge."""
        if not self._closed:
            error = context.get("exception")
            self.accidents.append(f"{context.get('message')}: {error!r}")

    def stop(self) -> None:
        """Leave ``run`` after the handle that runs now."""
        self._stopping = True

    def is_running(self) -> bool:
        """Answer whether ``run`` is under way."""
        return self._running

    def is_closed(self) -> bool:
        """Answer whether the world has ended."""
        return self._closed

    get_debug = staticmethod(bool)
    """Answer False: asyncio's own debugging reads real clocks. Every future and every task asks."""


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _bury(task: asyncio.Task[Any]) -> None:
    """Close a task's coroutine. Its ``finally`` blocks run now and may await; then it is closed there too."""
    coro: Any = task.get_coro()
    for _ in range(_CLOSE_TRIES):
        # Code that is closed in the middle may raise anything, and nobody is left to be told.
        try:
            coro.close()
        except BaseException:
            if coro.cr_frame is None:
                return
            continue
        return
    _undead.append(coro)
