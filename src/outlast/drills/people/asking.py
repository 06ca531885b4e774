"""Every process dies while people are asked: what was decided stands for exactly what was shown."""

from __future__ import annotations

import asyncio

from outlast.drills.people.agents import CHOICES, object_of, policy_of
from outlast.drills.people.scene import AMOUNT, Played, Scene, invoice_of
from outlast.drills.stage import Check

__all__ = [
    "amount_changed",
    "everyone_dies",
    "no_is_not_silence",
    "object_changed",
    "parallel_questions",
    "person_answers",
    "policy_withdrawn",
    "tool_changed",
]

_BRIEF_S = 1.0


def _died(scene: Scene) -> Check:
    return Check(what="how every worker ended", expected={"SIGKILL"}, seen=set(scene.restart.endings))


async def everyone_dies(scene: Scene, cell: str) -> Played:
    """Decide while nobody lives."""
    task = await scene.call(cell, "file")
    (asked,) = await scene.asked(task)
    await scene.restart.dead(cell)
    await scene.decide(asked)
    before = len(await scene.posts(cell))
    await scene.restart.back(cell)
    await scene.end(task)
    (used,) = await scene.approvals(task)
    seen = (used.id, used.state, used.decided_by, used.decision_reason)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            _died(scene),
            Check(what="calls while nobody lived", expected=0, seen=before),
            Check(what="the decision", expected=(asked.id, "used", "person:boss", "agreed"), seen=seen),
            Check(what="sent", expected=[AMOUNT], seen=await scene.sent(cell)),
        ),
    )


async def amount_changed(scene: Scene, cell: str) -> Played:
    """Agree to one amount; after the restart the agent wants another."""
    return await _changed(scene, cell, "file", again="180")


async def tool_changed(scene: Scene, cell: str) -> Played:
    """Agree; after the restart the tool has a new version."""
    return await _changed(scene, cell, "file_version")


async def object_changed(scene: Scene, cell: str) -> Played:
    """Agree; after the restart what it is about has a new version."""
    object_of(scene.folder, invoice_of(cell)).write_text("1")
    return await _changed(scene, cell, "file_object")


async def _changed(scene: Scene, cell: str, tool: str, *, again: str | None = None) -> Played:
    task = await scene.call(cell, tool, again=again)
    (first,) = await scene.asked(task)
    await scene.restart.dead(cell)
    await scene.decide(first)
    mark = object_of(scene.folder, invoice_of(cell))
    if mark.exists():
        mark.write_text("2")
    await scene.restart.back(cell)
    (second,) = await scene.asked(task)
    before = len(await scene.posts(cell))
    await scene.decide(second, by="second")
    await scene.end(task)
    states = [(one.id, one.state) for one in await scene.approvals(task)]
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            _died(scene),
            Check(what="calls under the old decision", expected=0, seen=before),
            Check(what="decisions", expected=[(first.id, "withdrawn"), (second.id, "used")], seen=states),
            Check(
                what="fingerprints of both questions differ",
                expected=True,
                seen=first.fingerprint != second.fingerprint,
            ),
            Check(what="sent", expected=[again or AMOUNT], seen=await scene.sent(cell)),
        ),
    )


async def policy_withdrawn(scene: Scene, cell: str) -> Played:
    """Agree; then policy cannot be loaded, and when it can it says no."""
    policy = policy_of(scene.folder, invoice_of(cell))
    policy.write_text("ask")
    task = await scene.call(cell, "file_strictly")
    (asked,) = await scene.asked(task)
    await scene.restart.dead(cell)
    await scene.decide(asked)
    policy.unlink()
    await scene.restart.back(cell)
    await scene.suspended(task, "operator")
    before = len(await scene.posts(cell))
    policy.with_suffix(".new").write_text("deny")
    policy.with_suffix(".new").rename(policy)
    (told,) = await scene.told(task)
    (left,) = await scene.approvals(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            _died(scene),
            Check(what="calls without policy", expected=0, seen=before),
            Check(what="told", expected={"code": "approval_denied", "reason": "policy"}, seen=told),
            Check(what="the decision", expected=("withdrawn", None), seen=(left.state, left.used_at)),
        ),
    )


async def no_is_not_silence(scene: Scene, cell: str) -> Played:
    """Nobody lives while one question is answered with no and another one's time goes by."""
    silent = await scene.call(cell, "file_soon", number=1, lasts_s=_BRIEF_S)
    refused = await scene.call(cell, "file", number=2)
    (asked,) = await scene.asked(refused)
    await scene.reached(silent, "approval.requested")
    await scene.restart.dead(cell)
    await scene.decide(asked, "reject")
    await scene.restart.back(cell)
    told = [*await scene.told(silent), *await scene.told(refused)]
    states = [one.state for task in (silent, refused) for one in await scene.approvals(task)]
    return Played(
        cell=cell,
        tasks=(silent, refused),
        checks=(
            Check(
                what="told",
                expected=[
                    {"code": "approval_expired", "reason": "expired"},
                    {"code": "approval_denied", "reason": "person"},
                ],
                seen=told,
            ),
            Check(what="questions", expected=["expired", "rejected"], seen=states),
        ),
    )


async def parallel_questions(scene: Scene, cell: str) -> Played:
    """Three calls of one turn, two of them asked about: answered in reverse order, an edit, a restart."""
    amounts = {"first": "101", "second": "102", "third": "3"}
    invoices = {key: invoice_of(cell, number) for number, key in enumerate(amounts, 1)}
    planned = [
        {"tool": "file", "key": key, "arguments": {"invoice": invoices[key], "amount": amount}}
        for key, amount in amounts.items()
    ]
    task = await scene.submit("calls_at_once", {"calls": planned})
    questions = {one.operation: one for one in await scene.asked(task, 2)}
    second, first = questions.get(f"{task}:second"), questions.get(f"{task}:first")
    assert second is not None, questions
    assert first is not None, questions
    await scene.decide(second, arguments={"invoice": invoices["second"], "amount": "50"})

    async def both_sent() -> list[str] | None:
        sent = await scene.sent(cell)
        return sent if len(sent) == 2 else None

    early = await scene.until(both_sent, "what was answered first was never sent")
    await scene.asked(task, 1)
    await scene.restart.dead(cell)
    await scene.restart.back(cell)
    await scene.suspended(task, "approval")
    (again,) = await scene.asked(task, 1)
    await scene.decide(first)
    told = await scene.told(task)
    by_operation = {(call.key, call.body["amount"]) for call in await scene.posts(cell)}
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            _died(scene),
            Check(what="sent before the first answer", expected=["3", "50"], seen=sorted(early)),
            Check(what="the question after the restart", expected=first.id, seen=again.id),
            Check(what="told", expected=["101", "50", "3"], seen=told),
            Check(
                what="each answer at its own call",
                expected={(f"{task}:first", "101"), (f"{task}:second", "50"), (f"{task}:third", "3")},
                seen=by_operation,
            ),
        ),
    )


async def person_answers(scene: Scene, cell: str) -> Played:
    """A question of the agent's own, answered by two people while nobody lives."""
    task = await scene.submit("asks", {})
    (asked,) = await scene.asked(task)
    await scene.restart.dead(cell)
    answers = await asyncio.gather(
        *(
            scene.app.approvals.answer(asked.id, choice, fingerprint=asked.fingerprint, by=f"person-{choice}")
            for choice in CHOICES
        ),
        return_exceptions=True,
    )
    won = [choice for choice, one in zip(CHOICES, answers, strict=True) if not isinstance(one, Exception)]
    lost = [getattr(one, "code", repr(one)) for one in answers if isinstance(one, BaseException)]
    await scene.restart.back(cell)
    told = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            _died(scene),
            Check(
                what="answers that counted, and what the other was told",
                expected=(1, ["approval_conflict"]),
                seen=(len(won), lost),
            ),
            Check(what="told", expected=won, seen=[told]),
        ),
    )
