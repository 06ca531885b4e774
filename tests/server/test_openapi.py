"""The description of the API agrees with the API, whatever is sent."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.server.desk import PATIENCE_S, Desk, settings

from outlast.server import create_app
from outlast.server.app import TOKENS_ALONE

pytestmark = pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)


async def described(desk: Desk) -> dict[str, Any]:
    document: dict[str, Any] = (await desk.client.get("/openapi.json")).json()
    return document


async def test_every_route_says_which_problems_it_answers_with(desk: Desk) -> None:
    document = await described(desk)
    assert "HTTPValidationError" not in json.dumps(document)
    for path, methods in document["paths"].items():
        if not path.startswith("/v1"):
            continue
        for method, operation in methods.items():
            problems = {status for status in operation["responses"] if status >= "400"}
            assert {"403", "503"} <= problems, (method, path)
            assert ("401" in problems) is not path.startswith(TOKENS_ALONE), (method, path)
            for status in problems:
                (content,) = operation["responses"][status]["content"]
                assert content == "application/problem+json"


async def test_every_route_says_what_it_does(desk: Desk) -> None:
    for path, methods in (await described(desk))["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)


async def test_keys_are_described_where_they_are_needed(desk: Desk) -> None:
    keyed = create_app(desk.app, settings(api_keys="acme:key-a"), manage=False).openapi()
    for path, methods in keyed["paths"].items():
        for method, operation in methods.items():
            keyed_route = path.startswith("/v1") and not path.startswith(TOKENS_ALONE)
            assert bool(operation.get("security")) == keyed_route, (method, path)
    assert '"security"' not in json.dumps(desk.api.openapi())


async def test_docs_are_there(desk: Desk) -> None:
    assert (await desk.client.get("/docs")).status_code == 200


CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]


async def test_the_description_holds_for_what_a_machine_makes_up(desk: Desk, tmp_path: Path) -> None:
    desk.work()
    await desk.unknown()
    await desk.waiting(await desk.submitted("wonders", choices=["red", 7]))
    await desk.app.rules.put("send_letter", "deny", reason="never", by="ada", bounds={"to": {"equals": "me"}})
    async with desk.served() as (server, client):
        document = (await client.get("/openapi.json")).json()
        # So that made-up tasks are for somebody, and some of the made-up requests succeed.
        document["components"]["schemas"]["NewTask"]["properties"]["agent"]["enum"] = ["echo"]
        description = tmp_path / "openapi.json"
        description.write_text(json.dumps(document))
        # The stream of a task that lives ends when the client has read for long enough.
        (tmp_path / "schemathesis.toml").write_text(
            '[[operations]]\ninclude-path = "/v1/tasks/{task}/events"\nrequest-timeout = 1\n'
        )
        command = [
            *("run", str(description), "--url", server.url, "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "15", "--seed", "7", "--checks", ",".join(CHECKS), "--request-timeout", "10"),
            *("--continue-on-failure", "--no-color"),
        ]
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("st"),
            *command,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(6 * PATIENCE_S):
                report, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, report.decode()
    assert await desk.stored() > 1
