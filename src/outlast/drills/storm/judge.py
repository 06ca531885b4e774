"""Judging a campaign: every checker, every history, and what nobody should have been told."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outlast.app import Outlast
from outlast.drills.storm.load import Load
from outlast.drills.storm.posts import Death, Posts
from outlast.drills.storm.world import World
from outlast.testing.checkers import CHECKERS, check_all
from outlast.testing.checkers.seen import Dump
from outlast.testing.history import MODELS, judge_streams, read
from outlast.testing.history import judge as judge_histories

__all__ = ["JUDGES", "Verdict", "judge", "unjudged"]

JUDGES = (
    *CHECKERS,
    *(f"histories_of_{kind}" for kind in MODELS),
    "streams_are_gapless_prefixes",
    "the_storm_itself",
)
"""Everyone who is asked. The last says what clients should never have been told, what was acknowledged and is
not there, who ended by itself, and what did not come to rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a campaign came to.

    violations: text by judge. accepted: tasks that were acknowledged. ended: tasks of all kinds by how.
    in_time: ends of tasks during the storm. calls, effects: on the other side. histories: operations in them.
    lost: questions of clients that were never answered. takeovers_s: from the death of a worker to the moment
    at which a task of it was begun by another.
    """

    violations: Sequence[tuple[str, str]]
    accepted: int
    ended: Counter[str]
    in_time: int
    calls: int
    effects: int
    histories: int
    lost: int
    takeovers_s: Sequence[float]


async def judge(
    world: World,
    load: Load,
    posts: Posts,
    troubles: Sequence[str],
    *,
    span: tuple[float, float],
    judged_by_log: bool,
) -> Verdict:
    """Judge what is left when every process has stopped.

    troubles: what else went wrong. span: when the storm began and ended, in seconds since 1970.
    judged_by_log: whether effects are in the ticket services' logs; those of somebody's own tools are not.
    """
    app = Outlast("storm", database_url=world.direct)
    await app.open()
    try:
        dump = await app.store.dump()
    finally:
        await app.close()
    log = await world.log()
    leases = [one for path in sorted(world.folder.glob("leases-*")) for one in read(path)]
    found = [
        *check_all(
            dump,
            accepted=load.accepted,
            recorder=[asdict(call) for call in log] if judged_by_log else None,
            quiet=not troubles,
        ),
        *judge_histories([*leases, *load.history]),
        *judge_streams({one.task: one.told for one in load.tracked if one.told}, _kept(dump)),
    ]
    violations = [(one.promise, one.text) for one in found]
    itself = (*troubles, *posts.strange, *load.wrong, *forgotten(dump, load.acknowledged))
    violations += [("the_storm_itself", text) for text in itself]
    if violations:
        # The database goes with the world.
        (world.folder / "dump.json").write_text(json.dumps(dump, indent=1, default=str))
    return Verdict(
        violations=violations,
        accepted=len(load.tracked),
        ended=Counter(str(row["state"]) for row in dump["tasks"]),
        in_time=sum(span[0] <= row["ended_at"] / 1_000_000 < span[1] for row in dump["results"]),
        calls=len(log),
        effects=sum(call.effect is not None for call in log),
        histories=len(leases) + len(load.history),
        lost=load.lost,
        takeovers_s=takeovers(dump, posts.deaths),
    )


def unjudged(load: Load, posts: Posts, troubles: Sequence[str]) -> Verdict:
    """Answer what a campaign came to whose store cannot be asked any more: its troubles alone."""
    itself = (*troubles, *posts.strange, *load.wrong)
    return Verdict(
        violations=[("the_storm_itself", text) for text in itself],
        accepted=len(load.tracked),
        ended=Counter(),
        in_time=0,
        calls=0,
        effects=0,
        histories=len(load.history),
        lost=load.lost,
        takeovers_s=(),
    )


def forgotten(dump: Dump, acknowledged: Iterable[tuple[str, str]]) -> list[str]:
    """Answer what was acknowledged and is not there. acknowledged: see ``Load``."""
    kept = {(row["what"].partition(":")[0], row["subject"]) for row in dump["audit"]}
    kept |= {("signal", f"{row['task']} {row['key']}") for row in dump["inbox"] if row["kind"] == "signal"}
    return [
        f"{what} of {subject} was acknowledged, and is not there"
        for what, subject in dict.fromkeys(acknowledged)
        if (what, subject) not in kept
    ]


def _kept(dump: Dump) -> dict[str, list[tuple[int, str]]]:
    kept: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in sorted(dump["events"], key=lambda row: int(row["number"])):
        kept[row["task"]].append((row["number"], row["kind"]))
    return kept


def takeovers(dump: Dump, deaths: Sequence[Death]) -> list[float]:
    """Answer how many seconds after the death of its worker each task that it lost was begun by another."""
    died = {death.worker: death.at for death in deaths}
    attempts: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in dump["attempts"]:
        attempts[row["tenant"], row["task"]].append(row)
    found = []
    for rows in attempts.values():
        rows.sort(key=lambda row: int(row["epoch"]))
        for one, following in itertools.pairwise(rows):
            if one["end"] == "lost" and one["worker"] in died:
                found.append(following["started_at"] / 1_000_000 - died[one["worker"]])
    return sorted(seconds for seconds in found if seconds >= 0)
