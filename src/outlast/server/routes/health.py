"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from outlast import telemetry
from outlast.app import Outlast
from outlast.server.problem import problem
from outlast.server.routes.asked import answer, refusals
from outlast.store.contract import SCHEMA_VERSION

router = APIRouter(tags=["health"])

RETRY: Final = {"Retry-After": "1"}
PATIENCE_S: Final = 3.0
"""Seconds for the store's answer: less than what probes commonly wait."""


class Health(BaseModel):
    """The process answers."""

    status: str


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Say that the process lives; touches nothing else."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=Health, responses={503: refusals("stopping", "schema_mismatch")[503]})
async def readyz(request: Request) -> Response:
    """Say whether requests can be served now: the store answers, with the schema that this code knows."""
    if request.app.state.closing.begun:
        return problem("stopping", "the service is stopping")
    refused = await _refusal(request.app.state.outlast)
    if refused is not None:
        code, detail, why = refused
        # Names of hosts and the like are for the log, and not for whoever asks here.
        telemetry.emit(telemetry.StoreAway(duty="readyz", detail=why or detail))
        return problem(code, detail, headers=RETRY)
    return answer({"status": "ready"})


async def _refusal(app: Outlast) -> tuple[str, str, str] | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            health = await app.store.health()
    except TimeoutError:
        return "store_unavailable", f"the database did not answer within {PATIENCE_S:.0f} s", ""
    if not health.reachable:
        return (
            "store_unavailable",
            "the database does not answer rightly; the log says why",
            health.detail,
        )
    if health.schema_version != SCHEMA_VERSION:
        code = "schema_outdated" if health.schema_version < SCHEMA_VERSION else "schema_too_new"
        return code, f"the schema has version {health.schema_version}, this code knows {SCHEMA_VERSION}", ""
    return None
