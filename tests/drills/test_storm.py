"""The storm: a short one on each store, one that finds something, and what is told of either."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx2
import pytest
from rich.console import Console
from typer.testing import CliRunner

from outlast import app as app_module
from outlast.cli.main import command_line
from outlast.drills.fleet import Fleet
from outlast.drills.storm import campaign, misfortunes, report
from outlast.drills.storm import world as world_module
from outlast.drills.storm.agents import Place, Theirs, app_of
from outlast.drills.storm.asking import Answer
from outlast.drills.storm.campaign import Plan, Played
from outlast.drills.storm.judge import JUDGES, Verdict, forgotten, judge, takeovers, unjudged
from outlast.drills.storm.load import Load, Tracked
from outlast.drills.storm.misfortunes import MISFORTUNES, Fate, Misfortune
from outlast.drills.storm.posts import Death, Post, Posts
from outlast.drills.storm.report import Asked, as_json, markdown, replay, run_drill
from outlast.drills.storm.world import World, duty_of, prepare, world
from outlast.errors import ConfigurationError, StoreUnavailable
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.history import HistoryFile
from outlast.testing.servers import EmbeddedPostgres
from outlast.testing.small_disks import why_not

SECONDS = 6.0
SEED = 11


async def passed_over(asked: Asked, **options: Any) -> tuple[int, str]:
    """Let storms pass; answer the exit code and what was said."""
    said = io.StringIO()
    console = Console(file=said, width=140)
    code = await run_drill(asked, report=options.pop("report", None), console=console, **options)
    return code, said.getvalue()


class TestStorm:
    @pytest.mark.parametrize("postgres", [None, "embedded"], ids=["sqlite", "postgres"])
    async def test_nothing_is_broken_after_it(self, folder: Path, postgres: str | None) -> None:
        page = folder / "report.md"
        asked = Asked(postgres=postgres, seed=SEED, seconds=SECONDS, workers=2)
        code, said = await passed_over(asked, json=True, report=page)
        told = json.loads(said)
        assert (code, told["verdict"], told["violations"]) == (0, "pass", []), said
        assert list(told["judges"]) == list(JUDGES)
        assert sum(told["misfortunes"].values()) >= 3
        assert set(told["misfortunes"]) <= {one.name for one in MISFORTUNES}
        assert told["accepted"] > 0
        assert sum(told["tasks"].values()) >= told["accepted"]
        assert told["history"] > told["accepted"]
        assert page.read_text().startswith("Nothing was broken.")
        assert os.listdir(folder) == ["report.md"]

    async def test_disks_are_full_under_it(self, folder: Path) -> None:
        if why := why_not():
            pytest.skip(why)
        asked = Asked(
            postgres="embedded", seed=SEED, seconds=SECONDS / 2, workers=1, timers="short", only=["*_full"]
        )
        code, said = await passed_over(asked, json=True)
        told = json.loads(said)
        assert (code, told["verdict"], told["violations"], told["not_played"]) == (0, "pass", [], {}), said
        assert told["families"]["disk"] == sum(told["misfortunes"].values()) > 0

    async def test_what_is_done_behind_our_back_is_found_and_everything_is_kept(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def act(fate: Fate) -> None:
            async with httpx2.AsyncClient(trust_env=False) as client:
                ticket = {"invoice": "INV-nobodys", "amount": 1}
                await client.post(f"{fate.world.plain.url}/tickets", json=ticket)

        stray = Misfortune(name="stray", family="tickets", weight=1.0, fits=lambda _: True, befall=act)
        monkeypatch.setattr(campaign, "MISFORTUNES", (stray,))
        monkeypatch.setattr(report, "MISFORTUNES", (stray,))
        asked = Asked(postgres=None, seed=SEED, seconds=1.0, workers=1, timers="short")
        code, said = await passed_over(asked, json=True)
        told = json.loads(said)
        assert (code, told["verdict"]) == (1, "fail")
        assert [name for name, count in told["judges"].items() if count] == ["effects_are_accounted_for"]
        assert told["replay"] == "outlast drill storm --seed 11 --seconds 1 --timers short --workers 1"
        kept = Path(told["kept"]) / "1"
        assert {"outlast.db", "keys.db", "plain.db"} <= set(os.listdir(kept))
        assert list(kept.glob("leases-*"))


class TestFullDisks:
    """Where they can be played, and what is said where they cannot."""

    def names(self, made: World) -> list[str]:
        fate: Any = SimpleNamespace(world=made)
        return [one.name for one in MISFORTUNES if one.family == "disk" and one.fits(fate)]

    async def test_a_file_may_not_grow(self, folder: Path) -> None:
        async with world(None, folder, by_socket=False) as made:
            assert self.names(made) == ["disk_full"]
            assert misfortunes.not_played(made) == {}

    async def test_a_server_of_our_own_has_small_disks(self, folder: Path) -> None:
        if why := why_not():
            pytest.skip(why)
        async with world("embedded", folder, by_socket=False) as made:
            assert isinstance(made.server, CrampedPostgres)
            assert self.names(made) == ["disk_full", "log_full"]
            assert misfortunes.not_played(made) == {}

    async def test_a_machine_that_gives_none_is_told(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world_module, "why_not", lambda: "not on this machine")
        async with world("embedded", folder, by_socket=False) as made:
            assert type(made.server) is EmbeddedPostgres
            assert self.names(made) == []
            not_played = misfortunes.not_played(made)
        assert not_played == {"disk_full": "not on this machine", "log_full": "not on this machine"}
        told = as_json(ASKED, [replace(PLAYED, not_played=not_played)])
        assert told["not_played"] == not_played
        assert "| no log_full | not played: not on this machine |" in markdown(told)

    async def test_a_server_of_somebody_elses_is_left_alone(self, folder: Path, postgres_url: str) -> None:
        async with world(postgres_url, folder, by_socket=False) as made:
            assert self.names(made) == []
            assert "is not the storm's own" in misfortunes.not_played(made)["disk_full"]


class TestTable:
    def test_names_are_names(self) -> None:
        names = [one.name for one in MISFORTUNES]
        assert len(set(names)) == len(names)
        assert all(one.weight > 0 for one in MISFORTUNES)

    async def test_a_misfortune_that_there_is_not(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match="no misfortune fits plague; there are kill_worker, "):
            await passed_over(Asked(postgres=None, seed=1, seconds=1, only=["plague"]), json=True)
        assert os.listdir(folder) == []

    def test_the_command_says_so_too(self) -> None:
        answer = CliRunner().invoke(command_line(["drill"]), ["drill", "storm", "--only", "plague", "--json"])
        assert answer.exit_code == 2
        assert json.loads(answer.stderr)["error"]["code"] == "configuration_error"


OWN = """
import outlast

app = outlast.Outlast("own")
elsewhere = outlast.Outlast("own", database_url="sqlite:///precious.db")

@app.agent
async def sell(task, order):
    return order
"""


class TestOwnApp:
    """Somebody's own app under a storm."""

    @pytest.fixture(autouse=True)
    def own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own_app.py").write_text(OWN)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(app_module, "store_for", app_module.store_for)
        monkeypatch.setenv("OUTLAST_DATABASE_URL", "sqlite:///storm.db")

    @pytest.mark.parametrize(
        "options", [["--app", "own_app:app"], ["--app", "own_app:app", "--agent", "buy"]], ids=str
    )
    def test_the_command_says_what_it_needs(self, options: list[str]) -> None:
        answer = CliRunner().invoke(command_line(["drill"]), ["drill", "storm", "--json", *options])
        assert answer.exit_code == 2
        assert "and --agent with one of sell" in json.loads(answer.stderr)["error"]["message"]

    def test_it_is_put_on_the_storms_database_behind_a_witness(self) -> None:
        place = Place(keys="", plain="", app="own_app:app")
        seen: list[str] = []

        def witness(store: Any) -> Any:
            seen.append(store.url)
            return store

        assert app_of(place, witness).store.url == seen[0]
        assert seen[0].endswith("storm.db")

    def test_one_that_names_a_database_itself_is_not_let_near_it(self, tmp_path: Path) -> None:
        own = app_of(Place(keys="", plain="", app="own_app:elsewhere"), lambda store: store)
        with pytest.raises(ConfigurationError, match="leave it to OUTLAST_DATABASE_URL"):
            _ = own.store

    def test_it_is_played_again_by_one_line(self) -> None:
        theirs = Theirs(app="own_app:app", agent="sell", input={"order": "it's one"})
        line = replay(replace(PLAYED.plan, theirs=theirs))
        assert shlex.split(line)[-6:] == [
            "--app", "own_app:app", "--agent", "sell", "--input", '{"order": "it\'s one"}',
        ]  # fmt: skip


VERDICT = Verdict(
    violations=(), accepted=40, ended=Counter(succeeded=38, failed=4), in_time=75, calls=70, effects=60,
    histories=500, lost=9, takeovers_s=[1.0, 2.0, 4.0],
)  # fmt: skip
PLAYED = Played(
    plan=Plan(seed=7, seconds=30.0, timers="short", postgres="embedded"),
    store="PostgreSQL, embedded, over a socket",
    happened=Counter(kill_worker=3, freeze_api=2, database_fast=1),
    storm_s=30.0,
    calm_s=2.0,
    verdict=VERDICT,
)
ASKED = Asked(postgres="embedded", seed=1, seconds=60.0, wanted={"kills": 5})


class TestRun:
    def test_campaigns_follow_until_there_is_enough_of_everything(self) -> None:
        first = report._next(ASKED, [])
        assert (first.seed, first.seconds, first.wanted) == (1, 30.0, {"kills": 5})
        second = report._next(ASKED, [PLAYED])
        assert (second.seed, second.seconds, second.wanted) == (2, 30.0, {"kills": 2})
        assert report._left(ASKED, [PLAYED, PLAYED]) is False
        short_of_kills = replace(PLAYED, happened=Counter())
        assert report._left(ASKED, [PLAYED, short_of_kills]) is True
        assert report._next(ASKED, [PLAYED, short_of_kills]).seconds == 30.0

    def test_one_in_ten_has_the_timers_that_are_shipped(self) -> None:
        asked = replace(ASKED, seconds=10_000.0)
        turns = [report._next(asked, [PLAYED] * number) for number in range(20)]
        assert [plan.seed for plan in turns if plan.timers == "shipped"] == [9, 19]
        assert [plan.seconds for plan in turns if plan.timers == "shipped"] == [90.0, 90.0]
        # Played again by its seed alone, it is what it was.
        assert report._next(replace(asked, seed=9), []).timers == "shipped"
        assert report._next(replace(asked, timers="shipped"), []).timers == "shipped"

    def test_what_is_told(self) -> None:
        shipped = replace(PLAYED, plan=replace(PLAYED.plan, timers="shipped", seed=8), storm_s=10.0)
        told = as_json(ASKED, [PLAYED, shipped])
        assert (told["verdict"], told["store"], told["seeds"]) == ("pass", "PostgreSQL", [7, 8])
        assert told["misfortunes"] == {"kill_worker": 6, "freeze_api": 4, "database_fast": 2}
        assert told["families"] == {"kills": 6, "pauses": 4, "restarts": 2} | {
            one.family: 0 for one in MISFORTUNES if one.family not in ("kills", "pauses", "restarts")
        }
        assert told["tasks"] == {"succeeded": 76, "failed": 8}
        assert told["tasks_per_s"] == 3.8
        spread = {"tasks": 3, "p50": 2.0, "p99": 4.0}
        assert told["takeover_s"] == {"short": spread, "shipped": spread}
        page = markdown(told)
        assert "| takeover | p50 2.0 s, p99 4.0 s of 3, shipped timers |" in page
        assert "| `kill_worker` | 6 |" in page

    def test_what_is_told_of_a_broken_promise(self) -> None:
        broken = replace(VERDICT, violations=(("one_task_per_key", "two | tasks"),))
        told = as_json(ASKED, [replace(PLAYED, verdict=broken)])
        assert (told["verdict"], told["judges"]["one_task_per_key"]) == ("fail", 1)
        page = markdown(told)
        assert page.startswith("**Something was broken.**")
        assert "- `one_task_per_key`, seed 7: two \\| tasks" in page

    @pytest.mark.parametrize("workers", [1, 5])
    def test_a_campaign_has_as_many_workers_as_were_asked_for(self, tmp_path: Path, workers: int) -> None:
        relay: Any = SimpleNamespace(listens_on=1)
        made: Any = SimpleNamespace(tickets=(relay, relay), url="sqlite:///s.db", apis=(relay,))
        plan = replace(PLAYED.plan, workers=workers)
        posts = campaign._posts(plan, made, Fleet(tmp_path), tmp_path)
        assert [post.kind for post in posts.all] == [*["worker"] * workers, "settler", "api"]

    def test_a_campaign_is_played_again_by_one_line(self) -> None:
        assert replay(replace(PLAYED.plan, only=("kill_*",))) == (
            "outlast drill storm --seed 7 --seconds 30 --timers short --postgres embedded --only 'kill_*'"
        )


def answering(**answers: Answer) -> Any:
    """Make what a client is answered: what was prepared, by the end of the path; 403 by default."""

    async def ask(method: str, path: str, body: Any = None, **_: Any) -> Answer:
        return answers.get(path.rpartition("/")[2], Answer(status=403, body={"code": "not_allowed"}))

    return ask


class TestJudges:
    """Each judge of a campaign is asked, and each can find something."""

    @pytest.fixture
    async def world(self, tmp_path: Path) -> Any:
        url = f"sqlite:///{tmp_path / 'storm.db'}"
        await prepare(url)

        async def nothing() -> list[Any]:
            return []

        recorder = SimpleNamespace(tickets=nothing, log=nothing)
        return SimpleNamespace(
            direct=url, folder=tmp_path, log=nothing, apis=[], keys=recorder, plain=recorder
        )

    @pytest.fixture
    async def load(self, world: Any) -> AsyncIterator[Load]:
        made = Load(world, "storm", random.Random(1), most=1)
        yield made
        await made.close()

    async def judged(self, world: Any, load: Load, *troubles: str, **posts: Any) -> Verdict:
        of: Any = SimpleNamespace(**{"strange": [], "deaths": [], **posts})
        return await judge(world, load, of, troubles, span=(0.0, 1.0), judged_by_log=True)

    async def test_nothing_is_found_where_nothing_is(self, world: Any, load: Load) -> None:
        assert (await self.judged(world, load)).violations == []

    async def test_each_of_them_is_heard(self, world: Any, load: Load) -> None:
        leases = HistoryFile(world.folder / "leases-worker1-1", lambda: 1.0)
        for _ in range(2):
            leases.answered(leases.invoke("worker1", ("lease", "t/task"), "claim"), 1)
        leases.close()
        for register, asked, answer in (
            (("life", "key"), ("read", "task"), (1, "live")),
            (("decision", "question"), ("decide", "approve", "ann"), "reject"),
        ):
            load.history.answered(load.history.invoke("client", register, *asked), answer)
        load.tracked.append(Tracked("task", "key", "files", told=[[(2, "task.queued")]]))
        load.acknowledged.append(("cancel", "task"))
        load.wrong.append("a submit was answered 418: teapot")
        found = (await self.judged(world, load, "no rest", strange=["worker1-1 ended by itself"])).violations
        assert Counter(name for name, _ in found) == {
            "accepted_is_stored": 1,
            "histories_of_lease": 1,
            "histories_of_life": 1,
            "histories_of_decision": 1,
            "streams_are_gapless_prefixes": 1,
            "the_storm_itself": 4,
        }
        assert {name for name, _ in found} <= set(JUDGES)
        assert "tasks" in json.loads((world.folder / "dump.json").read_text())
        assert [text for name, text in found if name == "the_storm_itself"] == [
            "no rest",
            "worker1-1 ended by itself",
            "a submit was answered 418: teapot",
            "cancel of task was acknowledged, and is not there",
        ]

    def test_what_was_acknowledged_is_there(self) -> None:
        dump: Any = {
            "audit": [
                {"what": "cancel", "subject": "a"}, {"what": "settle:happened", "subject": "a:call"},
            ],
            "inbox": [
                {"kind": "signal", "task": "a", "key": "s1"}, {"kind": "child", "task": "a", "key": "s2"},
            ],
        }  # fmt: skip
        kept = [("cancel", "a"), ("settle", "a:call"), ("signal", "a s1")]
        lost = [("cancel", "b"), ("settle", "a:other"), ("signal", "a s2"), ("signal", "b s1")]
        assert forgotten(dump, [*kept, *kept]) == []
        assert forgotten(dump, [*kept, *lost]) == [
            f"{what} of {subject} was acknowledged, and is not there" for what, subject in lost
        ]

    async def test_answers_that_nobody_should_get_are_told(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = {
            "id": "task:call",
            "queue": {"needs_person": True},
            "idempotency_key": "task:call",
            "turn": 1,
        }
        places = Answer(status=200, body={"items": [place]})
        monkeypatch.setattr(load._client, "ask", answering(operations=places))
        load._healed = True
        load.tracked.append(Tracked("task", "key", "listens"))
        await load._submit_one(1, 1)
        await load._signal()
        await load._settle()
        while len(load.wrong) < 4:
            await load._meddle()
        load.tracked[0].ended = "failed"
        await load._meddle()
        await load._decide("ann", {"id": "question", "fingerprint": "f"})
        assert [text.partition(" was ")[0] for text in load.wrong] == [
            "a submit", "a signal", "a settlement", "a cancel", "a retry", "a decision",
        ]  # fmt: skip
        assert load.acknowledged == []

    @pytest.mark.parametrize(("effect", "verdict"), [("noted", "happened"), (None, "did_not_happen")])
    async def test_the_person_looks_at_what_was_done_and_not_at_tickets_alone(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch, effect: str | None, verdict: str
    ) -> None:
        place = {"id": "t:note", "queue": {"needs_person": True}, "idempotency_key": "t:note", "turn": 1}
        said = []

        async def ask(method: str, path: str, body: Any = None, **_: Any) -> Answer:
            if method == "POST":
                said.append(body["verdict"])
            return Answer(status=200, body={"items": [place]})

        async def log() -> list[Any]:
            return [SimpleNamespace(key="t:note", effect=effect)]

        monkeypatch.setattr(load._client, "ask", ask)
        world.log = log
        load._healed = True
        await load._settle()
        assert said == [verdict]

    async def test_what_is_acknowledged_is_held_against_the_store(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = {
            "id": "task:call",
            "queue": {"needs_person": True},
            "idempotency_key": "task:call",
            "turn": 1,
        }
        answers = {
            "operations": Answer(status=200, body={"items": [place]}),
            "settle": Answer(status=200, body={}),
            "news": Answer(status=202, body={}),
            "cancel": Answer(status=202, body={}),
        }
        monkeypatch.setattr(load._client, "ask", answering(**answers))
        load._healed = True
        load.tracked.append(Tracked("task", "key", "listens"))
        await load._signal()
        await load._settle()
        while len(load.acknowledged) < 3:
            await load._meddle()
        assert load.acknowledged == [("signal", "task signal-1"), ("settle", "task:call"), ("cancel", "task")]
        assert load.wrong == []

    async def test_a_client_that_fails_is_a_trouble_of_the_storm(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def submitted(client: int, number: int) -> Tracked:
            load.calm_down()
            return Tracked("task", "key", "files")

        async def follows(tracked: Tracked) -> None:
            raise ValueError("no number")

        monkeypatch.setattr(load, "_submit_one", submitted)
        monkeypatch.setattr(load, "_follow", follows)
        monkeypatch.setattr(load._chance, "random", lambda: 0.0)
        storm = self.storm(world, load)
        await storm._guard(load._submit(1))
        await storm._guard(follows(Tracked("task", "key", "files")))
        assert storm._troubles == ["the storm itself failed: ValueError: no number"] * 2

    async def test_a_misfortune_without_an_end_is_a_trouble(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def never(fate: Fate) -> None:
            await asyncio.Event().wait()

        stuck = Misfortune(name="stuck", family="disk", weight=1.0, fits=lambda _: True, befall=never)
        monkeypatch.setattr(campaign, "MISFORTUNES", (stuck,))
        monkeypatch.setattr(campaign, "PATIENCE_S", 0.01)
        storm = self.storm(world, load)
        await storm._blow()
        assert storm._troubles == ["stuck never came to its end"]

    async def test_a_world_that_does_not_come_to_rest_is_a_trouble(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(campaign, "PATIENCE_S", 0.3)
        storm = self.storm(world, load)
        await storm._rest()
        assert storm._troubles == []
        load.tracked.append(Tracked("task", "key", "files"))
        await storm._rest()
        [trouble] = storm._troubles
        assert trouble.startswith("the world did not come to rest")

    async def test_there_is_no_rest_while_a_submit_is_on_its_way(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seed 3047 on PostgreSQL: the database restarted, three submits waited for it, and the world was
        stopped between their commits and the claims."""
        looks, answered = asyncio.Queue[str](), asyncio.Event()

        async def ask(method: str, path: str, *_: Any, **__: Any) -> Answer:
            await answered.wait()
            return Answer(status=202, body={"id": "task"})

        monkeypatch.setattr(load._client, "ask", ask)
        submitting = asyncio.create_task(load._submit(1))
        storm = self.storm(world, load)
        monkeypatch.setattr(storm, "_tell", lambda what, share: looks.put_nowait(what))
        resting = asyncio.create_task(storm._rest())
        await looks.get()
        load.calm_down()
        again = asyncio.create_task(looks.get())
        await asyncio.wait({resting, again}, return_when=asyncio.FIRST_COMPLETED)
        assert not resting.done()
        answered.set()
        await submitting
        load.tracked[0].ended = "succeeded"
        await resting
        assert storm._troubles == []

    async def test_a_world_that_does_not_heal_is_judged_all_the_same(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing(*_: Any) -> list[str]:
            return []

        async def too_long() -> None:
            raise TimeoutError

        world.shown, world.relays, world.server = "SQLite", [], None
        world.keys.plan = world.plain.plan = lambda **_: nothing()
        posts: Any = SimpleNamespace(
            all=[], watch=nothing, stop=nothing, tell=nothing, settle_down=too_long, strange=[], deaths=[],
            standing=lambda *_: [],
        )  # fmt: skip
        monkeypatch.setattr(campaign, "MISFORTUNES", ())
        monkeypatch.setattr(campaign, "not_played", lambda _: {})
        monkeypatch.setattr(load, "works", lambda: [])
        plan = replace(PLAYED.plan, seconds=0.01)
        storm: Any = campaign._Storm(plan, world, posts, load, random.Random(1), lambda what, share: None)
        played = await storm.play()
        assert played.verdict.violations == [("the_storm_itself", "the world did not heal: TimeoutError: ")]

    async def test_a_database_that_does_not_come_back_is_a_trouble(
        self, world: Any, load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(campaign, "PATIENCE_S", 0.3)
        world.direct = "postgresql://nobody@127.0.0.1:9/gone"
        world.server = SimpleNamespace(log="PANIC: no room")
        storm = self.storm(world, load)
        await storm._rest()
        assert storm._troubles == ["the database did not come back"]
        await storm._keep_log()
        assert (tmp_path / "postgres.log").read_text() == "PANIC: no room"
        with pytest.raises(StoreUnavailable):
            await self.judged(world, load, *storm._troubles)
        posts: Any = SimpleNamespace(strange=["api1 ended by itself"])
        assert unjudged(load, posts, storm._troubles).violations == [
            ("the_storm_itself", "the database did not come back"),
            ("the_storm_itself", "api1 ended by itself"),
        ]

    def storm(self, world: Any, load: Load) -> Any:
        """Make a storm of a moment over nobody."""
        plan = replace(PLAYED.plan, seconds=0.01)
        posts: Any = SimpleNamespace()
        return campaign._Storm(plan, world, posts, load, random.Random(1), lambda what, share: None)

    async def test_whoever_ends_by_itself_is_told_and_another_comes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        posts = Posts(Fleet(tmp_path), Place(keys="", plain=""), {}, workers=1, apis=[], timers="short")
        gone: Any = SimpleNamespace(running=False, ending="exit code 3", last_words="it broke")
        posts.all[0].process = gone
        manned = asyncio.Event()

        async def man(post: Post) -> None:
            post.process = None
            manned.set()

        monkeypatch.setattr(posts, "man", man)
        watching = asyncio.create_task(posts.watch())
        await asyncio.wait_for(manned.wait(), 20)
        watching.cancel()
        assert posts.strange == ["worker1-0 ended by itself: exit code 3; it broke"]


async def test_the_last_words_of_a_process_are_the_error_that_ended_it(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        process = fleet.start("gone", "there.is.no.such.module")
        assert await process.exited() == 1
        assert "No module named 'there'" in process.last_words


def test_a_transaction_that_may_still_write_holds_a_promotion_up() -> None:
    async def look(server: EmbeddedPostgres) -> list[bool]:
        connection = await asyncpg.connect(server.url)
        looks = [await asyncio.to_thread(misfortunes._at_rest, server)]
        for beginning in ("select 1", "select pg_current_xact_id()"):
            async with connection.transaction():
                await connection.execute(beginning)
                looks.append(await asyncio.to_thread(misfortunes._at_rest, server))
        await connection.close()
        return [*looks, await asyncio.to_thread(misfortunes._at_rest, server)]

    with EmbeddedPostgres(durable=False) as server:
        assert asyncio.run(look(server)) == [True, False, False, True]


def test_takeovers_are_counted_from_the_death_of_the_worker() -> None:
    def attempt(task: str, epoch: int, worker: str, started_s: float, end: str) -> dict[str, Any]:
        return {
            "tenant": "t", "task": task, "epoch": epoch, "worker": worker, "end": end,
            "started_at": int(started_s * 1_000_000),
        }  # fmt: skip

    dump = {
        "attempts": [
            attempt("a", 2, "worker2-1", 13.5, "succeeded"),
            attempt("a", 1, "worker1-1", 9.0, "lost"),
            attempt("b", 1, "worker1-1", 9.0, "suspended"),
            attempt("b", 2, "worker1-1", 9.5, "lost"),
            attempt("b", 4, "worker1-2", 12.0, "succeeded"),
            attempt("c", 1, "worker9-1", 9.0, "lost"),
            attempt("c", 2, "worker2-1", 11.0, "succeeded"),
        ]
    }
    assert takeovers(dump, [Death(worker="worker1-1", at=10.0)]) == [2.0, 3.5]


@pytest.mark.parametrize(
    ("head", "duty"),
    [
        (b"\0\0\0\x50\0\x03\0\0user\0me\0application_name\0outlast flush\0timezone\0UTC\0\0", "flush"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", ""),
        (b"application_name\0psql\0", ""),
    ],
)
def test_a_connection_is_known_by_its_duty(head: bytes, duty: str) -> None:
    assert duty_of(head) == duty
