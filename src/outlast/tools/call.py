"""What a tool body gets: who is calling, under which key, until when, and the way to the outside.

Purpose. A tool has to send its key on every attempt, to stop in time, and to let us know whether anything
left. ``ToolCall`` carries all three, and ``ToolCall.http`` does them without being asked.

Before every send: the guard of the worker (which raises ``LeaseLost`` or ``DeadlineExceeded`` when this
process may not send any more), then the mark that the call has begun, then the bytes. The guard is asked when
the connection stands, so that a slow look-up of a name does not come between the check and the send.

Code that is not ours, in a sandbox or in another process, sends through a gateway, with a token that
``gateway_token`` makes; see ``outlast.gateway``.

Not covered. A process that is frozen between the guard and the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING

from outlast import clock, probes
from outlast.core import destinations
from outlast.core.budget import NOTHING, Usage, read_cost, read_count
from outlast.core.outcome import Unknown
from outlast.errors import ConfigurationError, DeadlineExceeded
from outlast.tools.classify import outcome_of_exception
from outlast.tools.http import HttpCall
from outlast.tools.verdicts import in_block

if TYPE_CHECKING:
    from outlast.tools.client import ToolClient
    from outlast.tools.passing import WayOut

__all__ = ["ToolCall"]


def _allow() -> None:
    """Let every send pass: for calls that no worker guards."""


class ToolCall:
    """The context of one attempt at a tool call.

    Args:
        idempotency_key: The operation's id; the same on every attempt, and for ``find``.
        task: The task's id.
        tenant: The task's tenant.
        epoch: The fencing number of the lease under which this attempt sends.
        attempt: Which attempt at the operation this is, from 1.
        deadline: When the call's time is over, in seconds by ``outlast.clock.monotonic``.
        client: Answers the HTTP client that this process shares; asked on the first use of ``http``.
        guard: Raises when this process may not send any more.
        traceparent: W3C Trace Context of the call, None without a trace.
        query: Whether this asks about an operation instead of doing it; nothing counts as begun then.
        way_out: Answers the gateway, None where nobody can sign for one; asked on the first use of it.
    """

    __slots__ = (
        "_began", "_client", "_cut", "_guard", "_http", "_open", "_usage", "_way_out", "attempt", "deadline",
        "epoch", "idempotency_key", "query", "task", "tenant", "traceparent",
    )  # fmt: skip

    def __init__(
        self,
        *,
        idempotency_key: str,
        task: str,
        tenant: str,
        epoch: int,
        attempt: int,
        deadline: float,
        client: Callable[[], ToolClient],
        guard: Callable[[], None] = _allow,
        traceparent: str | None = None,
        query: bool = False,
        way_out: Callable[[], WayOut | None] | None = None,
    ) -> None:
        self.idempotency_key = idempotency_key
        self.task = task
        self.tenant = tenant
        self.epoch = epoch
        self.attempt = attempt
        self.deadline = deadline
        self.traceparent = traceparent
        self.query = query
        self._way_out = way_out
        self._client = client
        self._guard = guard
        self._http: HttpCall | None = None
        self._began = False
        self._cut = False
        self._usage = NOTHING
        # Sends that went out and are not known to have done nothing. A token does not know its call, so that
        # the call is freed as soon as it is over.
        self._open: set[object] = set()

    @property
    def operation(self) -> str:
        """Answer the operation's id; it is the idempotency key."""
        return self.idempotency_key

    @property
    def began(self) -> bool:
        """Answer whether anything may have left for the outside in this attempt."""
        return self._began

    @property
    def may_run_on(self) -> bool:
        """Answer whether a send by other means than ``http`` was cut short; a thread would go on with it."""
        return self._cut

    @property
    def usage(self) -> Usage:
        """Answer what this attempt has spent so far, as it said itself."""
        return self._usage

    def spent(self, *, tokens: int = 0, cost: Decimal | str | float = 0) -> None:
        """Say what this attempt has spent, for the budget of its task; several times add up.

        tokens: counted as the provider counts them. cost: an amount in the currency that the app counts in,
        exact as text or Decimal. Recorded with the outcome, whatever that is. Raises InvalidRequest.
        """
        self._usage += Usage(tokens=read_count(tokens, "tokens"), cost=read_cost(cost))

    @property
    def http(self) -> HttpCall:
        """Answer the HTTP client of this call."""
        if self._http is None:
            self._http = HttpCall(self, self._client())
        return self._http

    def remaining(self) -> float:
        """Answer the seconds until the deadline, 0 when it is over."""
        return max(0.0, self.deadline - clock.monotonic())

    @property
    def way_out(self) -> WayOut | None:
        """Answer the gateway as this attempt sees it, None where nobody can sign for one."""
        return None if self._way_out is None else self._way_out()

    @property
    def gateway_url(self) -> str | None:
        """Answer where the gateway listens, None where the app does not know."""
        return None if self.way_out is None else self.way_out.url

    def gateway_token(self, hosts: Sequence[str]) -> str:
        """Make a token for code that sends on this call's behalf through the gateway.

        hosts: where it may go, each ``[scheme://]host[:port][/path]``; the gateway has a list of its own, and
        both have to allow a request. The token is good for this attempt, until the call's deadline, and for
        as long as the task is held by this worker. From now on something may have left at any moment, so what
        the body raises without a verdict of its own is unknown. Raises LeaseLost, DeadlineExceeded, and
        ConfigurationError without a secret, without hosts, or in a look-up (``find``).
        """
        if self.query:
            raise ConfigurationError("a look-up sends nothing on a call's behalf, and gets no token")
        if isinstance(hosts, str) or not hosts:
            raise ConfigurationError("hosts is a list of where requests may go, and has at least one entry")
        destinations.read_rules(hosts)
        if self.way_out is None:
            raise ConfigurationError("there is nobody to sign a token: run the call by app.worker()")
        token = self.way_out.sign(tuple(hosts))
        self.leave(token, began=True, acts=True)
        return token

    def sending(self) -> AbstractAsyncContextManager[None]:
        """Say that something may leave for the outside in this block, by other means than ``http``.

        Put one request in one block. Raises ``LeaseLost`` or ``DeadlineExceeded``, instead of entering, when
        this process may not send any more. What is raised in the block passes through as it is; an error of
        connecting then means that this send did nothing, and the whole call nothing either unless another one
        may have acted.
        """
        return _Sending(self)

    # ── for HttpCall ─────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise ``LeaseLost`` or ``DeadlineExceeded`` when this process may not send any more."""
        self._guard()
        if clock.monotonic() >= self.deadline:
            raise DeadlineExceeded(f"the time of operation {self.operation} is over")

    def leave(self, token: object, *, began: bool, acts: bool) -> None:
        """Pass the last point before a send; raises as ``check`` does.

        token: stands for the send. began: an exception is no longer an ordinary failure. acts: the send may
        change something, so that a later failure is none of the whole call.
        """
        self.check()
        probes.reach("http.before_send")
        if not self.query:
            self._began = self._began or began
            if acts:
                self._open.add(token)

    def mark_open(self, token: object) -> None:
        """Note that a send may have acted."""
        self._open.add(token)

    def mark_undone(self, token: object) -> None:
        """Note that a send is known to have done nothing."""
        self._open.discard(token)

    def mark_cut(self) -> None:
        """Note that a send by other means was cut short, and may go on behind its back."""
        self._cut = True

    def others_open(self) -> bool:
        """Answer whether a send of this call may have acted."""
        return bool(self._open)


class _Sending(AbstractAsyncContextManager[None]):
    """One block of ``ToolCall.sending``."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: ToolCall) -> None:
        self._call = call
        self._token = object()

    async def __aenter__(self) -> None:
        self._call.leave(self._token, began=True, acts=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        call = self._call
        call.mark_undone(self._token)
        if isinstance(error, asyncio.CancelledError):
            call.mark_cut()
        if isinstance(
            outcome_of_exception(in_block(error, call.others_open), began=True, changes=True), Unknown
        ):
            call.mark_open(self._token)
