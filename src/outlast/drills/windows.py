"""The windows of the demo: one place each where something breaks, for three kinds of ticket service.

    before_intent     killed before the intent is on disk: planned afresh
    before_outcome    killed after the ticket was made, before its outcome is stored
    lost_answer       the ticket is made, its answer never comes
    frozen_sender     frozen after the last look at its lease, thawed when a successor is at work
    twin_submissions  two clients submit one request at the same moment: one task
    approval          every process dies while the supervisor is asked; then the agent wants another amount
    cancel            cancelled while a call is under way whose answer never comes
    undo              the attachment fails after the ticket was made; the withdrawal's answer is lost once

A service that honours keys (``keyed``) is asked by key, or sent the same key again. One that ignores them is
asked by invoice where it can be looked up (``queryable``); where it cannot (``manual``) a person looks, and
says. Windows in which nothing becomes unknown are not played a third time for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outlast.drills.demo_app import TIMEOUT_S, DemoEffect
from outlast.drills.stage import Check, Played, Stage
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule

__all__ = ["WINDOWS", "Window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One place for a fault.

    title: what is done. lesson: what is right, in a sentence. invoice: what its ticket is about.
    """

    name: str
    effect: DemoEffect
    invoice: str
    title: str
    lesson: str
    play: Callable[[Stage], Awaitable[Played]]


async def _before_intent(stage: Stage) -> Played:
    first = await stage.worker("worker A", Trigger(point="effects.before_intent", action="kill"))
    task = await stage.submit()
    died = await stage.killed(first, "effects.before_intent")
    second = await stage.worker("worker B")
    await stage.ended(task)
    await second.stop()
    return Played(task=task, checks=(died, await _attempts(stage, task, "lost", "succeeded")))


async def _before_outcome(stage: Stage) -> Played:
    first = await stage.worker("worker A", Trigger(point="effects.before_outcome", action="kill"))
    task = await stage.submit()
    died = await stage.killed(first, "effects.before_outcome")
    second = await stage.worker("worker B")
    settled = await _settled(stage, task)
    await second.stop()
    if stage.effect == "manual":
        ends = await _attempts(stage, task, "lost", "suspended", "succeeded")
    else:
        ends = await _attempts(stage, task, "lost", "succeeded")
    return Played(task=task, checks=(died, settled, ends))


async def _lost_answer(stage: Stage) -> Played:
    await stage.recorder.plan(Rule.act_then_hang())
    worker = await stage.worker("worker A", timeout_s=1.0)
    task = await stage.submit()
    settled = await _settled(stage, task)
    await worker.stop()
    hung = Check(
        what="how the POST was answered",
        expected=["hang"],
        seen=[c.ending for c in await stage.calls() if c.method == "POST"],
    )
    if stage.effect == "manual":
        ends = await _attempts(stage, task, "suspended", "succeeded")
    else:
        ends = await _attempts(stage, task, "succeeded")
    return Played(task=task, checks=(hung, settled, ends))


async def _frozen_sender(stage: Stage) -> Played:
    keyed = stage.effect == "keyed"
    first = await stage.worker("worker A", Trigger(point="http.before_send", action="freeze"), calm=True)
    task = await stage.submit()
    await stage.frozen(first, "http.before_send")
    second = await stage.worker("worker B")
    if keyed:
        await stage.ended(task)
    else:
        # What is absent now may still be sent by a sender that is only frozen; so nothing follows from it.
        await stage.unknown(task)
    first.thaw()
    stage.note("worker A", "thaws: SIGCONT, and sends what it was about to send")
    await stage.recorder.wait_for(
        calls=2 if keyed else 1, method="POST", key=stage.operation(task), ended=True, timeout=TIMEOUT_S
    )
    await stage.ended(task)
    await first.stop()
    await second.stop()
    if keyed:
        return Played(task=task, most_posts=2, checks=(await _attempts(stage, task, "lost", "succeeded"),))
    by = Check(what="who settled it", expected="settler", seen=await stage.settled_by(task))
    return Played(task=task, checks=(by,))


async def _twin_submissions(stage: Stage) -> Played:
    key = stage.key
    worker = await stage.worker("worker A")
    clients = [await stage.client(f"client {letter}", key) for letter in "AB"]
    for client in clients:
        await client.tell("go")
    said = [await client.says("submitted") for client in clients]
    for client, answer in zip(clients, said, strict=True):
        what = "the same task again (replayed)" if answer.data["replayed"] else "202, stored"
        stage.note(client.name, f"{what}: {answer.data['task']}", at=answer.at)
        stage.accepted.add((DEFAULT_TENANT, str(answer.data["task"])))
        await client.exited()
    task = str(said[0].data["task"])
    await stage.ended(task)
    await worker.stop()
    tasks = [one.id for one in await stage.app.list() if one.key == key]
    return Played(
        task=task,
        checks=(
            Check(what="tasks of that key", expected=[task], seen=tasks),
            Check(what="task that client B got", expected=task, seen=said[1].data["task"]),
            Check(
                what="answers that were replays",
                expected=[False, True],
                seen=sorted(bool(answer.data["replayed"]) for answer in said),
            ),
            await _attempts(stage, task, "succeeded"),
        ),
    )


async def _approval(stage: Stage) -> Played:
    after_ask = Trigger(point="approvals.after_ask", action="kill")
    first = await stage.worker("worker A", after_ask, asks=True)
    task = await stage.submit()
    died = [await stage.killed(first, "approvals.after_ask")]
    asked = await stage.asked(task)
    await stage.decided(asked, "approve", "agreed")
    # Nobody lives, and the decision stands; this worker dies at the next question.
    second = await stage.worker("worker B", after_ask, asks=True)
    await stage.ended(task)
    again = await stage.submit(run=2)
    died.append(await stage.killed(second, "approvals.after_ask"))
    old = await stage.asked(again)
    await stage.decided(old, "approve", "agreed")
    third = await stage.worker("worker C", asks=True, wanted="180")
    stage.note("worker C", "its agent wants 180 now")
    new = await stage.asked(again)
    await stage.decided(new, "reject", "180 was never agreed")
    await stage.ended(again)
    await third.stop()
    states = {one.id: one.state for one in await stage.app.approvals.list(state=None)}
    shown = [(one.shown["arguments"]["amount"], one.reason) for one in (asked, old, new)]
    over = f"{stage.invoice}, 118.50, over by 38.50"
    view = await stage.app.get(again)
    return Played(
        task=task,
        also=(again,),
        checks=(
            *died,
            Check(
                what="what the supervisor was shown",
                expected=[
                    ("118.50", over),
                    ("118.50", over),
                    ("180", f"{stage.invoice}, 180, over by 100.00"),
                ],
                seen=shown,
            ),
            Check(
                what="what became of the three questions",
                expected=["used", "withdrawn", "rejected"],
                seen=[states[one.id] for one in (asked, old, new)],
            ),
            Check(
                what="the second task",
                expected=("failed", "approval_denied"),
                seen=(view.state, (view.error or {}).get("code")),
            ),
            await _attempts(stage, task, "lost", "succeeded"),
        ),
    )


async def _cancel(stage: Stage) -> Played:
    await stage.recorder.plan(Rule.act_then_hang())
    worker = await stage.worker("worker A")
    task = await stage.submit()
    await stage.recorder.wait_for(
        method="POST", key=stage.operation(task), effect="created", timeout=TIMEOUT_S
    )
    reply = await stage.cancelled(task, "filed by mistake")
    await stage.ended(task)
    settled = await stage.settled(task)
    await worker.stop()
    (ticket,) = [call.ticket for call in await stage.calls() if call.effect == "created"]
    finals = [
        event
        for event in await stage.app.stored_events(task)
        if event.kind in ("task.succeeded", "task.failed", "task.cancelled")
    ]
    # As its end says; the task itself says how many are open now, and the settler is quick.
    opened = [event.data["effects_open"] for event in finals]
    result = settled.result if isinstance(settled.result, dict) else {}
    return Played(
        task=task,
        end="cancelled",
        checks=(
            Check(what="the answer to the cancel", expected="requested", seen=reply.kind),
            Check(what="effects that were open at its end", expected=[1], seen=opened),
            Check(
                what="what the ledger says of the call since",
                expected=("succeeded", "settler", ticket),
                seen=(settled.state, settled.settled_by, result.get("id")),
            ),
            Check(
                what="its final events", expected=["task.cancelled"], seen=[event.kind for event in finals]
            ),
            await _attempts(stage, task, "cancelled"),
        ),
    )


async def _undo(stage: Stage) -> Played:
    await stage.recorder.plan(
        Rule.refuse(422).on(method="PUT"), Rule.act_then_reset().on(path="/tickets/*/withdraw")
    )
    worker = await stage.worker("worker A", attaches=True)
    task = await stage.submit()
    await stage.ended(task)
    await worker.stop()
    view = await stage.app.get(task)
    settled, _ = await stage.app.operations.show(f"{stage.operation(task)}/undo")
    calls = await stage.calls()
    (made,) = [call.ticket for call in calls if call.effect == "created"]
    withdrawals = [call for call in calls if call.path.endswith("/withdraw")]
    tickets = {one["id"]: one["state"] for one in await stage.recorder.tickets()}
    error = view.error or {}
    said = error.get("compensation") or {}
    undone = ", ".join(said.get("undone", ()))
    stage.note("client", f"reads: {error.get('code')}; undo {said.get('state')}, undone: {undone}")
    return Played(
        task=task,
        end="failed",
        checks=(
            Check(
                what="how the attachment was answered",
                expected=[422],
                seen=[call.status for call in calls if call.method == "PUT"],
            ),
            Check(
                what="withdrawals: of which ticket, under which key, and how answered",
                expected=[(made, f"{stage.operation(task)}/undo", "reset")],
                seen=[(call.ticket, call.key, call.ending) for call in withdrawals],
            ),
            Check(what="the ticket now", expected="withdrawn", seen=tickets.get(str(made))),
            Check(
                what="what the ledger says of the withdrawal",
                expected=("succeeded", "worker"),
                seen=(settled.state, settled.settled_by),
            ),
            Check(
                what="what the task's end says",
                expected=(
                    "tool_rejected",
                    {"state": "complete", "undone": ["create_ticket#1"], "left": []},
                ),
                seen=(error.get("code"), said),
            ),
            await _attempts(stage, task, "failed", "failed"),
        ),
    )


async def _attempts(stage: Stage, task: str, *expected: str) -> Check:
    return Check(what="how its attempts ended", expected=list(expected), seen=await stage.ends(task))


async def _settled(stage: Stage, task: str) -> Check:
    """Let an unknown be settled as its effect class has it, and not by sending again."""
    if stage.effect == "manual":
        await stage.person(task)
        await stage.ended(task)
        return Check(what="who settled it", expected="person:demo", seen=await stage.settled_by(task))
    await stage.ended(task)
    name = "idempotency_key" if stage.effect == "keyed" else "invoice"
    asked = [call.query.get(name) for call in await stage.calls() if call.method == "GET"]
    about = stage.operation(task) if stage.effect == "keyed" else stage.invoice
    return Check(what=f"questions asked by {name}", expected=[about], seen=asked)


_Play = Callable[[Stage], Awaitable[Played]]
_PLAYS: tuple[tuple[str, _Play, str, dict[DemoEffect, str]], ...] = (
    (
        "before_intent",
        _before_intent,
        "killed before the intent is on disk",
        dict.fromkeys(
            ("keyed", "queryable"), "nothing was recorded, so nothing was sent: the successor plans it afresh"
        ),
    ),
    (
        "before_outcome",
        _before_outcome,
        "killed after the ticket was made, before its outcome is stored",
        {
            "keyed": "the successor finds an intent without an outcome, asks by key, and does not send again",
            "queryable": "it asks by invoice, finds the ticket, and does not send again",
            "manual": "only a person can know: unknown in the queue, looked up, settled, the task goes on",
        },
    ),
    (
        "lost_answer",
        _lost_answer,
        "the ticket is made, its answer never comes",
        {
            "keyed": "a timeout is not a failure: unknown, asked by key, found, succeeded",
            "queryable": "a timeout is not a failure: unknown, asked by invoice, found, succeeded",
            "manual": "a timeout is not a failure, and is never sent again blindly: a person settles it",
        },
    ),
    (
        "frozen_sender",
        _frozen_sender,
        "frozen after the last look at its lease, thawed while a successor is at work",
        {
            "keyed": "the stale worker's request goes out, its key makes it harmless, its writes are refused",
            "queryable": "absence proves nothing while the old sender may send; its late answer settles it",
            "manual": "the successor does not send; the stale worker's late answer is the evidence",
        },
    ),
    (
        "twin_submissions",
        _twin_submissions,
        "two clients submit the same request at the same moment",
        dict.fromkeys(("keyed", "queryable"), "one key, one task, one ticket"),
    ),
    (
        "approval",
        _approval,
        "every process dies while the supervisor is asked, then the agent wants another amount",
        {"keyed": "a decision is on disk, for exactly what was shown: 180 needs another one"},
    ),
    (
        "cancel",
        _cancel,
        "cancelled while a call is under way whose answer never comes",
        {"keyed": "the task ends on time and makes no other call; what it did is learnt later, by key"},
    ),
    (
        "undo",
        _undo,
        "the attachment fails after the ticket was made, and the withdrawal's answer is lost",
        {"keyed": "an undo is a call like any other: unknown, looked up, and not sent again"},
    ),
)


def _windows() -> tuple[Window, ...]:
    windows: list[Window] = []
    effects: tuple[DemoEffect, ...] = ("keyed", "queryable", "manual")
    for effect in effects:
        for name, play, title, lessons in _PLAYS:
            if effect not in lessons:
                continue
            windows.append(
                Window(
                    name=name if effect == "keyed" else f"{name}_{effect}",
                    effect=effect,
                    # Of its own, since this is what tickets are looked up by. The supervisor is asked about
                    # the invoice of the worked example.
                    invoice="INV-102" if name == "approval" else f"INV-{102 + len(windows)}",
                    title=title,
                    lesson=lessons[effect],
                    play=play,
                )
            )
    return tuple(windows)


WINDOWS = _windows()
