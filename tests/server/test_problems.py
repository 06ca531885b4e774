"""Problem documents: one table, complete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from tests.server.desk import Desk

from outlast import errors
from outlast.server.problem import PROBLEMS
from outlast.streams.tail import Overrun

PUBLIC = [getattr(errors, name) for name in errors.__all__]


def test_every_error_has_a_problem() -> None:
    codes = {error.code for error in PUBLIC if issubclass(error, errors.OutlastError)} | {Overrun.code}
    assert codes - PROBLEMS.keys() == set()


def test_every_problem_has_a_status_of_errors_and_a_title_of_its_own() -> None:
    assert [code for code, (status, _) in PROBLEMS.items() if HTTPStatus(status) < 400] == []
    titles = [title for code, (_, title) in PROBLEMS.items() if code != "internal_error"]
    assert len(set(titles)) == len(titles)


def test_a_refusal_of_the_request_is_never_the_services_fault() -> None:
    for error in PUBLIC:
        if issubclass(error, errors.InvalidRequest | errors.NotFound | errors.Conflict):
            assert PROBLEMS[error.code][0] < 500
        if issubclass(error, errors.Unavailable | errors.SchemaMismatch):
            assert PROBLEMS[error.code][0] == (429 if error is errors.InboxFull else 503)


@pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)
class TestAnswers:
    @pytest.mark.parametrize(
        ("method", "path", "code"),
        [
            ("GET", "/nowhere", "not_found"),
            ("GET", "/v1", "not_found"),
            ("DELETE", "/v1/tasks", "method_not_allowed"),
            ("POST", "/healthz", "method_not_allowed"),
        ],
    )
    async def test_of_routing_are_problems_too(self, desk: Desk, method: str, path: str, code: str) -> None:
        answer = await desk.client.request(method, path)
        document = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["type"] == f"urn:outlast:problem:{code}"
        assert (document["code"], document["status"], document["title"]) == (
            code,
            answer.status_code,
            PROBLEMS[code][1],
        )

    async def test_of_methods_name_all_that_are_allowed(self, desk: Desk) -> None:
        assert (await desk.client.put("/v1/tasks")).headers["allow"] == "GET, POST"
        assert (await desk.client.post("/v1/operations/task_1:a")).headers["allow"] == "GET"

    async def test_of_faults_do_not_say_what_went_wrong_inside(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fault(*_: Any, **__: Any) -> Any:
            raise RuntimeError("postgresql://u:s3cret@db/x has a fault")

        monkeypatch.setattr(desk.store, "list_tasks", fault)
        answer = await desk.client.get("/v1/tasks")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "s3cret" not in answer.text
