"""Sandboxes before the gateway: with tokens that are over, altered, or for something else.

The tokens are those of real calls of a worker; what a thief would change of one is signed with the app's own
secret, so that nothing but what the token says is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx2

from outlast import tokens
from outlast.drills import crew
from outlast.drills.otherside.agents import AMOUNT, HOST, REBOUND, done_of, pass_of
from outlast.drills.otherside.scene import STEADY, WORKER, Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.tools.passing import TOKEN_HEADER, Pass

__all__ = ["altered", "cancelled", "dead_lease", "expired", "forbidden_host", "frozen_sender", "goes_through"]
__all__ += ["no_approval", "old_epoch", "other_fingerprint", "other_tenant", "rebound"]

PRIVATE: Final = "10.11.12.13"


class Names:
    """What the drill's gateway is answered when it looks a name up."""

    def __init__(self) -> None:
        self._asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Look a name up."""
        if host == REBOUND:
            self._asked += 1
            return ["127.0.0.1" if self._asked == 1 else PRIVATE]
        if host == HOST:
            return ["127.0.0.1"]
        raise OSError("no such host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandboxed:
    """A call that runs, and the token of its sandbox."""

    task: str
    token: str
    epoch: int
    said: Pass


async def _called(scene: Scene, cell: str, pool: str = STEADY) -> Sandboxed:
    """Have a worker make a call that a sandbox is to send for."""
    if pool == STEADY:
        await scene.steady()
    handle = await scene.app.submit("sandboxed", {"invoice": invoice_of(cell)}, pool=pool)
    place = pass_of(scene.folder, invoice_of(cell))

    async def look() -> dict[str, Any] | None:
        return json.loads(place.read_text()) if place.exists() else None

    found = await scene.until(look, "no token was ever made")
    parts = tokens.read(scene.app.secret, "gateway", found["token"], now=0)
    return Sandboxed(task=handle.id, token=found["token"], epoch=found["epoch"], said=Pass.of(parts))


def _url(scene: Scene, host: str = HOST) -> str:
    return f"{scene.gateway}/http/{host}:{scene.recorder.port}/tickets"


async def _send(scene: Scene, cell: str, token: str, *, host: str = HOST) -> str:
    """Send as a sandbox does; answer what it is told."""
    body = {"invoice": invoice_of(cell), "amount": AMOUNT}
    async with httpx2.AsyncClient(timeout=crew.PATIENCE_S, trust_env=False) as client:
        answer = await client.post(_url(scene, host), json=body, headers={TOKEN_HEADER: token})
    verdict = answer.headers.get("outlast-gateway")
    return str(answer.status_code) if verdict == "passed" else str(answer.json()["code"])


async def _end(scene: Scene, cell: str, call: Sandboxed, told: Sequence[str]) -> str:
    """Let the sandbox end, and the task with it; answer the task's end."""
    done = done_of(scene.folder, invoice_of(cell))
    mark = done.with_name(f"{done.name}.new")
    mark.write_text("filed" if "201" in told else "refused")
    mark.rename(done)
    return (await scene.app.wait(call.task, timeout=crew.PATIENCE_S)).state


async def _played(scene: Scene, cell: str, call: Sandboxed, told: Sequence[str], *checks: Check) -> Played:
    end = Check(what="its task's end", expected="succeeded", seen=await _end(scene, cell, call, told))
    return Played(cell=cell, told=told, checks=(*checks, end))


async def goes_through(scene: Scene, cell: str) -> Played:
    """Send for a call that runs."""
    call = await _called(scene, cell)
    told = [await _send(scene, cell, call.token)]
    sent = [one for one in await scene.recorder.log() if one.body and one.body["invoice"] == invoice_of(cell)]
    keys = [one.key for one in sent]
    return await _played(
        scene, cell, call, told, Check(what="its key", expected=[f"{call.task}:act-1"], seen=keys)
    )


async def _forged(scene: Scene, cell: str, change: Callable[[Pass], Pass]) -> Played:
    call = await _called(scene, cell)
    token = tokens.sign(scene.app.secret, "gateway", change(call.said).parts())
    return await _played(scene, cell, call, [await _send(scene, cell, token)])


async def other_fingerprint(scene: Scene, cell: str) -> Played:
    """Send with a token for other parameters than were decided on."""
    return await _forged(scene, cell, lambda said: replace(said, decision="sha256:" + "0" * 64))


async def no_approval(scene: Scene, cell: str) -> Played:
    """Send under a decision that nobody made."""
    return await _forged(scene, cell, lambda said: replace(said, approval=1))


async def other_tenant(scene: Scene, cell: str) -> Played:
    """Send with the token of another tenant."""
    return await _forged(scene, cell, lambda said: replace(said, tenant="globex"))


async def expired(scene: Scene, cell: str) -> Played:
    """Send with a token whose time is over by the database's clock."""
    now = (await scene.app.store.health()).now
    return await _forged(scene, cell, lambda said: replace(said, expires_at=now))


async def altered(scene: Scene, cell: str) -> Played:
    """Change one letter of a token, in every part of it."""
    call = await _called(scene, cell)
    told = []
    for place in (0, len(call.token) // 2, len(call.token) - 2):
        letter = "A" if call.token[place] != "A" else "B"
        told.append(await _send(scene, cell, call.token[:place] + letter + call.token[place + 1 :]))
    return await _played(scene, cell, call, told)


async def forbidden_host(scene: Scene, cell: str) -> Played:
    """Send to where neither the operator nor the token lets anybody go."""
    call = await _called(scene, cell)
    hosts = ("elsewhere.drill", "127.0.0.1", "169.254.169.254")
    return await _played(
        scene, cell, call, [await _send(scene, cell, call.token, host=host) for host in hosts]
    )


async def rebound(scene: Scene, cell: str) -> Played:
    """Send twice to a name that leads to a private address the second time."""
    call = await _called(scene, cell)
    told = [await _send(scene, cell, call.token, host=REBOUND) for _ in range(2)]
    return await _played(
        scene, cell, call, told, Check(what="in turn", expected=["201", "forbidden_address"], seen=told)
    )


async def cancelled(scene: Scene, cell: str) -> Played:
    """Send for a task that is being cancelled."""
    call = await _called(scene, cell)
    reply = await scene.app.cancel(call.task, reason="not wanted", by="drill")
    told = [await _send(scene, cell, call.token)]
    return Played(
        cell=cell,
        told=told,
        checks=(
            Check(what="the answer to the cancel", expected="requested", seen=reply.kind),
            Check(what="its task's end", expected="cancelled", seen=await _end(scene, cell, call, told)),
        ),
    )


async def _doomed(scene: Scene, cell: str) -> tuple[Any, Sandboxed]:
    worker = await crew.start(scene.fleet, WORKER, f"doomed-{cell}", (cell,), "doomed", environ=scene.environ)
    return worker, await _called(scene, cell, cell)


async def _give_up(scene: Scene, call: Sandboxed) -> None:
    """End a task whose call nobody can settle; the call stays in the reconciliation queue."""
    await scene.app.cancel(call.task, reason="its sandbox was refused", by="drill")
    await scene.app.wait(call.task, timeout=crew.PATIENCE_S)


async def dead_lease(scene: Scene, cell: str) -> Played:
    """Kill the worker; its sandbox sends when nobody has taken the task over."""
    worker, call = await _doomed(scene, cell)
    worker.kill()
    await worker.exited()

    async def look() -> str | None:
        view = await scene.app.get(call.task)
        return None if view.state == "running" else view.state

    await scene.steady()
    state = await scene.until(look, "the lease never ran out")
    told = [await _send(scene, cell, call.token)]
    await _give_up(scene, call)
    return Played(
        cell=cell,
        told=told,
        checks=(
            Check(what="how the worker ended", expected="SIGKILL", seen=worker.ending),
            Check(what="its task", expected="queued", seen=state),
        ),
    )


async def _taken_over(scene: Scene, cell: str, call: Sandboxed) -> None:
    """Have a successor claim the task."""
    await crew.start(scene.fleet, WORKER, f"heir-{cell}", (cell,), "steady", environ=scene.environ)

    async def look() -> bool | None:
        attempts = await scene.app.attempts(call.task)
        return True if len(attempts) > 1 else None

    await scene.until(look, "nobody took the task over")


async def old_epoch(scene: Scene, cell: str) -> Played:
    """Kill the worker; its sandbox sends when a successor has the task."""
    worker, call = await _doomed(scene, cell)
    worker.kill()
    await worker.exited()
    await _taken_over(scene, cell, call)
    told = [await _send(scene, cell, call.token)]
    await _give_up(scene, call)
    return Played(cell=cell, told=told)


async def frozen_sender(scene: Scene, cell: str) -> Played:
    """Freeze the sandbox at its send, kill its worker, let a successor take over, and thaw the sandbox."""
    worker, call = await _doomed(scene, cell)
    body = {"invoice": invoice_of(cell), "amount": AMOUNT}
    given = json.dumps({"url": _url(scene), "token": call.token, "body": body})
    sender = scene.fleet.start(f"sandbox-{cell}", "outlast.drills.otherside.sandbox", given)
    await sender.stopped()
    worker.kill()
    await worker.exited()
    await _taken_over(scene, cell, call)
    sender.thaw()
    told = [(await sender.says("answered")).data["told"]]
    await _give_up(scene, call)
    return Played(cell=cell, told=told)
