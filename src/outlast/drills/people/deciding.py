"""Decisions: said twice, said late, said by people who may not, and about what nobody can be shown."""

from __future__ import annotations

import asyncio

from outlast.drills.people.agents import policy_of
from outlast.drills.people.scene import AMOUNT, BOSS, Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.errors import ApprovalConflict, NotAllowed
from outlast.views import ApprovalView

__all__ = [
    "approved_too_late",
    "at_the_expiry",
    "decision_replayed",
    "doubled_click",
    "policy_missing",
    "quorum_and_four_eyes",
    "too_large_to_show",
]

_LASTS_S = 5.0
_AROUND_S = (-3.5, -1.0, -0.5, *(-0.04 + 0.01 * step for step in range(9)), 0.3)
"""When people decide, seconds from the expiry by the database's clock."""


async def decision_replayed(scene: Scene, cell: str) -> Played:
    """Two calls that are equal in all but their key: the decision on the first is sent again and again."""
    task = await scene.call(cell, "file", AMOUNT, AMOUNT)
    (first,) = await scene.asked(task)
    await scene.decide(first)

    async def second_asked() -> ApprovalView | None:
        pending = [one for one in await scene.app.approvals.list(task=task) if one.id != first.id]
        return pending[0] if pending else None

    second = await scene.until(second_asked, "nobody was asked about the second call")
    again = await scene.decide(first)
    try:
        await scene.decide(first, by="somebody else")
        other = "accepted"
    except ApprovalConflict as error:
        other = f"{error.state} by {error.by}"
    await scene.suspended(task, "approval")
    (still,) = await scene.app.approvals.list(task=task)
    await scene.decide(second, "reject")
    told = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="both are about the same", expected=first.fingerprint, seen=second.fingerprint),
            Check(what="the same again", expected="used", seen=again.state),
            Check(what="by somebody else", expected="used by person:boss", seen=other),
            Check(
                what="what is still asked, and its votes",
                expected=(second.id, 0),
                seen=(still.id, still.votes),
            ),
            Check(what="told", expected=[AMOUNT, {"code": "approval_denied", "reason": "person"}], seen=told),
        ),
    )


async def doubled_click(scene: Scene, cell: str) -> Played:
    """Agree twice at once, and thrice more when the next proposal is there."""
    task = await scene.call(cell, "file", "100", "900")
    (first,) = await scene.asked(task)
    await asyncio.gather(scene.decide(first), scene.decide(first))

    async def next_one() -> ApprovalView | None:
        return next((one for one in await scene.app.approvals.list(task=task) if one.id != first.id), None)

    second = await scene.until(next_one, "the second proposal was never put to people")
    for _ in range(3):
        await scene.decide(first)
    await scene.suspended(task, "approval")
    (still,) = await scene.app.approvals.list(task=task)
    sent = await scene.sent(cell)
    await scene.decide(second, "reject")
    await scene.end(task)
    votes = await scene.app.approvals.votes(first.id)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="sent by the clicks", expected=["100"], seen=sent),
            Check(
                what="the next proposal after them",
                expected=(second.id, "pending", 0),
                seen=(still.id, still.state, still.votes),
            ),
            Check(what="votes on the first", expected=1, seen=len(votes)),
        ),
    )


async def at_the_expiry(scene: Scene, cell: str) -> Played:
    """Agree to many calls, each at another moment around the end of its time."""
    tasks = [
        await scene.call(cell, "file_soon", number=number, lasts_s=_LASTS_S)
        for number in range(len(_AROUND_S))
    ]

    async def one(task: str, offset_s: float) -> str:
        (asked,) = await scene.asked(task, suspended=False)
        assert asked.expires_at is not None
        due_us = int(asked.expires_at.timestamp() * 1_000_000 + offset_s * 1_000_000)
        await asyncio.sleep(max(0.0, (due_us - await scene.now_us()) / 1_000_000))
        try:
            return (await scene.decide(asked)).state
        except ApprovalConflict as error:
            return error.state

    answers = await asyncio.gather(*(one(*pair) for pair in zip(tasks, _AROUND_S, strict=True)))
    scene.restart.in_time(cell)
    told = [(await scene.told(task))[0] for task in tasks]
    last = [(await scene.approvals(task))[-1] for task in tasks]
    used = [one for one in last if one.state == "used"]
    sent = {call.body["invoice"] for call in await scene.posts(cell)}
    expected = {invoice_of(cell, number) for number, one in enumerate(last) if one.state == "used"}
    late = [one.id for one in last if one.decided_at and one.expires_at and one.decided_at >= one.expires_at]
    expired = {"code": "approval_expired", "reason": "expired"}
    return Played(
        cell=cell,
        tasks=tasks,
        calls=len(used),
        checks=(
            Check(what="long before", expected=("approved", AMOUNT), seen=(answers[0], told[0])),
            Check(what="after it", expected=("expired", expired), seen=(answers[-1], told[-1])),
            Check(
                what="every other answer",
                expected=set(),
                seen=set(answers) - {"approved", "expired", "used"},
            ),
            Check(what="decided when their time was over", expected=[], seen=late),
            Check(what="questions asked again", expected=0, seen=sum(one.id[-1] != "1" for one in last)),
            Check(what="sent", expected=expected, seen=sent),
            Check(
                what="told",
                expected=[AMOUNT if one.state == "used" else expired for one in last],
                seen=told,
            ),
        ),
    )


async def approved_too_late(scene: Scene, cell: str) -> Played:
    """Agree in time; a switch keeps the call from being made before the time is over."""
    await scene.app.pauses.set("tool:file_late", reason="drill", by=BOSS)
    task = await scene.call(cell, "file_late", lasts_s=_LASTS_S)
    (asked,) = await scene.asked(task, suspended=False)
    decided = await scene.decide(asked)
    scene.restart.in_time(cell)
    await scene.reached(task, "approval.expired")
    await scene.app.pauses.clear("tool:file_late", reason="drill", by=BOSS)
    (told,) = await scene.told(task)
    (left,) = await scene.approvals(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="the decision came in time", expected="approved", seen=decided.state),
            Check(what="told", expected={"code": "approval_expired", "reason": "expired"}, seen=told),
            Check(what="the decision is unused", expected=("expired", None), seen=(left.state, left.used_at)),
        ),
    )


async def policy_missing(scene: Scene, cell: str) -> Played:
    """Policy cannot be loaded when the task starts, and can be later."""
    task = await scene.call(cell, "file_strictly")
    await scene.suspended(task, "operator")
    before = (len(await scene.posts(cell)), len(await scene.approvals(task)))
    policy = policy_of(scene.folder, invoice_of(cell))
    policy.with_suffix(".new").write_text("allow")
    policy.with_suffix(".new").rename(policy)
    told = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="calls and questions without policy", expected=(0, 0), seen=before),
            Check(what="told", expected=[AMOUNT], seen=told),
        ),
    )


async def quorum_and_four_eyes(scene: Scene, cell: str) -> Played:
    """Two of the finance department have to agree, and whoever wants it does not count."""
    task = await scene.call(cell, "file_large", user="ana")
    (asked,) = await scene.asked(task)
    refused = []
    for by, role in (("ana", "finance"), ("kim", "support"), ("kim", "approver")):
        try:
            await scene.decide(asked, by=by, roles=(role,))
        except NotAllowed:
            refused.append(by)
    bob = [(await scene.decide(asked, by="bob", roles=("finance",))).votes for _ in range(2)]
    (still,) = await scene.asked(task)
    before = len(await scene.posts(cell))
    await scene.decide(asked, by="eve", roles=("finance",))
    await scene.end(task)
    (used,) = await scene.approvals(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="refused", expected=["ana", "kim", "kim"], seen=refused),
            Check(what="votes after one person, and after the same again", expected=[1, 1], seen=bob),
            Check(what="after one of two", expected=("pending", 0), seen=(still.state, before)),
            Check(what="in the end", expected=("used", 2), seen=(used.state, used.votes)),
        ),
    )


async def too_large_to_show(scene: Scene, cell: str) -> Played:
    """Arguments that nobody can be shown."""
    arguments = {"invoice": f"{invoice_of(cell)}-{'x' * 70_000}", "amount": AMOUNT}
    planned = [{"tool": "file", "key": "act-1", "arguments": arguments}]
    task = await scene.submit("calls", {"calls": planned, "again": []})
    (told,) = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(
                what="told", expected={"code": "approval_denied", "reason": "too_large_to_show"}, seen=told
            ),
            Check(what="questions", expected=0, seen=len(await scene.approvals(task))),
        ),
    )
