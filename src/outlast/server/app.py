"""The FastAPI app over an ``Outlast``."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

import outlast
from outlast.app import Outlast
from outlast.server import problem
from outlast.server.auth import SCHEME, Keys
from outlast.server.closing import Closing
from outlast.server.reading import BodyLimit
from outlast.server.routes import (
    approvals,
    callbacks,
    changing,
    control,
    health,
    links,
    operations,
    rules,
    schedules,
    tasks,
)
from outlast.settings import Settings

PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "A problem document (RFC 9457); `code` is stable, `detail` is for people.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": sorted(problem.PROBLEMS)},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "pointer": {"type": "string", "description": "Where in the body (RFC 6901)."},
                    "in": {"type": "string", "description": "header, query or path."},
                    "name": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}


TOKENS_ALONE = "/v1/callbacks/"
"""Where a token stands for a key."""


def create_app(
    app: Outlast, settings: Settings | None = None, *, manage: bool = True, keep_alive_s: float = 15.0
) -> FastAPI:
    """Make the HTTP API of an app.

    settings: API keys and the largest body; from the environment by default. manage: whether the service
    opens the app when it starts and closes it when it ends, or somebody else does. keep_alive_s: seconds
    between comments on a silent stream. Raises ConfigurationError for keys that cannot be read.

    ``state.closing.begin()`` on the answer ends streams and held requests quickly, before the server stops.
    """
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if manage:
            await app.open()
        try:
            yield
        finally:
            api.state.closing.begin()
            if manage:
                await app.close()

    api = FastAPI(
        title=f"Outlast: {app.name}",
        version=outlast.__version__,
        description="Tasks that outlive their process. Errors are problem documents (RFC 9457).",
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    api.state.outlast = app
    api.state.keys = Keys(settings.api_keys)
    api.state.closing = Closing()
    api.state.keep_alive_s = keep_alive_s
    api.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    problem.install(api)
    api.router.routes.extend(_routes())
    _describe(api)
    return api


@functools.cache
def _routes() -> list[BaseRoute]:
    """Answer the routes. They know their app by its requests only; what they take is worked out once."""
    v1 = APIRouter(prefix="/v1")
    for each in (tasks, changing, operations, approvals, rules, control, callbacks, schedules):
        v1.include_router(each.router)
    root = APIRouter()
    for router in (v1, links.router, health.router):
        root.include_router(router)
    return root.routes


def _describe(api: FastAPI) -> None:
    """Put the problem document into the OpenAPI description, in place of FastAPI's own shape of errors."""
    generate = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = generate()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = PROBLEM_SCHEMA
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            if api.state.keys:
                document["components"]["securitySchemes"] = {"key": SCHEME}
                for path, methods in document["paths"].items():
                    if path.startswith("/v1/") and not path.startswith(TOKENS_ALONE):
                        for operation in methods.values():
                            operation["security"] = [{"key": []}]
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
