"""The catalogue of what Outlast says about itself: frozen records, emitted to whoever subscribed.

Nothing below ``observability`` imports a metrics, tracing or logging library; it emits one of these. Records
carry ids, names, counts and durations (seconds), never arguments, results or secrets. A subscriber that
raises is dropped from that emission only; it can never fail the work that it watches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Base of every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksClaimed(Signal):
    """A claim returned ``count`` tasks."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Signal):
    """An attempt of this process ended; ``end`` as in the attempt's states, ``lost`` when it was fenced
    out."""

    tenant: str
    task: str
    epoch: int
    agent: str
    end: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEnded(Signal):
    """An attempt at a tool call ended: ``succeeded``, ``failed``, ``unknown``."""

    tenant: str
    task: str
    key: str
    name: str
    effect: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettled(Signal):
    """An unknown operation of a tool was settled through this process.

    A high share of ``did_not_happen`` beside ``happened`` means that a tool's failures are taken for
    unknowns. ``operations stats`` has it for the whole ledger.
    """

    tenant: str
    task: str
    key: str
    name: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlushed(Signal):
    """The journal committed a batch."""

    tasks: int
    entries: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway(Signal):
    """The store could not be reached; ``duty`` is what was tried. The work is tried again."""

    duty: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Signal):
    """The store answers again."""

    duty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost(Signal):
    """This process's session was swept while it was away; its tasks are others' now."""

    session: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDone(Signal):
    """A sweep changed something."""

    sessions: int
    lost: int
    parked: int
    woken: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired(Signal):
    """A schedule moved on through this process: ``verdict`` as in the store's, ``task`` where it fired one.
    ``late`` is counted from the instant that it fired for."""

    tenant: str
    schedule: str
    verdict: str
    task: str
    late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPassed(Signal):
    """The gateway passed a request on; ``status`` is the answer's, 0 for none; ``detail`` says why it is not
    whole."""

    tenant: str
    task: str
    key: str
    host: str
    status: int
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRefused(Signal):
    """The gateway did not send a request; ``code`` says why."""

    tenant: str
    task: str
    key: str
    host: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Signal):
    """Something that a developer should know; ``advice`` says what to do."""

    about: str
    advice: str


Subscriber = Callable[[Signal], None]
_subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Receive every record emitted in this process; answer a function that ends it."""
    _subscribers.append(subscriber)

    def end() -> None:
        if subscriber in _subscribers:
            _subscribers.remove(subscriber)

    return end


def emit(signal: Signal) -> None:
    """Hand a record to every subscriber."""
    for subscriber in _subscribers:
        # A watcher's fault must not fail what it watches, whatever kind it is.
        try:
            subscriber(signal)
        except Exception:
            continue
