"""``app.ledger``: tool calls with all guarantees, from inside another engine's step or a plain script."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from outlast.backing import Backing
from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.engine import scopes
from outlast.engine.alone import Alone, Place
from outlast.engine.host import GatewayPlace
from outlast.engine.settings import WorkerSettings
from outlast.errors import ConfigurationError

ENTER_S = 30.0
"""How long entering waits while somebody else is in the scope: two leases."""


class App(Backing, Protocol):
    """What a ledger needs of an app."""

    def gateway_place(self) -> GatewayPlace:
        """The gateway that tools go through."""
        ...

    def check_open(self) -> None:
        """Raise ConfigurationError unless the app is open."""
        ...


class Ledger:
    """A scope of calls; made by ``app.ledger``, entered with ``async with``, as often as it takes."""

    def __init__(
        self,
        app: App,
        scope: str,
        *,
        tenant: str,
        user: str | None,
        timeout: Duration,
        wait: Duration,
        final: bool,
        deadline: Duration | None,
        settings: WorkerSettings | None,
    ) -> None:
        self.scope = ids.check_key(scope, "scope")
        self.tenant = ids.check_name(tenant, "tenant")
        self._place = Place(
            tenant=tenant,
            scope=scope,
            user=None if user is None else ids.check_key(user, "user"),
            deadline_us=None if deadline is None else microseconds(deadline, what="deadline"),
        )
        self._app = app
        self._timeout_s = _seconds(timeout, "timeout")
        self._wait_s = _seconds(wait, "wait")
        self._final = final
        self._settings = settings or WorkerSettings(name="ledger")
        self._alone: Alone | None = None
        self._names = scopes.Scope(path="", owner=None)

    def __repr__(self) -> str:
        return f"Ledger({self.scope!r}, tenant={self.tenant!r})"

    @property
    def id(self) -> str:
        """The id of the scope's task, also before it is entered: what ``app.cancel`` and
        ``app.operations.list`` take."""
        return self._place.task

    async def __aenter__(self) -> Self:
        if self._alone is not None:
            raise ConfigurationError(f"scope {self.scope!r} is entered already by this ledger")
        self._app.check_open()
        alone = Alone(
            self._place,
            self._app.registry.tools,
            self._app.store,
            self._settings,
            self._app.gateway_place(),
        )
        self._names = scopes.Scope(path="", owner=asyncio.current_task())
        await alone.enter(self._timeout_s)
        self._alone = alone
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alone, self._alone = self._alone, None
        if alone is not None:
            await alone.leave(final=self._final and error is None, again=error is not None)

    async def close(self) -> None:
        """End the scope as succeeded, here and now: nothing more can be called in it.

        What is still unknown stays in the reconciliation queue, questions that nobody answered are withdrawn.
        Whoever enters it again is answered what is on record. Raises LeaseLost, TaskCancelled,
        DeadlineExceeded, StoreUnavailable.
        """
        alone, self._alone = self._alone, None
        if alone is None:
            raise ConfigurationError(f"scope {self.scope!r} is not entered")
        await alone.leave(final=True, again=False)

    def call(
        self, tool: Any, /, *args: Any, key: str | None = None, wait: Duration | None = None, **named: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a registered tool: intent on disk, the call, outcome on disk; answered from the ledger where
        this scope has made the call before.

        tool: the decorated function, or its name. key: the call's identity in the scope; by default counted
        by the tool's name, so that the first ``file`` of one entry is the first of the next: give it where
        the order of calls may change. wait: how long to wait for people, for a settlement or for a switch, by
        default what ``app.ledger`` was given; pauses between attempts are waited for, up to a minute each.

        Raises Unsettled, ApprovalPending and CallHeld (CallPending: not over, make it again in the next
        entry), InvalidInput (arguments), ToolRejected, ToolFailed, ResultUnstorable, ApprovalDenied,
        ApprovalExpired, OperationConflict (this key stands for other arguments), LeaseLost, TaskCancelled,
        DeadlineExceeded, TaskEnded (the scope was closed without this call).

        Guarantee: one intent, at most one unsettled attempt; an unknown outcome is settled by evidence, by a
        declared resend under the same key, or by a person. Fenced by the lease of the scope.
        """
        alone = self._alone
        if alone is None:
            raise ConfigurationError(
                f"scope {self.scope!r} is not entered: use 'async with app.ledger(…) as ledger:'"
            )
        spec = alone.spec_of(tool)
        patience_s = self._wait_s if wait is None else _seconds(wait, "wait")
        with scopes.Inside(self._names):
            key = scopes.take(spec.name, key)
        return alone.call(key, spec, args, named, patience_s)


def _seconds(duration: Duration, what: str) -> float:
    return microseconds(duration, what=what, zero=True) / 1_000_000
