"""Answers from outside: a service or a person that holds a callback's token, and no key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Request, Response
from pydantic import BaseModel

from outlast.app import Outlast
from outlast.core.webhooks import SignedBody
from outlast.errors import InvalidToken, SignalConflict, TaskNotFound
from outlast.server.problem import Refused
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import answer, reads, refusals

router = APIRouter(route_class=StrictRoute, tags=["callbacks"])


class CallbackAnswered(BaseModel):
    """The answer is stored; ``repeated`` when it was before."""

    status: Literal["accepted", "repeated"]


@router.post(
    "/callbacks/{token}",
    status_code=202,
    response_model=CallbackAnswered,
    responses={
        200: {"model": CallbackAnswered, "description": "It was stored before; nothing has changed"},
        202: {"description": "The answer is stored"},
        **refusals(
            *("bad_json", "body_too_large", "unsupported_media_type", "invalid_signature"),
            *("invalid_token", "task_ended", "callback_over", "conflict", "inbox_full"),
            public=True,
        ),
    },
    openapi_extra=reads(
        webhook_id="The sender's id of the message (Standard Webhooks); a repeat has the same.",
        webhook_timestamp="Seconds since the epoch, where the answer is signed.",
        webhook_signature="`v1,` and the signature, where the callback asks for one.",
    ),
)
async def answer_callback(
    request: Request,
    token: Annotated[str, Path(description="The callback's; it stands for a key.")],
    data: Annotated[Any, Body(description="The answer: any JSON value.")] = None,
) -> Response:
    """Answer a callback, once: what its agent waits for. A repeat is harmless; once its time is over, or its
    agent has gone on without it, an answer is refused for good.

    A repeat is a message with the same `webhook-id` or, without one, with the same data.
    """
    app: Outlast = request.app.state.outlast
    headers = request.headers
    signed = SignedBody(
        body=await request.body(),
        id=headers.get("webhook-id", ""),
        timestamp=headers.get("webhook-timestamp", ""),
        signature=headers.get("webhook-signature", ""),
    )
    try:
        posted = await app.answer_callback(token, data, message=headers.get("webhook-id"), signed=signed)
    except TaskNotFound:
        # It was ours once; its task is gone.
        raise InvalidToken("the task is gone") from None
    except SignalConflict:
        raise Refused("conflict", "it was answered before, by another message") from None
    repeated = posted.kind == "replayed"
    return answer(
        {"status": "repeated" if repeated else "accepted"},
        200 if repeated else 202,
        {"Cache-Control": "no-store"},
    )
