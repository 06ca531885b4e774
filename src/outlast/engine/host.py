"""What a run needs of the worker that runs it, or of whatever stands in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from outlast.core.record import record
from outlast.engine.finding import Inquiries
from outlast.engine.journal import Journal, Told
from outlast.engine.limits import Limits
from outlast.engine.registry import Registry
from outlast.engine.session import Session
from outlast.engine.settings import WorkerSettings
from outlast.store.contract import Store
from outlast.store.entries import EndAttempt
from outlast.store.records import Evidence
from outlast.tools.passing import Pass

__all__ = ["CallbackPlace", "GatewayPlace", "Host"]

T = TypeVar("T")


@record
class CallbackPlace:
    """Where a callback is answered. url: None where the app does not know where it is reached. secret: what
    the answer has to be signed with, None where it need not be."""

    token: str
    url: str | None
    secret: str | None


@record
class GatewayPlace:
    """A gateway, and how to sign for it. url: None where the app does not know where it listens."""

    url: str | None
    sign: Callable[[Pass], str]


class Host(Protocol):
    """What a run needs of the worker that runs it."""

    settings: WorkerSettings
    registry: Registry
    journal: Journal
    session: Session
    store: Store
    inquiries: Inquiries
    limits: Limits
    nursery: Any
    """Submits children and reads their ends; see ``nursery.Nursery``."""
    gateway: GatewayPlace | None
    """None where nobody can sign for one."""
    draining: bool
    grace_ends: float | None
    """When the time to let calls end is over, once the worker leaves; by the monotonic clock."""

    def make_room(self) -> None:
        """A run needs its slot no more."""
        ...

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a blocking function without blocking the loop."""
        ...

    async def in_process(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> str:
        """Call a function in a process of its own; answer its result as JSON text."""
        ...

    def callback(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback is answered."""
        ...

    def http_client(self) -> Any:
        """The process's shared HTTP client."""
        ...

    def teller(self, run: Any, ending: EndAttempt) -> Told | None:
        """Answer whom of this process to tell what became of the end of a task."""
        ...

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again while it is away."""
        ...

    def keep_evidence(self, evidence: Evidence) -> None:
        """Store a piece of evidence that has no lease any more."""
        ...

    def straggle(self, task: asyncio.Task[Any]) -> None:
        """Watch over a call that outlives its run."""
        ...

    def warn_once(self, about: str, advice: str) -> None:
        """Tell developers something, the first time that it is seen in this process."""
        ...
