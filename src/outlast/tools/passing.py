"""The way out through a gateway: what a call is told of it, and how it speaks to it.

A pass says on whose behalf a request comes: tenant, task, epoch, operation, attempt, the digest of what was
decided, where it may go, and until when. It is signed by the app and given to the gateway as a token with
each request; what it says is compared with the store as it stands at that moment. A token is as good as the
call that it was made for, and for as long: it is not logged and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import httpx2

from outlast.core.outcome import Failed, FailureKind, Unknown
from outlast.core.record import record
from outlast.errors import InvalidToken

__all__ = ["ANSWER_HEADER", "TOKEN_HEADER", "Pass", "WayOut", "refused_by_gateway", "through"]

TOKEN_HEADER: Final = "Outlast-Token"
ANSWER_HEADER: Final = "Outlast-Gateway"
"""What the gateway says of a request in its answer; see ``Verdict``."""

Verdict = Literal["passed", "refused", "not-sent", "unknown"]
"""``passed``: the answer is the other side's. The others are the gateway's own: nothing was sent, since it
may
not be (``refused``) or could not be (``not-sent``); it was sent, and no answer that can be trusted came."""


@record
class Pass:
    """On whose behalf a request comes. hosts: rules of ``core.destinations``. approval: number of the
    decision that the intent consumed, None where policy let the call by itself. expires_at: microseconds
    since the
    epoch, by the database's clock."""

    tenant: str
    task: str
    epoch: int
    key: str
    attempt: int
    decision: str
    approval: int | None
    hosts: tuple[str, ...]
    expires_at: int

    def parts(self) -> tuple[str, ...]:
        """Answer it as the parts of a token."""
        return (
            self.tenant,
            self.task,
            str(self.epoch),
            self.key,
            str(self.attempt),
            self.decision,
            "" if self.approval is None else str(self.approval),
            str(self.expires_at),
            *self.hosts,
        )

    @classmethod
    def of(cls, parts: Sequence[str]) -> Pass:
        """Read it back. Raises InvalidToken."""
        try:
            tenant, task, epoch, key, attempt, decision, approval, expires_at, *hosts = parts
            return cls(
                tenant=tenant,
                task=task,
                epoch=int(epoch),
                key=key,
                attempt=int(attempt),
                decision=decision,
                approval=int(approval) if approval else None,
                hosts=tuple(hosts),
                expires_at=int(expires_at),
            )
        except ValueError:
            raise InvalidToken("this is no pass of a call") from None


@record
class WayOut:
    """The gateway as one attempt at a call sees it.

    url: where it listens, None where the app does not know. sign: makes the token for some hosts. through:
    whether ``call.http`` goes that way.
    """

    url: str | None
    sign: Callable[[tuple[str, ...]], str]
    through: bool


def through(gateway: str, url: httpx2.URL) -> httpx2.URL:
    """Answer the URL that asks a gateway for another URL: ``<gateway>/<scheme>/<host>/<path>``."""
    base = httpx2.URL(gateway)
    place = f"/{url.scheme}/{url.netloc.decode('ascii')}".encode("ascii")
    return base.copy_with(raw_path=base.raw_path.rstrip(b"/") + place + url.raw_path)


_KINDS: Final[dict[str, tuple[FailureKind, bool]]] = {
    "invalid_target": ("invalid", False),
    "body_too_large": ("invalid", False),
    "token_missing": ("forbidden", False),
    "invalid_token": ("forbidden", False),
    "forbidden_host": ("forbidden", False),
    "forbidden_address": ("forbidden", False),
    "no_approval": ("forbidden", False),
    "other_decision": ("forbidden", False),
    "deadline_over": ("deadline", True),
    "token_expired": ("deadline", True),
}


def refused_by_gateway(response: httpx2.Response, code: str, what: str) -> Failed | Unknown | None:
    """Say what a gateway's own answer means; None when the answer is the other side's."""
    verdict = response.headers.get(ANSWER_HEADER)
    if verdict == "passed":
        return None
    reason = f"{what}: the gateway says {code or response.status_code}"
    if verdict in ("refused", "not-sent"):
        kind, retryable = _KINDS.get(code, ("not_sent", True))
        return Failed(kind=kind, reason=reason, retryable=retryable, status=response.status_code)
    # Also where there is no word of a gateway's: whatever answered there, nobody knows what it did.
    return Unknown(reason=reason, clue=f"gateway: {code or response.status_code}")
