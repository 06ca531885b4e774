"""``outlast approvals``: what waits for a person, exactly what it is about, and deciding on it.

A decision names the fingerprint that was seen. Where a person sits at the terminal, they are shown what it is
about and asked; a script has to name it.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from outlast.cli import options
from outlast.cli.direct import approval_id, database, task_id
from outlast.cli.failing import command
from outlast.cli.loading import load_app
from outlast.cli.printing import say, say_fields, say_json, say_table
from outlast.core import ids
from outlast.core.visible import visible
from outlast.errors import InvalidInput, InvalidRequest
from outlast.views import ApprovalView

app = typer.Typer(no_args_is_help=True, help="What waits for a person, and deciding on it.")

State = Literal["pending", "approved", "rejected", "expired", "withdrawn", "used", "all"]
ApprovalId = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="An approval's id: <task>:<key>~<number>.")
]
Fingerprint = Annotated[
    str | None, typer.Option(help="What you saw; without it you are shown it and asked, at a terminal.")
]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
By = Annotated[str | None, typer.Option(help="Who decides; you by default.")]
Target = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Your app, which knows the tool's arguments."),
]


@app.command("list")
@command
async def list_approvals(
    state: Annotated[State, typer.Option(help="Only approvals in this state.")] = "pending",
    task: Annotated[str | None, typer.Option(help="Only approvals of this task.")] = None,
    after: Annotated[str | None, typer.Option(help="Behind this approval's id, for the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List what waits for a person, oldest first.

    Example: outlast approvals list
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        views = await outlast.approvals.list(
            tenant=tenant,
            state=None if state == "all" else state,
            task=None if task is None else task_id(task),
            after=None if after is None else approval_id(after),
            limit=limit,
        )
    following = views[-1].id if len(views) == limit else None
    if as_json:
        say_json({"items": views, "next": following})
        return
    if not views:
        say("nothing waits for a person" if state == "pending" else "no approvals")
        return
    say_table(
        ["approval", "about", "state", "agreed", "until", "reason"],
        [
            [
                each.id,
                each.name,
                each.state,
                f"{each.votes} of {each.quorum}" if each.quorum > 1 else "",
                each.expires_at,
                visible(each.reason),
            ]
            for each in views
        ],
    )
    if following:
        say(f"more: --after {following}")


@app.command("show")
@command
async def show_approval(
    approval: ApprovalId,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show exactly what will be done, or what is asked, with the fingerprint that a decision names.

    Example: outlast approvals show task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1~1
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view = await outlast.approvals.get(approval_id(approval), tenant=tenant)
        votes = await outlast.approvals.votes(approval, tenant=tenant)
    if as_json:
        say_json({"approval": view, "votes": votes})
        return
    _say_approval(view)
    if votes:
        say("")
        say_table(
            ["at", "who", "verdict", "via", "reason"],
            [[each.at, each.who, each.verdict, each.via, visible(each.reason)] for each in votes],
        )


@app.command("approve")
@command
async def approve(
    approval: ApprovalId,
    fingerprint: Fingerprint = None,
    reason: Reason = "",
    by: By = None,
    edit: Annotated[
        str | None, typer.Option(help="Arguments to send instead, all of them as JSON; takes --app.")
    ] = None,
    target: Target = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Approve a call, for exactly what you saw.

    Example: outlast approvals approve task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1~1
    --fingerprint sha256:5f0c… --reason agreed
    """
    ids.check_name(tenant, "tenant")
    arguments = None if edit is None else _object(edit)
    if arguments is not None and target is None:
        raise InvalidRequest("--edit takes --app: the tool's own signature checks the arguments")
    options.choose_database(database_url)
    async with database(database_url) if target is None else load_app(target) as outlast:
        view = await outlast.approvals.get(approval_id(approval), tenant=tenant)
        seen = _seen(view, fingerprint, "approve it?", arguments, as_json=as_json)
        decided = await outlast.approvals.decide(
            approval,
            "approve",
            fingerprint=seen,
            by=by or options.whoami(),
            reason=reason,
            arguments=arguments,
            via="cli",
            tenant=tenant,
        )
    _say_decided(decided, as_json=as_json)


@app.command("reject")
@command
async def reject(
    approval: ApprovalId,
    fingerprint: Fingerprint = None,
    reason: Reason = "",
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Reject a call, or refuse to answer a question; nothing is sent.

    Example: outlast approvals reject task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1~1
    --fingerprint sha256:5f0c… --reason "too much"
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view = await outlast.approvals.get(approval_id(approval), tenant=tenant)
        seen = _seen(view, fingerprint, "reject it?", as_json=as_json)
        decided = await outlast.approvals.decide(
            approval,
            "reject",
            fingerprint=seen,
            by=by or options.whoami(),
            reason=reason,
            via="cli",
            tenant=tenant,
        )
    _say_decided(decided, as_json=as_json)


@app.command("answer")
@command
async def answer(
    approval: ApprovalId,
    said: Annotated[str, typer.Argument(metavar="ANSWER", help="JSON; what is no JSON is taken as text.")],
    fingerprint: Fingerprint = None,
    reason: Reason = "",
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer a question that an agent asked.

    Example: outlast approvals answer task_01jz8f5s9ve5ptq3mwr7n1k2bd:ask#1~1 '"the later one"'
    --fingerprint sha256:5f0c…
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view = await outlast.approvals.get(approval_id(approval), tenant=tenant)
        seen = _seen(view, fingerprint, f"answer {said!r}?", as_json=as_json)
        decided = await outlast.approvals.answer(
            approval,
            _said(view, said),
            fingerprint=seen,
            by=by or options.whoami(),
            reason=reason,
            via="cli",
            tenant=tenant,
        )
    _say_decided(decided, as_json=as_json)


@app.command("link")
@command
async def link(
    approval: ApprovalId,
    to: Annotated[str, typer.Option(help="The person by whose name it decides.")],
    expires_in: Annotated[str, typer.Option(help="How long it stands: 30m, 24h, 7d.")] = "1d",
    by: Annotated[str | None, typer.Option(help="Who makes it; you by default.")] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a link by which one person sees an approval and decides on it; whoever has it can.

    Example: outlast approvals link task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1~1 --to anna
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        made = await outlast.approvals.link(
            approval_id(approval), to=to, by=by or options.whoami(), expires_in=expires_in, tenant=tenant
        )
    url = made.url or f"http://127.0.0.1:{options.DEFAULT_PORT}/approve/{made.token}"
    if as_json:
        say_json({"link": {"url": url, "to": made.to, "expires_at": made.expires_at}})
    else:
        # Nothing of it may be masked: it is what was asked for.
        typer.echo(url)


def _seen(
    view: ApprovalView,
    fingerprint: str | None,
    question: str,
    arguments: dict[str, Any] | None = None,
    *,
    as_json: bool,
) -> str:
    """Answer the fingerprint that the person saw: the one that they name, or of what they are shown now and
    agree to."""
    if fingerprint is not None:
        return fingerprint
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest("name what you saw: --fingerprint, from 'outlast approvals show'")
    _say_approval(view)
    if arguments is not None:
        say("\nto be sent instead:")
        say(_pretty(arguments))
    typer.confirm(f"\n{question}", abort=True)
    return view.fingerprint


def _say_approval(view: ApprovalView) -> None:
    question = view.subject == "question"
    shown = view.shown
    say_fields(
        [
            ("approval", view.id),
            ("state", view.state),
            ("question" if question else "reason", visible(view.reason)),
            ("tool", None if question else f"{view.name}, version {shown.get('version')}"),
            ("effect", None if question else shown.get("effect")),
            ("about", None if question else shown.get("business_key")),
            ("roles", ", ".join(view.roles) or None),
            ("agreed", f"{view.votes} of {view.quorum}" if view.quorum > 1 else None),
            ("asked for", view.requester),
            ("until", view.expires_at),
            ("edited", "by an approver" if view.edited else None),
            ("answer", view.answer),
            ("decided by", view.decided_by),
            ("decided at", view.decided_at),
            ("because", visible(view.decision_reason or "") or None),
            ("fingerprint", view.fingerprint),
        ]
    )
    for title, value in (
        ("what will be sent:", shown.get("arguments")),
        ("to this, in this version:", shown.get("target")),
        ("may be answered:", shown.get("choices")),
        ("the answer has to fit:", shown.get("form")),
    ):
        if value is not None:
            say(f"\n{title}")
            say(_pretty(value))


def _say_decided(view: ApprovalView, *, as_json: bool) -> None:
    if as_json:
        say_json({"approval": view})
    elif view.state == "pending":
        say(f"counted: {view.votes} of {view.quorum} agree")
    else:
        say(f"{view.state}: {view.id}")


def _pretty(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False, indent=2))


def _said(view: ApprovalView, text: str) -> Any:
    choices = view.shown.get("choices") if view.subject == "question" else None
    if choices is not None and text in choices:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--edit is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest("--edit is a JSON object: the tool's arguments by name")
    return given
