"""The drills against others: their judge, on logs made by hand, and their processes, with Outlast in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bench.peers.drills import Stage, play
from bench.peers.judge import judge
from bench.peers.matrix import ROWS, Row
from bench.peers.part import Part, Report

from outlast.testing.recorder import Call, Recorder

PEERS = Path(__file__).parents[2] / "bench" / "peers"


def _call(number: int, method: str = "POST", effect: str | None = None) -> Call:
    """A call as the ticket service logs it; what the judge does not read is empty."""
    return Call(
        number=number,
        arrived_at=float(number),
        method=method,
        path="/tickets",
        query={},
        key="K",
        epoch=None,
        deadline_ms=None,
        traceparent=None,
        body=None,
        body_digest="",
        misbehaved=None,
        effect=effect,  # type: ignore[arg-type]
        acted_at=None,
        ticket="R-1" if effect else None,
        replayed=False,
        status=201,
        ending="answer",
        ended_at=float(number),
        held=None,
        client_gone=False,
    )


NOTHING = [_call(1)]
ONE = [_call(1, effect="created"), _call(2)]
"""The second one got the first one's answer."""
TWO = [_call(1, effect="created"), _call(2, effect="created")]


@pytest.mark.parametrize(
    ("log", "end", "text", "right", "told"),
    [
        (ONE, "succeeded", "once", True, "nobody"),
        (ONE, "failed", "made, called failed", False, "that it failed"),
        (ONE, "unknown", "once, open for a person", True, "that it is unknown"),
        (ONE, "running", "made, never ends", False, "nobody"),
        (TWO, "succeeded", "2 tickets", False, "nobody"),
        (TWO, "failed", "2 tickets", False, "that it failed"),
        (TWO, "unknown", "2 tickets, open for a person", False, "that it is unknown"),
        (NOTHING, "succeeded", "none, called done", False, "nobody"),
        (NOTHING, "failed", "none, called failed", True, "that it failed"),
        (NOTHING, "unknown", "none, open for a person", True, "that it is unknown"),
        (NOTHING, "running", "none, never ends", False, "nobody"),
    ],
)
def test_what_is_said_is_held_against_what_was_done(
    log: list[Call], end: str, text: str, right: bool, told: str
) -> None:
    verdict = judge(log, Report(end=end, words=""))
    assert (verdict.text, verdict.right, verdict.told) == (text, right, told)


def test_questions_and_replays_are_no_tickets() -> None:
    log = [_call(1, "GET"), _call(2, effect="created"), _call(3), _call(4, "GET")]
    verdict = judge(log, Report(end="succeeded", words=""))
    assert (verdict.calls, verdict.effects) == (2, 1)


def test_what_an_engine_says_must_be_a_word_that_the_judge_knows() -> None:
    with pytest.raises(KeyError):
        judge(ONE, Report(end="fine", words=""))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.engine}-{row.shown}")
def test_each_engine_says_what_its_ways_are(row: Row) -> None:
    told = (PEERS / f"of_{row.engine}.py").read_text().partition("from __future__")[0]
    assert f"``{row.way}``" in told


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with Recorder() as recorder:
        part = Part(
            engine="outlast",
            way="keyed",
            begins=True,
            database=f"sqlite:///{tmp_path / 'outlast.db'}",
            tickets=recorder.url,
            run="INV-1",
        )
        yield Stage(recorder=recorder, part=part, folder=tmp_path)


@pytest.mark.parametrize("drill", ["lost-answer", "stale-sender"])
async def test_a_drill_is_played_by_processes(stage: Stage, drill: str) -> None:
    played = await play(drill, stage, honours=True)
    assert (played.verdict.text, played.report.end, played.moved) == ("once", "succeeded", False)
    # A thawed process has come to its end, and was waited for.
    assert (played.stale is not None) == (drill == "stale-sender")


async def test_a_service_that_ignores_keys_shows_what_is_declared_falsely(stage: Stage) -> None:
    played = await play("stale-sender", stage, honours=False)
    assert (played.verdict.text, played.verdict.right) == ("2 tickets", False)
