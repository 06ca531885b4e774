"""Standing rules against decisions on one call, and rules that are withdrawn while calls wait."""

from __future__ import annotations

from typing import Literal

from outlast.drills.people.scene import AMOUNT, BOSS, Played, Scene
from outlast.drills.stage import Check

__all__ = ["approved_although", "rejected_although", "rule_withdrawn"]

_DENIED = {"code": "approval_denied", "reason": "person"}


async def _rule(scene: Scene, tool: str, verdict: Literal["allow", "deny"]) -> int:
    return await scene.app.rules.put(
        tool, verdict, reason="standing", by=BOSS, bounds={"amount": {"max": 1000}}
    )


async def rejected_although(scene: Scene, cell: str) -> Played:
    """A rule allows all calls of a tool; a person says no to this one."""
    return await _although(scene, cell, "file_or_not", "allow", "reject")


async def approved_although(scene: Scene, cell: str) -> Played:
    """A rule denies all calls of a tool; a person agrees to this one."""
    return await _although(scene, cell, "file_although", "deny", "approve")


async def _although(
    scene: Scene, cell: str, tool: str, rule: Literal["allow", "deny"], verdict: Literal["approve", "reject"]
) -> Played:
    task = await scene.call(cell, tool)
    (asked,) = await scene.asked(task)
    await _rule(scene, tool, rule)
    await scene.decide(asked, verdict)
    told = await scene.told(task)
    # The rule does stand: the next call has nobody's word but its.
    following = await scene.call(f"{cell}_next", tool)
    ruled = await scene.told(following)
    audit = [row.what for row in await scene.app.pauses.audit(limit=1000) if row.subject == asked.id]
    by_rule = [AMOUNT] if rule == "allow" else [{"code": "approval_denied", "reason": "rule"}]
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="told", expected=[AMOUNT if verdict == "approve" else _DENIED], seen=told),
            Check(what="the next call, by the rule", expected=by_rule, seen=ruled),
            Check(what="the audit trail", expected=[verdict], seen=audit),
        ),
    )


async def rule_withdrawn(scene: Scene, cell: str) -> Played:
    """A rule lets two calls pass, a switch holds them back, and the rule is withdrawn meanwhile."""
    number = await _rule(scene, "file_by_rule", "allow")
    await scene.app.pauses.set("tool:file_by_rule", reason="drill", by=BOSS)
    tasks = [await scene.call(cell, "file_by_rule", number=place) for place in (1, 2)]
    for task in tasks:
        await scene.suspended(task, "operator")
    await scene.app.rules.withdraw(number, reason="changed", by=BOSS)
    await scene.app.pauses.clear("tool:file_by_rule", reason="drill", by=BOSS)
    asked = [(await scene.asked(task, suspended=False))[0] for task in tasks]
    before = len(await scene.posts(cell))
    await scene.decide(asked[0])
    await scene.decide(asked[1], "reject")
    told = [(await scene.told(task))[0] for task in tasks]
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(
            Check(what="calls under the rule that was withdrawn", expected=0, seen=before),
            Check(what="told", expected=[AMOUNT, _DENIED], seen=told),
        ),
    )
