"""Logs: one kind of line, with ids and counts, without secrets, and not the same line a thousand times."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.logging_alone import logging_alone

from outlast import telemetry
from outlast.observability import logs

AWAY = telemetry.StoreAway(duty="claim", detail="cannot reach postgresql://me:s3cret@db/x")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream that is logged to, as JSON."""
    target = io.StringIO()
    with logging_alone():
        logs.install(stream=target)
        yield target


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_installed_again_it_says_each_line_once(stream: io.StringIO) -> None:
    again = io.StringIO()
    logs.install(stream=again)
    telemetry.emit(AWAY)
    assert lines(stream) == []
    assert [line["event"] for line in lines(again)] == ["store_away"]


def test_a_record_is_a_line_of_json(stream: io.StringIO) -> None:
    ended = telemetry.AttemptEnded(tenant="acme", task="task_1", epoch=2, agent="greet", end="succeeded")
    telemetry.emit(ended)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "attempt_ended",
        "level": "info",
        "tenant": "acme",
        "task": "task_1",
        "epoch": 2,
        "agent": "greet",
        "end": "succeeded",
    }


def test_a_store_that_is_away_is_said_once_until_it_is_back(stream: io.StringIO) -> None:
    for _ in range(3):
        telemetry.emit(AWAY)
    telemetry.emit(telemetry.StoreBack(duty="claim"))
    telemetry.emit(AWAY)
    assert [(line["event"], line["level"]) for line in lines(stream)] == [
        ("store_away", "warning"),
        ("store_back", "info"),
        ("store_away", "warning"),
    ]


def test_passwords_are_masked_wherever_they_come_from(stream: io.StringIO) -> None:
    telemetry.emit(AWAY)
    logging.getLogger("driver").warning("lost %s", "postgresql://me:s3cret@db/x")
    assert len(lines(stream)) == 2
    assert "s3cret" not in stream.getvalue()


def test_the_standard_librarys_lines_look_the_same(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").error("it %s", "broke")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("it broke", "error", "uvicorn.error")


def test_a_fault_is_one_line_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("deep inside")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("a fault")
    (line,) = lines(stream)
    assert "deep inside" in line["exception"]


def test_what_happens_all_the_time_is_for_debugging(stream: io.StringIO) -> None:
    telemetry.emit(telemetry.BatchFlushed(tasks=1, entries=2, seconds=0.1))
    telemetry.emit(telemetry.TasksClaimed(count=3))
    assert lines(stream) == []


def test_every_record_has_a_level_and_a_name() -> None:
    kinds = [
        value
        for value in vars(telemetry).values()
        if isinstance(value, type) and issubclass(value, telemetry.Signal) and value is not telemetry.Signal
    ]
    names = [logs.event_name(kind) for kind in kinds]
    assert len(set(names)) == len(kinds)
    assert {logs.level_of(kind) for kind in kinds} == {logging.DEBUG, logging.INFO, logging.WARNING}


def test_people_get_text() -> None:
    target = io.StringIO()
    with logging_alone():
        logs.install(stream=target, as_json=False).info("worker started", slots=5)
    assert "worker started" in target.getvalue()
    assert "slots=5" in target.getvalue()
