"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from outlast.server.problem import problem
from outlast.server.routes.asked import App, answer, refusals
from outlast.store.contract import SCHEMA_VERSION

router = APIRouter(tags=["health"])

PATIENCE_S: Final = 3.0
"""Seconds for the store's answer: less than what probes commonly wait."""


class Health(BaseModel):
    """The process answers."""

    status: str


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Say that the process lives; touches nothing else."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=Health, responses=refusals("store_unavailable", "schema_mismatch"))
async def readyz(request: Request, app: App) -> Response:
    """Say whether requests can be served now: the store answers, with the schema that this code knows."""
    if request.app.state.closing.begun:
        return problem("stopping", "the service is stopping")
    try:
        async with asyncio.timeout(PATIENCE_S):
            health = await app.store.health()
    except TimeoutError:
        return problem(
            "store_unavailable", f"the database did not answer within {PATIENCE_S:.0f} s", headers=RETRY
        )
    if not health.reachable:
        # The reason in the store's words may name hosts, which is for the log and not for whoever asks here.
        return problem("store_unavailable", "the database does not answer", headers=RETRY)
    if health.schema_version != SCHEMA_VERSION:
        detail = f"the schema has version {health.schema_version}, this service knows {SCHEMA_VERSION}"
        code = "schema_outdated" if health.schema_version < SCHEMA_VERSION else "schema_too_new"
        return problem(code, detail, headers=RETRY)
    return answer({"status": "ready"})


RETRY: Final = {"Retry-After": "1"}
