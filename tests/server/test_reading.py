"""What headers and bodies mean, without a service."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from outlast.server.reading import etag_matches, preferred_wait, wants_json


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


@pytest.mark.parametrize(
    ("sent", "wait"),
    [
        ("wait=5", 5),
        ("wait=0", 0),
        ("Wait = 7", 7),
        ('wait="8"', 8),
        ("respond-async, wait=9; x=y", 9),
        ("wait=3, wait=4", 3),
        ("wait=3600", 60),
        ("wait=999999999999", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait", None),
        ("waiting=5", None),
    ],
)
def test_a_preferred_wait_is_bounded_or_none(sent: str, wait: int | None) -> None:
    assert preferred_wait(request(prefer=sent)) == wait


def test_without_a_preference_there_is_no_wait() -> None:
    assert preferred_wait(request()) is None


@pytest.mark.parametrize(
    ("accept", "json"),
    [
        ("application/json", True),
        ("text/event-stream", False),
        ("*/*", False),
        ("application/json, text/event-stream", False),
        ("application/json, text/event-stream;q=0.5", True),
        ("application/json;q=0.1, text/event-stream;q=0.5", False),
        ("application/json;q=nonsense", False),
    ],
)
def test_json_is_asked_for_by_name(accept: str, json: bool) -> None:
    assert wants_json(request(accept=accept)) is json


def test_a_stream_is_the_default() -> None:
    assert wants_json(request()) is False


@pytest.mark.parametrize("sent", ['W/"1-2-queued"', '"1-2-queued"', 'W/"x", W/"1-2-queued"', "*"])
def test_entity_tags_match_weakly(sent: str) -> None:
    assert etag_matches(request(if_none_match=sent), 'W/"1-2-queued"')


@pytest.mark.parametrize("sent", ['W/"1-3-queued"', "1-2-queued", ""])
def test_other_entity_tags_do_not_match(sent: str) -> None:
    assert not etag_matches(request(if_none_match=sent), 'W/"1-2-queued"')
