"""What an approval link opens, in a browser: a page that shows, and a form on it that decides.

Opening a link never decides, whoever opens it: a scanner of mail, a preview, a prefetch. The form carries a
signed note of the link and the fingerprint that its page has shown; without it, or from another site, nothing
is taken. So a decision needs the link twice: once to look, once to say.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Request, Response

from outlast import linking
from outlast.app import Outlast
from outlast.errors import (
    ApprovalConflict,
    FingerprintMismatch,
    InvalidRequest,
    InvalidToken,
    NotAllowed,
    NotFound,
    OutlastError,
)
from outlast.linking import Holder
from outlast.server.page import HEADERS, approval_page, notice
from outlast.server.problem import PROBLEMS
from outlast.server.routes.asked import root_of
from outlast.views import ApprovalView

router = APIRouter(include_in_schema=False)

MAX_FORM_BYTES: Final = 65_536
NOWHERE: Final = "This link leads nowhere, or not any more. Ask for a new one."


@router.api_route("/approve/{token}", methods=["GET", "HEAD"])
async def show_approval(request: Request, token: str) -> Response:
    """Show what a link is about; decides nothing."""
    app: Outlast = request.app.state.outlast
    try:
        holder, view = await _about(app, token)
    except (InvalidToken, NotFound):
        return notice("Nothing here", NOWHERE, 404)
    except OutlastError as error:
        return _failed(error)
    return _shown(app, token, holder, view)


@router.post("/approve/{token}")
async def decide_by_link(request: Request, token: str) -> Response:
    """Decide by the form of a page that was shown; then show what is recorded."""
    app: Outlast = request.app.state.outlast
    try:
        holder, view = await _about(app, token)
        sent = await _form(request)
        fingerprint = linking.seen(app.secret, token, sent.get("form", ""))
    except _Foreign as error:
        return notice("Not from here", str(error), 403)
    except (InvalidToken, NotFound):
        return notice(
            "Nothing here", f"{NOWHERE} A page that is older than an hour has to be opened again.", 404
        )
    except OutlastError as error:
        return _failed(error)
    try:
        await _decide(app, holder, view, fingerprint, sent)
    except ApprovalConflict as late:
        recorded = await app.approvals.get(view.id, tenant=holder.tenant)
        return approval_page(recorded, holder, None, status=409, note=f"Too late: {late}.")
    except FingerprintMismatch:
        recorded = await app.approvals.get(view.id, tenant=holder.tenant)
        return _shown(app, token, holder, recorded, 409, "It has changed since you looked. Look again.")
    except (InvalidRequest, NotAllowed) as error:
        return _shown(app, token, holder, view, PROBLEMS[error.code][0], str(error))
    except OutlastError as error:
        return _failed(error)
    return Response(None, 303, {**HEADERS, "Location": f"{root_of(request)}/approve/{token}"})


class _Foreign(Exception):
    """The form was sent by another site."""


async def _about(app: Outlast, token: str) -> tuple[Holder, ApprovalView]:
    holder = app.approvals.holder(token)
    return holder, await app.approvals.get(holder.approval, tenant=holder.tenant)


def _shown(
    app: Outlast, token: str, holder: Holder, view: ApprovalView, status: int = 200, note: str = ""
) -> Response:
    form = linking.form(app.secret, token, view.fingerprint) if view.state == "pending" else None
    return approval_page(view, holder, form, status=status, note=note)


def _failed(error: OutlastError) -> Response:
    status, title = PROBLEMS[error.code]
    return notice("It did not work", f"{title}. Nothing was decided; try again later.", status)


async def _form(request: Request) -> dict[str, str]:
    """Read a small form, sent by a page of ours. Raises _Foreign, InvalidRequest."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    # Pages that send no referrer send "null" as their origin.
    origin = request.headers.get("origin", "null")
    host = request.headers.get("host", "")
    public = urlsplit(request.app.state.outlast.public_url or "").netloc
    if site not in ("same-origin", "none") or (
        origin != "null" and urlsplit(origin).netloc not in {host, public} - {""}
    ):
        raise _Foreign("A decision is sent from the page that shows what it is about.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind != "application/x-www-form-urlencoded" or len(body) > MAX_FORM_BYTES:
        raise InvalidRequest("the form cannot be read")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10, errors="strict")
    except ValueError:
        raise InvalidRequest("the form cannot be read") from None
    if len(dict(pairs)) != len(pairs):
        raise InvalidRequest("the form says something twice")
    return dict(pairs)


async def _decide(
    app: Outlast, holder: Holder, view: ApprovalView, fingerprint: str, sent: dict[str, str]
) -> None:
    given: dict[str, Any] = {
        "fingerprint": fingerprint,
        "by": holder.to,
        "reason": sent.get("reason", "").strip(),
        "roles": holder.roles,
        "via": f"link by {holder.by}",
        "tenant": holder.tenant,
    }
    match sent.get("verdict"):
        case "answer":
            await app.approvals.answer(view.id, _answer(view, sent), **given)
        case "approve":
            await app.approvals.decide(view.id, "approve", **given)
        case "reject":
            await app.approvals.decide(view.id, "reject", **given)
        case _:
            raise InvalidRequest("Approve it or reject it")


def _answer(view: ApprovalView, sent: dict[str, str]) -> Any:
    choices, form = view.shown.get("choices"), view.shown.get("form")
    text = sent.get("answer", "")
    if choices is not None:
        number = sent.get("choice", "")
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < len(choices)):
            raise InvalidRequest("Choose one of the answers")
        return choices[int(number)]
    if form is None:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("The answer is not JSON") from None
