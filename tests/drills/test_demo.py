"""The demo: what it prints, how it judges, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outlast.drills.reimbursement import run_demo
from outlast.drills.stage import Played, Stage
from outlast.drills.windows import WINDOWS, Window
from outlast.errors import ConfigurationError
from outlast.testing.checkers import CHECKERS
from outlast.testing.recorder import Rule
from outlast.testing.servers import EmbeddedPostgres

NAMES = ["before_intent", "before_outcome", "lost_answer", "frozen_sender", "twin_submissions"]
ATTEMPTS = {
    **dict(zip(NAMES, (2, 2, 1, 2, 1), strict=True)),
    "approval": 2,
    "cancel": 1,
    "undo": 2,
    # Where absence or a person is waited for, the task gives up its worker meanwhile.
    **dict(zip([f"{name}_queryable" for name in NAMES], (2, 2, 1, 3, 1), strict=True)),
    **dict(zip([f"{name}_manual" for name in NAMES[1:4]], (3, 2, 3), strict=True)),
}
"""How many attempts the task of each window takes."""
HANGS_S = 120
"""After this the demo hangs: it is no bound on how fast it is. What one window may take is bound below."""


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def of(*names: str) -> list[Window]:
    return [window for window in WINDOWS if window.name in names]


async def played(*windows: Window, postgres: str | None = None, json: bool = False) -> tuple[int, str]:
    said = io.StringIO()
    code = await run_demo(postgres, json, Console(file=said, width=120), windows=windows)
    return code, said.getvalue()


def test_the_whole_demo_passes_and_says_so_in_json(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outlast", "demo", "--json"], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert list(said) == ["verdict", "windows", "checkers"]
    assert said["verdict"] == "pass"
    assert said["checkers"] == {"asked": len(CHECKERS), "problems": []}
    facts = {window.pop("name"): window for window in said["windows"]}
    assert list(facts) == list(ATTEMPTS)
    for name, window in facts.items():
        assert list(window) == ["tickets", "posts", "task_state", "attempts", "seconds"]
        assert window.pop("seconds") < 30
        assert window == {
            "tickets": 1,
            "posts": 2 if name == "frozen_sender" else 1,
            "task_state": {"cancel": "cancelled", "undo": "failed"}.get(name, "succeeded"),
            "attempts": ATTEMPTS[name],
        }
    # Passed, so nothing is kept; and nobody is left.
    assert files(folder) == []
    assert processes(folder) == []


async def test_the_story_is_told_in_order(folder: Path) -> None:
    code, said = await played(*of("before_outcome"))
    assert code == 0
    told = [
        "worker A  serves, process",
        "202, task task_",
        "running: claimed by worker A, epoch 1",
        "create_ticket running: intent on disk, attempt 1, key …",
        "created R-55821",
        "dies: SIGKILL at effects.before_outcome",
        "the lease of epoch 1 ran out; its worker is fenced off",
        "running: claimed by worker B, epoch",
        "create_ticket unknown (its worker was lost); not sent again blindly",
        "GET /tickets?idempotency_key=…",
        "create_ticket settled as happened by worker, from evidence",
        "“R-55821 filed, awaiting your supervisor”",
        "PASS  1 ticket, 1 POST, task succeeded in 2 attempts",
    ]
    plain = re.sub(r"\s+", " ", said)
    places = [plain.find(re.sub(r"\s+", " ", line)) for line in told]
    assert -1 not in places, told[places.index(-1)] + "\n" + said
    assert places[0] < places[4] < places[5] < places[6] < places[8] < places[10] < places[12]
    assert "Leases last 1.5 s here instead of 15 s" in said


async def test_what_nobody_can_know_is_shown_and_settled_by_a_person(folder: Path) -> None:
    code, said = await played(*of("lost_answer_manual"))
    assert code == 0, said
    told = [
        "create_ticket unknown (timeout); not sent again blindly",
        "create_ticket waits as unknown for a person: the tool is declared manual",
        "finds R-55821",
        "settled as happened by person:demo",
        "PASS  1 ticket, 1 POST, task succeeded in 2 attempts",
    ]
    plain = re.sub(r"\s+", " ", said)
    places = [plain.find(re.sub(r"\s+", " ", line)) for line in told]
    assert -1 not in places, told[places.index(-1)] + "\n" + said


def assert_in_order(said: str, told: list[str]) -> None:
    plain = re.sub(r"\s+", " ", said)
    place = 0
    for line in told:
        place = plain.find(re.sub(r"\s+", " ", line), place)
        assert place != -1, f"{line}\n{said}"


async def test_the_decision_is_for_what_was_shown_and_stands_while_nobody_lives(folder: Path) -> None:
    code, said = await played(*of("approval"))
    assert code == 0, said
    assert_in_order(
        said,
        [
            "people are asked: INV-102, 118.50, over by 38.50 (create_ticket#1~1)",
            "create_ticket#1~1 approved by person:supervisor",
            "worker B serves, process",
            "created R-55821",
            "task 2 people are asked: INV-102, 118.50, over by 38.50",
            "worker C its agent wants 180 now",
            "create_ticket#1~1 withdrawn: it does not apply, and was never used",
            "people are asked: INV-102, 180, over by 100.00 (create_ticket#1~2)",
            "create_ticket#1~2 rejected by person:supervisor",
            "PASS 1 ticket, 1 POST, task succeeded in 2 attempts",
        ],
    )
    # Told by other clocks than the database's, which may differ by more than lies between.
    assert_in_order(said, ["worker A dies: SIGKILL at approvals.after_ask", "worker B dies: SIGKILL"])
    assert_in_order(said, ["supervisor says: agreed"])


async def test_the_undo_is_told_as_a_call_like_any_other(folder: Path) -> None:
    code, said = await played(*of("undo"))
    assert code == 0, said
    assert_in_order(
        said,
        [
            "create_ticket succeeded",
            "attach_invoice failed: 422",
            "withdraw_ticket running: intent on disk, attempt 1, key …",
            "withdraw_ticket unknown",
            "withdraw_ticket settled as happened by worker, from evidence",
            "client reads: tool_rejected; undo complete, undone: create_ticket#1",
            "PASS 1 ticket, 1 POST, task failed in 2 attempts",
        ],
    )
    # By the ticket service's clock.
    assert_in_order(
        said,
        [
            "created R-55821",
            "answers 422, and has done nothing",
            "withdrawn R-55821",
            "and never answers (reset)",
            "GET /tickets/R-55821",
        ],
    )


async def test_a_ticket_that_stays_fails_the_window_of_the_undo(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge is the ticket service: a withdrawal that is only said to have happened is none."""
    monkeypatch.setattr(Rule, "act_then_reset", classmethod(lambda cls: cls(act=False, status=404)))
    code, said = await played(*of("undo"))
    assert code == 1
    assert "the ticket now: expected 'withdrawn', seen 'open'" in re.sub(r"\s+", " ", said)


async def test_a_second_ticket_fails_the_window_of_the_approval(folder: Path) -> None:
    (window,) = of("approval")

    async def agrees_to_all(stage: Stage) -> Played:
        decide = stage.app.approvals.decide

        async def agree(approval: str, verdict: Any, **told: Any) -> Any:
            return await decide(approval, "approve", **told)

        stage.app.approvals.decide = agree  # type: ignore[method-assign]
        return await window.play(stage)

    code, said = await played(replace(window, play=agrees_to_all))
    assert code == 1
    assert "tickets made: expected 1, seen 2" in said
    assert "seen ['used', 'withdrawn', 'used']" in said


async def test_a_cancelled_task_ends_on_time_and_what_it_did_is_learnt_later(folder: Path) -> None:
    code, said = await played(*of("cancel"))
    assert code == 0, said
    assert_in_order(
        said,
        [
            "created R-55821",
            "to be cancelled, says person:employee: filed by mistake",
            "create_ticket unknown",
            "cancelled; effects that nobody knows of yet: 1",
            "GET /tickets?idempotency_key=",
            "evidence: find → found",
            "PASS 1 ticket, 1 POST, task cancelled in 1 attempt",
        ],
    )


async def test_a_ticket_that_a_person_made_up_fails_the_window(folder: Path) -> None:
    (window,) = of("lost_answer_manual")

    async def guessed(stage: Stage) -> Played:
        settle = stage.app.operations.settle

        async def guess(operation: str, verdict: Any, **told: Any) -> Any:
            return await settle(operation, verdict, **{**told, "result": {"id": "R-1", "amount": "1"}})

        stage.app.operations.settle = guess  # type: ignore[method-assign]
        return await window.play(stage)

    code, said = await played(replace(window, play=guessed))
    assert code == 1
    assert "the ticket that the agent got: expected ['R-55821'], seen ['R-1']" in said


async def test_a_window_with_two_tickets_fails_and_says_where_to_look(folder: Path) -> None:
    (frozen,) = of("frozen_sender")

    async def without_keys(stage: Stage) -> Played:
        # A service that does not deduplicate: the frozen sender's request makes a second ticket.
        await stage.recorder.configure(dedupe=False)
        return await frozen.play(stage)

    code, said = await played(replace(frozen, play=without_keys))
    assert code == 1
    assert "FAIL  2 tickets, 2 POSTs, task succeeded" in said
    assert "tickets made: expected 1, seen 2" in said
    (kept,) = files(folder)
    assert str(folder / kept) in "".join(said.split())
    assert {"tickets.db", "outlast.db", "01-worker-A.log", "02-worker-B.log"} <= set(files(folder / kept))


async def test_a_window_that_does_not_get_to_its_end_fails_and_the_next_is_played(folder: Path) -> None:
    (first, second) = of("before_intent", "lost_answer")

    async def nobody_serves(stage: Stage) -> Played:
        await stage.submit()
        raise TimeoutError("nobody serves")

    code, said = await played(replace(first, play=nobody_serves), second)
    assert code == 1
    assert "the window: expected 'played to its end', seen 'TimeoutError: nobody serves'" in said
    assert "FAIL  0 tickets, 0 POSTs, task queued in 0 attempts" in said
    assert "PASS  1 ticket, 1 POST, task succeeded in 1 attempt" in said


async def test_a_checker_that_says_no_fails_the_demo_though_each_window_passed(folder: Path) -> None:
    (window,) = of("twin_submissions")

    async def left_over(stage: Stage) -> Played:
        seen = await window.play(stage)
        await stage.submit(run=2)
        stage.accepted.add(("default", "task_that_is_nowhere"))
        return seen

    code, said = await played(replace(window, play=left_over))
    assert code == 1
    plain = re.sub(r"\s+", " ", said)
    assert "PASS  1 ticket, 1 POST, task succeeded in 1 attempt" in said
    assert "FAIL the checkers; everything is kept in" in plain
    assert "is queued in a quiet system" in plain
    assert "task_that_is_nowhere" in plain
    assert len(files(folder)) == 1
    code, said = await played(replace(window, play=left_over), json=True)
    verdict = json.loads(said)
    assert (code, verdict["verdict"]) == (1, "fail")
    assert ["problems" in each for each in verdict["windows"]] == [False]
    assert {each["what"] for each in verdict["checkers"]["problems"]} == {
        "accepted is stored",
        "quiet is quiet",
    }


async def test_a_fault_that_was_not_done_is_no_pass(folder: Path) -> None:
    """A window whose worker was never killed must not pass because nothing went wrong."""
    (window,) = of("lost_answer")

    async def honest(stage: Stage) -> Played:
        plan = stage.recorder.plan

        async def no_plan(*rules: Any, instead: bool = False) -> None:
            await plan(instead=instead)

        stage.recorder.plan = no_plan  # type: ignore[method-assign]
        return await window.play(stage)

    code, said = await played(replace(window, play=honest))
    assert code == 1
    assert "how the POST was answered: expected ['hang'], seen ['answer']" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_ends_every_process_the_frozen_one_included(
    folder: Path, number: signal.Signals
) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "outlast", "demo"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert demo.stdout is not None
    for line in iter(demo.stdout.readline, ""):
        if line.startswith("4/"):
            break
    until(lambda: any(one.stopped for one in processes(folder)), "a worker is frozen")
    demo.send_signal(number)
    code = demo.wait(timeout=30)
    demo.stdout.close()
    assert code == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    until(lambda: processes(folder) == [], "every process has ended")
    if number != signal.SIGKILL:
        assert files(folder) == []


async def test_the_demo_on_somebodys_server_uses_a_database_of_its_own(
    folder: Path, postgres_server: EmbeddedPostgres, bare_postgres_url: str
) -> None:
    before = postgres_server.sql("select datname from pg_database order by 1")
    code, said = await played(*of("lost_answer"), postgres=bare_postgres_url)
    assert code == 0, said
    assert "PostgreSQL, postgresql://outlast:***@127.0.0.1" in " ".join(said.split())
    assert postgres_server.sql("select datname from pg_database order by 1") == before
    name = bare_postgres_url.rpartition("/")[2]
    assert (
        postgres_server.sql("select nspname from pg_namespace where nspname = 'outlast'", database=name) == ""
    )


@pytest.fixture
def poor(postgres_server: EmbeddedPostgres, bare_postgres_url: str) -> Iterator[str]:
    """The URL of an empty database, for an account that may not make others."""
    name = bare_postgres_url.rpartition("/")[2]
    postgres_server.sql("create role poor login password 'poor'")
    postgres_server.sql(f'alter database "{name}" owner to poor')
    yield f"postgresql://poor:poor@127.0.0.1:{postgres_server.port}/{name}"
    postgres_server.sql("drop owned by poor cascade; drop table if exists invoices", database=name)
    postgres_server.sql(f'alter database "{name}" owner to outlast')
    postgres_server.sql("drop role poor")


async def test_the_demo_uses_an_empty_database_and_cleans_it(
    folder: Path, postgres_server: EmbeddedPostgres, poor: str
) -> None:
    code, said = await played(*of("lost_answer"), postgres=poor)
    assert code == 0, said
    left = postgres_server.sql(
        "select nspname from pg_namespace where nspname = 'outlast'", database=poor.rpartition("/")[2]
    )
    assert left == ""


async def test_the_demo_refuses_a_database_with_somebodys_tables(
    folder: Path, postgres_server: EmbeddedPostgres, poor: str
) -> None:
    postgres_server.sql("create table public.invoices (number text)", database=poor.rpartition("/")[2])
    with pytest.raises(ConfigurationError, match=r"not empty \(it holds public\.invoices\)") as refused:
        await played(*of("lost_answer"), postgres=poor)
    assert "poor:poor" not in str(refused.value)
    assert files(folder) == []


# -- who is there --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    pid: int
    line: str
    stopped: bool


def processes(folder: Path) -> list[Seen]:
    """Answer the processes of a demo that keeps its files in a folder, as the kernel lists them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environ and state != "Z":
            found.append(Seen(int(entry.name), line, state == "T"))
    return found


def until(true: Callable[[], bool], what: str) -> None:
    """Look until something is so: other people's processes tell nobody."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"it did not get there: {what}"
        time.sleep(0.01)
