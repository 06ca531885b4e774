"""Seeded schedules: two workers, a task, and a crash at any await."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
from tests.defects.catalogue import DEFECTS, Patch

from outlast.core.transitions import MACHINES
from outlast.engine import effects, settling
from outlast.testing.simulation import Faults, run_schedule
from outlast.testing.simulation.__main__ import main
from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.coverage import PROMISED, UNREACHED
from outlast.testing.simulation.judging import Judge
from outlast.testing.simulation.service import TicketService

CRASHES = 200


def test_a_crash_at_any_await_leaves_one_effect_and_every_promise() -> None:
    broken = []
    crashes = 0
    for seed in range(1, CRASHES + 1):
        report = run_schedule(seed, workers=2, tasks=1, faults=Faults.one_crash())
        crashes += len(report.misfortunes)
        if report.violations or report.effects != 1 or report.ended != ("succeeded",):
            broken.append(str(report))
    assert not broken, "\n".join(broken[:5])
    # A schedule whose task ends before the drawn await has none; most have one.
    assert crashes > 0.8 * CRASHES


def test_what_is_left_is_judged_at_the_moment_in_which_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever keeps rules goes on to the end, and was told of one taken back that had stood till then."""
    judge, at = Judge.judge, []

    def judging(self: Judge, *given: Any) -> None:
        task = asyncio.current_task()
        at.append(None if task is None else task.get_name())
        judge(self, *given)

    monkeypatch.setattr(Judge, "judge", judging)
    assert run_schedule(745, tasks=1, agents=("refund",), faults=Faults.calm()).violations == ()
    assert at == ["script"]


@pytest.mark.parametrize("faults", [Faults.one_crash(), Faults.everything()], ids=["one_crash", "everything"])
def test_the_same_seed_is_the_same_schedule(faults: Faults) -> None:
    for seed in range(5):
        first = run_schedule(seed, tasks=2, faults=faults)
        again = run_schedule(seed, tasks=2, faults=faults)
        assert first.lines == again.lines
        assert first == again


def test_another_process_runs_the_same_schedule() -> None:
    code = (
        "from outlast.testing.simulation import Faults, run_schedule\n"
        "print(*(run_schedule(s, tasks=2, faults=Faults.everything()).digest for s in range(8)))"
    )
    seen = set()
    for hash_seed in ("1", "2"):
        # Sets of strings have another order in each of these.
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
        seen.add(done.stdout)
    here = " ".join(run_schedule(s, tasks=2, faults=Faults.everything()).digest for s in range(8))
    assert seen == {here.encode() + b"\n"}


@pytest.mark.parametrize("shape", AGENTS)
def test_agents_of_every_shape_keep_every_promise(shape: str) -> None:
    for seed in range(15):
        report = run_schedule(seed, tasks=2, faults=Faults.everything(), agents=(shape,))
        assert not report.violations, report


def test_everything_at_once_keeps_every_promise() -> None:
    for seed in range(20):
        report = run_schedule(seed, workers=3, tasks=4, faults=Faults.everything(), agents=AGENTS)
        assert not report.violations, report


def test_no_coroutine_is_left_unawaited() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A warning out of a destructor cannot raise; it is told to this hook instead.
        heard: list[object] = []
        hook, sys.unraisablehook = sys.unraisablehook, heard.append
        try:
            for seed in range(20):
                run_schedule(seed, workers=3, tasks=4, faults=Faults.everything(), agents=("fan",))
            gc.collect()
        finally:
            sys.unraisablehook = hook
    assert heard == []


# ── found once ───────────────────────────────────────────────────────────────────────────────────


# A seed names a schedule of the code as it is; as the code goes on, these become others of the same kind.
@pytest.mark.parametrize(
    ("seed", "workers", "tasks"),
    [
        (5402, 3, 3),  # an operation to be sent again was on record as not sent when its task ended
        (71, 2, 1),  # the answer to a claim was lost, and nobody gave the lease back
        (385, 2, 1),  # the same, and the task stood still for ever
    ],
)
def test_what_was_found_once_is_not_found_again(seed: int, workers: int, tasks: int) -> None:
    report = run_schedule(seed, workers=workers, tasks=tasks, faults=Faults.everything())
    assert not report.violations, report


# ── the judge can tell ───────────────────────────────────────────────────────────────────────────


def _break(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    DEFECTS[name].apply(Patch(monkeypatch))


def _first_broken(schedules: int, faults: Faults, says: str = "") -> str:
    for seed in range(schedules):
        report = run_schedule(seed, faults=faults)
        if any(says in violation for violation in report.violations):
            assert run_schedule(seed, faults=faults).digest == report.digest
            assert f"--seed {seed} " in report.replay
            return " ".join(report.violations)
    return ""


def test_a_call_before_its_intent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "barrier_forgotten")
    assert _first_broken(20, Faults.calm(), "left before its intent")


def test_a_resend_under_another_key_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    create = TicketService.create

    async def careless(
        self: TicketService, call: effects.ToolCall, body: dict[str, object], **more: bool
    ) -> object:
        call.idempotency_key += f"/{call.attempt}"
        return await create(self, call, body, **more)

    async def blind(*_: object) -> settling.NoEvidence:
        return settling.NoEvidence("blind")

    monkeypatch.setattr(TicketService, "create", careless)
    monkeypatch.setattr(settling, "_ask", blind)
    assert "effects_are_accounted_for" in _first_broken(300, Faults.one_crash())


def test_a_store_without_a_fence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "epoch_not_compared")
    assert "under epoch" in _first_broken(500, Faults(freezes=1))


def test_an_answer_that_is_guessed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "outcome_guessed")
    assert _first_broken(500, Faults.one_crash())


def test_a_wake_up_that_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, "timers_wake_nobody")
    assert "did not come to rest" in _first_broken(1, Faults.calm())


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "3", "--seed", "5", "--faults", "one_crash", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schedules"] == 3
    assert told["violations"] == 0
    assert told["seconds"] > 0


def test_the_command_names_what_broke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _break(monkeypatch, "timers_wake_nobody")
    assert main(["--schedules", "1", "--seed", "5", "--workers", "2", "--trace"]) == 1
    told = capsys.readouterr()
    assert "--schedules 1 --seed 5 " in told.err
    assert "service POST" in told.err
    assert "1 with violations" in told.out


def test_a_run_that_has_not_seen_everything_is_void(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "1", "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["void"]
    assert "void, since it has not seen: " in told.err


def test_what_is_promised_and_what_is_not_reached_are_all_there_is() -> None:
    every = {(machine.name, *pair) for machine in MACHINES for pair in machine.moves}
    assert every == PROMISED | set(UNREACHED)
    assert not PROMISED & set(UNREACHED)


def test_faults_are_read_as_they_are_spelled() -> None:
    for faults in (Faults.calm(), Faults.one_crash(), Faults.everything(), Faults.turmoil()):
        assert Faults.parse(faults.spell()) == faults
    assert Faults.parse("everything") == Faults.everything()
    with pytest.raises(ValueError, match="name=value"):
        Faults.parse("thunder=1")


def test_digests_differ_when_anything_does() -> None:
    digests = {run_schedule(seed).digest for seed in range(50)}
    assert len(digests) == 50
    assert all(len(digest) == len(hashlib.sha256().hexdigest()) for digest in digests)
