"""Links by which a person decides on one approval, from a mail or a chat, without an API key.

Purpose: whoever a link was made for sees exactly what will be done, and decides in a second step.

Identity: a link names a tenant, an approval, a person, their roles and who made it; it is signed and expires.

What is fenced: nothing here. A link is used by deciding, and a decision is a compare-and-set on the approval:
the first one counts, whoever comes later is told of it.

Failure by failure: opened by a scanner or a preview: shows, never decides. Passed on: whoever holds it
decides in that person's name, as with any password; it names one approval only, and is over in time. Altered,
expired, or made under another secret: it leads nowhere.

Not covered: whether mail and chat carry it to the right person.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from outlast import clock, tokens
from outlast.core import canonical, ids
from outlast.core.durations import Duration, microseconds
from outlast.core.record import record
from outlast.errors import InvalidRequest, InvalidToken, NotAllowed
from outlast.store.approving import ApprovalRow
from outlast.views import instant

APPROVER: Final = "approver"
"""Decides on what names no roles of its own."""
OPERATOR: Final = "operator"
"""Gives links to others."""
EVERY_ROLE: Final = ("*",)
EXPIRES: Final = "1d"
LONGEST_US: Final = 30 * 86_400_000_000
FORM_US: Final = 3_600_000_000
"""How long a page that was opened may be sent."""


@record
class ApprovalLink:
    """A link for one person to one approval. token: what it ends with. url: None where the app does not know
    where it is reached."""

    token: str
    url: str | None
    to: str
    expires_at: datetime


@record
class Holder:
    """Whom a link was made for, and by whom."""

    tenant: str
    approval: str
    to: str
    by: str
    roles: tuple[str, ...]


def may_decide(row: ApprovalRow, roles: Sequence[str]) -> bool:
    """Whether somebody with these roles may decide on an approval."""
    return "*" in roles or bool({*(row.roles or (APPROVER,))} & {*roles})


def make(
    secret: str,
    public_url: str | None,
    row: ApprovalRow,
    *,
    to: str,
    by: str,
    roles: Sequence[str],
    expires_in: Duration,
) -> ApprovalLink:
    """Make a link. Raises NotAllowed, InvalidRequest, ConfigurationError without a secret."""
    ids.check_key(to, "to")
    lasts = microseconds(expires_in, what="expires_in")
    if lasts > LONGEST_US:
        raise InvalidRequest("a link stands for 30 days at most", pointer="/expires_in")
    given = _granted(row, to, by, roles)
    expires_at = clock.unix_us() + lasts
    if row.expires_at is not None:
        expires_at = min(expires_at, row.expires_at)
    token = tokens.sign(secret, "approval-link", (row.tenant, row.id, to, by, *given), expires_at=expires_at)
    at = instant(expires_at)
    assert at is not None
    url = None if public_url is None else f"{public_url}/approve/{token}"
    return ApprovalLink(token=token, url=url, to=to, expires_at=at)


def _granted(row: ApprovalRow, to: str, by: str, roles: Sequence[str]) -> tuple[str, ...]:
    """Answer the roles that a link carries.

    Whoever holds a link decides with it, so nobody can make one in another's name but operators, who are
    trusted to send it to the right person.
    """
    if may_decide(row, roles) and to == by:
        return tuple(roles)
    if not {"*", OPERATOR} & {*roles}:
        raise NotAllowed(f"{by} may not make links to approval {row.id} for others: it takes role {OPERATOR}")
    if row.four_eyes and row.requester == f"person:{by}":
        raise NotAllowed(f"{by} asked for approval {row.id}, and may not make links to it")
    return row.roles or (APPROVER,)


def read(secret: str, token: str) -> Holder:
    """Read a link's token. Raises InvalidToken."""
    tenant, approval, to, by, *roles = tokens.read(secret, "approval-link", token, now=clock.unix_us())
    return Holder(tenant=tenant, approval=approval, to=to, by=by, roles=tuple(roles))


def form(secret: str, token: str, fingerprint: str) -> str:
    """Sign what a page has shown: the link that it was opened by, and the fingerprint on it."""
    over = clock.unix_us() + FORM_US
    return tokens.sign(secret, "approval-form", (_short(token), fingerprint), expires_at=over)


def seen(secret: str, token: str, sent: str) -> str:
    """Answer the fingerprint that a page of this link has shown. Raises InvalidToken."""
    parts = tokens.read(secret, "approval-form", sent, now=clock.unix_us())
    if parts[0] != _short(token):
        raise InvalidToken("this form belongs to another link")
    return parts[1]


def _short(token: str) -> str:
    return canonical.digest(token)
