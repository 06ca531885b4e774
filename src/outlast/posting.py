"""What reaches a task from outside: signals, answers to callbacks, a cancel."""

from __future__ import annotations

import re
from typing import Any, Final

from outlast import clock, tokens
from outlast.core import canonical, ids, values, webhooks
from outlast.core.webhooks import SignedBody
from outlast.engine.outside import OUTSIDE
from outlast.engine.waits import CALLBACK
from outlast.errors import (
    CallbackOver,
    InboxFull,
    InvalidKey,
    InvalidRequest,
    InvalidSignature,
    SignalConflict,
    TaskEnded,
    TaskNotFound,
)
from outlast.store.contract import Store
from outlast.store.posting import Cancel, CancelReply, Posted, Signal

MAX_REASON: Final = 2_000
_NO_TEXT: Final = re.compile(r"[\x00\ud800-\udfff]")
"""What JSON can carry and PostgreSQL's text cannot."""
ANSWER: Final = "answer"
"""Key of a callback's only signal."""
SIGNED: Final = "signed"
"""Stands in the token of a callback whose answer has to be signed."""


def check_reason(reason: str) -> str:
    """Accept why somebody did something, which may be nothing: at most ``MAX_REASON`` characters, none of
    which a database cannot hold as text. Returns it unchanged. Raises InvalidRequest."""
    if len(reason) > MAX_REASON:
        raise InvalidRequest(f"a reason has at most {MAX_REASON} characters", pointer="/reason")
    if (bad := _NO_TEXT.search(reason)) is not None:
        raise InvalidRequest(
            f"a reason has a character that is no text (U+{ord(bad[0]):04X}); leave it out", pointer="/reason"
        )
    return reason


async def signal(store: Store, tenant: str, task: str, name: str, data: Any, key: str | None) -> Posted:
    """Put a signal before a task. Raises the InvalidRequest family, TaskNotFound, TaskEnded, SignalConflict,
    InboxFull."""
    ids.check_name(name, "signal name")
    if name.startswith(CALLBACK):
        raise InvalidKey(f"signal names that begin with {CALLBACK!r} are for callbacks")
    if name.startswith(OUTSIDE):
        raise InvalidKey(f"signal names that begin with {OUTSIDE!r} are for events of outside sessions")
    return await _post(store, tenant, task, name, data, key)


async def answer(
    store: Store, secret: str, token: str, data: Any, message: str | None, signed: SignedBody | None
) -> Posted:
    """Answer a callback; the same answer again is the first one again. Raises InvalidToken, InvalidSignature,
    CallbackOver, else as ``signal`` does."""
    tenant, task, key, *more = tokens.read(secret, "callback", token, now=clock.unix_us())
    if SIGNED in more:
        if signed is None:
            raise InvalidSignature("this callback takes signed answers only")
        signing = tokens.derived(secret, "callback-signature", token)
        webhooks.check(signing, signed, now_s=clock.unix_us() / 1_000_000)
        message = signed.id
    # Its sender knows best what is a repeat; some count their tries in what they send.
    repeats = None if message is None else {"message": ids.check_key(message, "webhook-id")}
    return await _post(store, tenant, task, CALLBACK + key, data, ANSWER, repeats, operation=key)


def callback_token(secret: str, tenant: str, task: str, key: str, *, signed: bool = False) -> str:
    """Make the token of a callback: the same on every replay, good for as long as the task lives."""
    return tokens.sign(secret, "callback", (tenant, task, key, *([SIGNED] if signed else [])))


def signing_secret(secret: str, token: str) -> str:
    """Make the secret that answers to a callback are signed with, as Standard Webhooks writes it."""
    return webhooks.secret_of(tokens.derived(secret, "callback-signature", token))


async def _post(
    store: Store,
    tenant: str,
    task: str,
    name: str,
    data: Any,
    key: str | None,
    repeats: Any = None,
    *,
    operation: str | None = None,
) -> Posted:
    """Post a signal. repeats: what tells a repeat from another message, by default its data. operation: the
    one wait that it can answer."""
    plain = values.normalise(data)
    text = values.encode(plain, what=f"the data of signal {name}")
    if key is not None:
        ids.check_key(key, "signal key")
    digest = "" if key is None else canonical.digest(plain if repeats is None else repeats)
    one = Signal(tenant=tenant, task=task, name=name, data=text, digest=digest, key=key, operation=operation)
    (posted,) = await store.post([one])
    match posted.kind:
        case "not_found":
            raise TaskNotFound(f"no task {task} in tenant {tenant}")
        case "ended":
            raise TaskEnded(f"task {task} has ended: {posted.state}", state=posted.state)
        case "over":
            what = "its time is over" if posted.state == "running" else f"its wait has {posted.state}"
            raise CallbackOver(f"nobody waits for this answer any more: {what}", state=posted.state)
        case "conflict":
            raise SignalConflict(f"signal {name} with key {key!r} was sent to task {task} with other data")
        case "full":
            raise InboxFull(f"too many signals lie before task {task} that it has not taken")
    return posted


async def cancel(
    store: Store, tenant: str, task: str, reason: str, by: str, *, undo: bool = False
) -> CancelReply:
    """Cancel a task. Raises InvalidRequest, TaskNotFound, TaskEnded for one that ended otherwise."""
    check_reason(reason)
    who = ids.person(by)
    (reply,) = await store.cancel([Cancel(tenant=tenant, task=task, by=who, reason=reason, undo=undo)])
    if reply.kind == "not_found":
        raise TaskNotFound(f"no task {task} in tenant {tenant}")
    if reply.kind == "ended":
        raise TaskEnded(f"task {task} has ended before: {reply.state}", state=reply.state)
    return reply
