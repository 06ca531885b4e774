"""Scripts in scopes of the ledger alone: killed, frozen, two at once, and what a person has to say."""

from __future__ import annotations

from typing import Any

from outlast.drills.otherside.agents import SHORT
from outlast.drills.otherside.scene import Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.engine.alone import task_of
from outlast.errors import ApprovalPending, OutlastError
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.probes import Trigger

__all__ = ["approved_later", "frozen_block", "killed_before_intent", "killed_before_outcome", "settled_later"]
__all__ += ["two_at_once"]


async def _enter(scene: Scene, cell: str, tool: str) -> str:
    """Enter a cell's scope from here and make its call; answer what came of it."""
    try:
        async with scene.app.ledger(cell, settings=SHORT, timeout=60) as ledger:
            await ledger.call(tool, invoice_of(cell), key="file")
    except OutlastError as error:
        return error.code
    return "filed"


async def _attempts(scene: Scene, cell: str) -> list[str]:
    task = task_of(DEFAULT_TENANT, cell)
    return [one.end or "running" for one in await scene.app.attempts(task)]


def _died(process: Any) -> Check:
    return Check(what="how the script ended", expected="SIGKILL", seen=process.ending)


async def killed_before_intent(scene: Scene, cell: str) -> Played:
    """Kill a script before its intent, and enter its scope again."""
    script = await scene.script(cell, Trigger(point="effects.before_intent", action="kill"), tool="manual")
    await script.exited()
    told = [await _enter(scene, cell, "manual") for _ in range(2)]
    attempts = await _attempts(scene, cell)
    return Played(
        cell=cell,
        told=told,
        checks=(
            _died(script),
            Check(what="its attempts", expected=["lost", "suspended", "suspended"], seen=attempts),
        ),
    )


async def killed_before_outcome(scene: Scene, cell: str) -> Played:
    """Kill a script when the ticket is filed and nothing of it is on disk, and enter its scope again."""
    script = await scene.script(
        cell, Trigger(point="effects.before_outcome", action="kill"), tool="queryable"
    )
    await script.exited()
    told = [await _enter(scene, cell, "queryable") for _ in range(2)]
    return Played(cell=cell, told=told, checks=(_died(script),))


async def settled_later(scene: Scene, cell: str) -> Played:
    """Kill a script in a call that nobody can be asked about; a person says what became of it."""
    script = await scene.script(cell, Trigger(point="effects.before_outcome", action="kill"), tool="manual")
    await script.exited()
    told = [await _enter(scene, cell, "manual") for _ in range(2)]
    (ticket,) = [one for one in await scene.recorder.tickets() if one["invoice"] == invoice_of(cell)]
    await scene.app.operations.settle(
        f"{task_of(DEFAULT_TENANT, cell)}:file",
        "happened",
        reason=f"{ticket['id']} is on the ticket service's list",
        by="drill",
        result=ticket,
    )
    told.append(await _enter(scene, cell, "manual"))
    return Played(
        cell=cell,
        told=told,
        checks=(
            _died(script),
            Check(what="in turn", expected=["unsettled", "unsettled", "filed"], seen=told),
        ),
    )


async def two_at_once(scene: Scene, cell: str) -> Played:
    """Enter a scope while another process is in it: one is refused, one waits until that one is killed."""
    first = await scene.script(cell, tool="manual", stays=True)
    filed = await first.says("filed")
    refused = await scene.script(cell, tool="manual", timeout=0)
    code = (await refused.says("refused")).data["code"]
    waiting = await scene.script(cell, tool="manual", timeout=60)
    first.kill()
    second = await waiting.says("filed")
    # It leaves its scope before the stage is cleared.
    await waiting.exited()
    return Played(
        cell=cell,
        told=["filed", code, "filed"],
        checks=(
            Check(what="the ticket that both got", expected=filed.data["ticket"], seen=second.data["ticket"]),
        ),
    )


async def frozen_block(scene: Scene, cell: str) -> Played:
    """Freeze a script that is in its scope and has not called, until another has, and thaw it."""
    frozen = await scene.script(cell, Trigger(point="effects.before_intent", action="freeze"), tool="manual")
    await frozen.stopped()
    told = [await _enter(scene, cell, "manual")]
    frozen.thaw()
    told.append((await frozen.says("refused")).data["code"])
    await frozen.exited()
    return Played(cell=cell, told=told)


async def approved_later(scene: Scene, cell: str) -> Played:
    """Make a call that people have to agree to, whose script ends meanwhile."""
    try:
        async with scene.app.ledger(cell, settings=SHORT) as ledger:
            await ledger.call("asked", invoice_of(cell), key="file")
        told = ["filed"]
    except ApprovalPending as pending:
        told = [pending.code]
        asked = await scene.app.approvals.get(pending.approval)
        await scene.app.approvals.decide(
            asked.id, "approve", fingerprint=asked.fingerprint, by="boss", reason="agreed"
        )
    told += [await _enter(scene, cell, "asked") for _ in range(2)]
    return Played(
        cell=cell,
        told=told,
        checks=(Check(what="in turn", expected=["approval_pending", "filed", "filed"], seen=told),),
    )
