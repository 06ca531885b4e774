"""Fifty decisions at once, by API, link and library; one of two API processes may be killed meanwhile."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx2

from outlast.drills.fleet import Process
from outlast.drills.people.scene import Played, Scene
from outlast.drills.stage import Check
from outlast.errors import ApprovalConflict
from outlast.views import ApprovalView

__all__ = ["fifty_decisions"]

_PEOPLE: Final = 50
_WAYS: Final = ("api", "link", "python")
_FORM = re.compile(r'name="form" value="([^"]+)"')
_STATE = re.compile(r"is (approved|used|rejected), by (person:\S+?)[.<]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What somebody was told. kind: ``won``, ``lost`` (to ``to``), or ``lost with the process``."""

    by: str
    verdict: str
    kind: str
    to: str = ""


async def fifty_decisions(scene: Scene, cell: str, rounds: int = 1) -> Played:
    """Half of them agree, half say no; exactly one counts. rounds: how often; in every second one, the first
    included, one of the API processes is killed in the middle of it."""
    keys = ",".join(
        f"default:key-{number}-{scene.chance.random()}:p{number}:approver" for number in range(_PEOPLE)
    )
    stays, dies = (_serve(scene, name, keys) for name in ("api A", "api B"))
    tasks: list[str] = []
    checks: list[Check] = []
    calls = 0
    for number in range(rounds):
        if not dies.running:
            dies = _serve(scene, "api B", keys)
        task = await scene.call(cell, "file", number=None if rounds == 1 else number)
        played = await _round(scene, cell, task, keys, stays, dies, kills=number % 2 == 0)
        tasks.append(task)
        calls += played.calls or 0
        checks += played.checks
    return Played(cell=cell, tasks=tuple(tasks), calls=calls, checks=tuple(checks))


async def _round(
    scene: Scene, cell: str, task: str, keys: str, stays: Process, dies: Process, *, kills: bool
) -> Played:
    (asked,) = await scene.asked(task)
    urls = [await scene.listens(server) for server in (stays, dies)]
    secrets = [entry.split(":")[1] for entry in keys.split(",")]
    async with httpx2.AsyncClient(trust_env=False, timeout=20.0) as client:
        people = [
            _Person(scene, client, asked, number, urls[number % 2], secrets[number])
            for number in range(_PEOPLE)
        ]
        for person in people:
            await person.open()
        scene.chance.shuffle(people)
        deciding = [asyncio.create_task(person.decide()) for person in people]
        if kills:
            # Half of the API processes, in the middle of it.
            await asyncio.sleep(scene.chance.uniform(0.0, 0.05))
            dies.kill()
        said = await asyncio.gather(*deciding)
        await scene.end(task)
        (left,) = await scene.approvals(task)
        winner = next((one for one in people if f"person:{one.name}" == left.decided_by), None)
        again = None if winner is None else await winner.decide(urls[0])
    if kills:
        await dies.exited()
    return await _judged(scene, cell, task, said, left, again, dies if kills else None)


async def _judged(
    scene: Scene,
    cell: str,
    task: str,
    said: list[_Said],
    left: ApprovalView,
    again: _Said | None,
    killed: Process | None,
) -> Played:
    agreed = left.state == "used"
    votes = [(vote.who, vote.verdict) for vote in await scene.app.approvals.votes(left.id)]
    won = {one.by for one in said if one.kind == "won"}
    lost_to = {one.to for one in said if one.kind == "lost"}
    woken = await scene.events(task, "task.woken")
    (told,) = await scene.told(task)
    denied = {"code": "approval_denied", "reason": "person"}
    silent = () if killed is None else ("lost with the process",)
    return Played(
        cell=cell,
        tasks=(task,),
        calls=int(agreed),
        checks=(
            Check(
                what="how one API process ended",
                expected="SIGKILL",
                seen="SIGKILL" if killed is None else killed.ending,
            ),
            Check(what="the decision", expected=True, seen=left.state in ("used", "rejected")),
            Check(
                what="votes",
                expected=[(left.decided_by, "approve" if agreed else "reject")],
                seen=votes,
            ),
            # The winner may have been told by the process that was killed, and so not at all.
            Check(what="who else was told that they decided", expected=set(), seen=won - {left.decided_by}),
            Check(what="whom the others lost to", expected={left.decided_by}, seen=lost_to),
            Check(
                what="those who were told neither, but by a dead process",
                expected=0,
                seen=sum(one.kind not in ("won", "lost", *silent) for one in said),
            ),
            Check(what="the winner again", expected="won", seen=None if again is None else again.kind),
            Check(what="times that it was woken", expected=1, seen=len(woken)),
            Check(what="told", expected="118.50" if agreed else denied, seen=told),
        ),
    )


def _serve(scene: Scene, name: str, keys: str) -> Process:
    return scene.fleet.start(
        name,
        "outlast",
        "serve",
        "outlast.drills.people.served:app",
        "--port",
        "0",
        "--json",
        environ={**scene.environ, "OUTLAST_API_KEYS": keys},
    )


class _Person:
    """Somebody who decides once, in one of three ways. number: says which way, and what they think."""

    def __init__(
        self,
        scene: Scene,
        client: httpx2.AsyncClient,
        asked: ApprovalView,
        number: int,
        url: str,
        key: str,
    ) -> None:
        self.name = f"p{number}"
        self.verdict: Literal["approve", "reject"] = "approve" if number % 4 < 2 else "reject"
        self.way = _WAYS[number % 3]
        self._scene, self._client, self._asked = scene, client, asked
        self._url, self._key = url, key
        self._token = self._form = ""

    async def open(self) -> None:
        """Get ready: open the link that was sent."""
        if self.way != "link":
            return
        made = await self._scene.app.approvals.link(self._asked.id, to=self.name, by="drill")
        self._token = made.token
        page = await self._client.get(f"{self._url}/approve/{self._token}")
        found = _FORM.search(page.text)
        assert found is not None, page.text
        self._form = found[1]

    async def decide(self, url: str | None = None) -> _Said:
        """Decide; url: instead of where they went first."""
        try:
            match self.way:
                case "api":
                    return await self._by_api(url or self._url)
                case "link":
                    return await self._by_link(url or self._url)
                case _:
                    return await self._by_python()
        except httpx2.TransportError:
            return self._said("lost with the process")

    async def _by_api(self, url: str) -> _Said:
        answer = await self._client.post(
            f"{url}/v1/approvals/{quote(self._asked.id, safe='')}/decision",
            json={"verdict": self.verdict, "fingerprint": self._asked.fingerprint},
            headers={"Authorization": f"Bearer {self._key}"},
        )
        body: dict[str, Any] = answer.json()
        if answer.status_code == 200:
            return self._said("won")
        if answer.status_code == 409:
            return self._said("lost", str(body["approval"]["decided_by"]))
        return self._said(f"{answer.status_code} {body.get('code')}")

    async def _by_link(self, url: str) -> _Said:
        answer = await self._client.post(
            f"{url}/approve/{self._token}", data={"form": self._form, "verdict": self.verdict}
        )
        if answer.status_code == 303:
            return self._said("won")
        found = _STATE.search(answer.text)
        if answer.status_code == 409 and found is not None:
            return self._said("lost", found[2])
        return self._said(f"{answer.status_code} {answer.text[:300]}")

    async def _by_python(self) -> _Said:
        try:
            await self._scene.decide(self._asked, self.verdict, by=self.name)
        except ApprovalConflict as error:
            return self._said("lost", error.by)
        return self._said("won")

    def _said(self, kind: str, to: str = "") -> _Said:
        return _Said(by=f"person:{self.name}", verdict=self.verdict, kind=kind, to=to)
