"""The blocked twins of what people decide, on PostgreSQL: approvals, standing rules, what is sent again.

Each began while another backend held what it needs, and answers what is true of what is there in the end: a
decision is consumed or is not, and nothing is sent under one that does not stand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.races.blocking import (
    ON_POSTGRES,
    Blocked,
    Place,
    cancel,
    deferred_then,
    flush,
    flushing,
    into,
    people,
    told,
)
from tests.races.holding import ended, rival, start

from outlast.store.approving import ApprovalRow
from outlast.store.entries import Consent, ExpireApproval
from outlast.store.records import Claimed
from outlast.testing.store_suite.posting import head
from outlast.testing.store_suite.reconciling import late
from outlast.testing.store_suite.scene import SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


async def asked(scene: Scene, **changes: Any) -> tuple[Claimed, ApprovalRow]:
    """Have a running task with a question."""
    claimed = await scene.running()
    return claimed, await scene.asked(claimed, scene.ask(**changes))


# ── decide ───────────────────────────────────────────────────────────────────────────────────────


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """Two decisions: the first to commit wins, and the second is told so."""
    scene = place.scene
    verdicts: list[tuple[Any, Any]] = [("approve", "reject"), ("reject", "approve")]
    for first, second in verdicts:
        claimed, row = await asked(scene)
        async with rival(place.url) as other:
            await (await people(other)).decide([scene.decision(row, first, by="person:ann")], now=scene.now)
            twins = [start(scene.decide(row, second)), start(scene.decide(row, first, by="person:ann"))]
            assert await other.see_blocked(twins[0])
            await other.commit()
            assert [(await ended(twin)).kind for twin in twins] == ["conflict", "repeated"]
        stands = await scene.approval(claimed, row.key)
        assert (stands.decided_by, stands.votes) == ("person:ann", int(first == "approve"))
        assert [vote.who for vote in await scene.store.read_votes(row.tenant, row.id)] == ["person:ann"]
        assert (await head(scene, claimed))["facts"] == 1


@blocked("decide", "approval", "held")
async def _(place: Place) -> None:
    """The first fails after all."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        assert (await other.fails_first(scene.decide(row, "reject"))).kind == "decided"
    assert (await scene.approval(claimed, row.key)).state == "rejected"


@blocked("decide", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert (await other.commits_first(scene.decide(row))).kind == "decided"


@blocked("decide", "quorum", "changed")
async def _(place: Place) -> None:
    """Two votes at once: both count, and the second decides."""
    scene = place.scene
    claimed, row = await asked(scene, quorum=2)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        assert (await other.commits_first(scene.decide(row))).kind == "decided"
    assert (await scene.approval(claimed, row.key)).votes == 2


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """An edit comes first: what was seen is not what is asked any more."""
    scene = place.scene
    claimed, row = await asked(scene, quorum=2)
    edit = scene.decision(row, arguments="{}", shown="{}", new_fingerprint="edited")
    async with rival(place.url) as other:
        await (await people(other)).decide([edit], now=scene.now)
        assert (await other.commits_first(scene.decide(row))).kind == "fingerprint"
    assert (await scene.approval(claimed, row.key)).votes == 1


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The worker says first that its time is over."""
    scene = place.scene
    claimed, row = await asked(scene, expires_in_us=SECOND)
    scene.pass_time(SECOND)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, ExpireApproval(key=row.key, number=1))
        # By its own time the decision would be in time.
        scene.pass_time(-1)
        assert (await other.commits_first(scene.decide(row))).kind == "expired"
    assert (await scene.kinds(claimed)).count("approval.expired") == 1
    assert await scene.rows("votes", claimed) == []


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The answer comes in time: the worker cannot say that there was none."""
    scene = place.scene
    claimed = await scene.running()
    row = await scene.asked(claimed, scene.question(expires_in_us=SECOND))
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        scene.pass_time(SECOND)
        verdict = await deferred_then(scene, other, claimed, ExpireApproval(key=row.key, number=1))
    assert verdict.refusals == ((0, "not_expired"),)
    assert (await scene.approval(claimed, row.key)).state == "approved"


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The decision is used first: nobody takes it back."""
    scene = place.scene
    claimed = await scene.running()
    ask = scene.ask()
    row = await scene.asked(claimed, ask)
    await scene.decide(row)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.agreed_intent(ask))
        assert (await other.commits_first(scene.decide(row, "reject"))).kind == "conflict"
    assert (await scene.approval(claimed, row.key)).state == "used"


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The rejection comes first: the intent that hoped for an approval is refused."""
    scene = place.scene
    claimed = await scene.running()
    ask = scene.ask()
    row = await scene.asked(claimed, ask)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row, "reject")], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.agreed_intent(ask))
    assert verdict.refusals == ((0, "no_approval"),)


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The worker asks anew first: what was asked before is withdrawn."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.ask(row.key, number=2))
        assert (await other.commits_first(scene.decide(row))).kind == "conflict"
    states = [one.state for one in await scene.store.read_approvals(claimed.tenant, claimed.task)]
    assert states == ["withdrawn", "pending"]
    assert (await scene.operation(claimed, row.key)).state == "planned"


@blocked("decide", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: the decision wakes it."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("approval"))
        assert (await other.commits_first(scene.decide(row))).kind == "decided"
    assert (await scene.task(claimed)).state == "queued"


@blocked("decide", "head", "changed")
async def _(place: Place) -> None:
    """The decision comes first: the suspension has not seen it."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.suspension("approval"))
    assert verdict.state == "queued"


@blocked("decide", "head", "changed")
async def _(place: Place) -> None:
    """The task is cancelled first: there is nothing to decide any more."""
    scene = place.scene
    claimed, row = await asked(scene)
    await scene.write(claimed, scene.suspension("approval"))
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        assert (await other.commits_first(scene.decide(row))).kind == "conflict"
    assert (await scene.kinds(claimed))[-1] == "task.cancelled"


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """An edit comes first: an intent under what was asked before is refused, one under the edit is not."""
    scene = place.scene
    claimed = await scene.running()
    ask = scene.ask()
    row = await scene.asked(claimed, ask)
    edit = scene.decision(row, new_fingerprint="edited", arguments=scene.text("edited"))
    intent = scene.agreed_intent(ask)
    assert intent.consent is not None
    async with rival(place.url) as other:
        await (await people(other)).decide([edit], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, intent)
    assert verdict.refusals == ((0, "no_approval"),)
    consent = replace(intent.consent, fingerprint="edited")
    await scene.write(claimed, replace(intent, decision="edited", consent=consent))
    assert (await scene.approval(claimed, row.key)).state == "used"


@blocked("decide", "head", "held")
async def _(place: Place) -> None:
    """The time is over while the head is waited for: it is too late, whenever that began."""
    scene = place.scene
    claimed = await scene.running()
    ask = scene.ask(expires_in_us=SECOND // 4)
    await scene.store.flush(scene.batch(scene.writes(claimed, ask)))
    row = await scene.approval(claimed, ask.key)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = start(scene.store.decide([scene.decision(row)]))
        assert await other.see_blocked(twin)
        await other.see_time_over(row.expires_at)
        await other.commit()
        assert [one.kind for one in await ended(twin)] == ["expired"]
    assert (await scene.approval(claimed, row.key)).state == "expired"


@blocked("decide", "head", "changed")
async def _(place: Place) -> None:
    """Another question is put while a head is waited for: its own head is not locked, so it is not there."""
    scene = place.scene
    claimed, row = await asked(scene)
    later, question = await scene.running(), scene.ask()
    id = f"{later.task}:{question.key}~1"
    unasked = scene.decision(replace(row, id=id, fingerprint=question.fingerprint))
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = start(scene.store.decide([scene.decision(row), unasked], now=scene.now))
        assert await other.see_blocked(twin)
        await scene.write(later, question)
        await other.commit()
        assert [one.kind for one in await ended(twin)] == ["decided", "not_found"]
    assert (await scene.approval(later, question.key)).state == "pending"


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


async def ruled(scene: Scene) -> tuple[int, Consent]:
    """Have a standing rule; answer its number, and a consent that has looked at it."""
    number = await scene.store.put_rule(scene.rule("pay"), now=scene.now)
    return number, Consent(policy="p", rules=(await scene.store.read_rules(scene.tenant, "pay")).version)


def withdrawing(scene: Scene, number: int) -> Any:
    """Begin to take a rule back."""
    return start(scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no", now=scene.now))


@blocked("withdraw_rule", "rules", "changed")
async def _(place: Place) -> None:
    """Two withdrawals: one of them was first."""
    scene = place.scene
    number, _ = await ruled(scene)
    async with rival(place.url) as other:
        theirs = await people(other)
        assert await theirs.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now)
        assert await other.commits_first(withdrawing(scene, number)) is False


@blocked("withdraw_rule", "rules", "held")
async def _(place: Place) -> None:
    """The first fails after all."""
    scene = place.scene
    number, _ = await ruled(scene)
    async with rival(place.url) as other:
        theirs = await people(other)
        assert await theirs.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now)
        assert await other.fails_first(withdrawing(scene, number)) is True
    assert (await scene.store.read_rules(scene.tenant, "pay")).rules == ()


@blocked("withdraw_rule", "rules", "changed")
async def _(place: Place) -> None:
    """An intent under the rule comes first: the withdrawal is answered when that is committed."""
    scene = place.scene
    claimed = await scene.running()
    number, consent = await ruled(scene)
    intent = scene.intent(name="pay", consent=consent)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, intent)
        assert await other.commits_first(withdrawing(scene, number)) is True
    assert (await scene.operation(claimed, intent.key)).state == "running"


@blocked("flush", "rules", "changed")
async def _(place: Place) -> None:
    """The withdrawal comes first: an intent that had looked at the rule is refused."""
    scene = place.scene
    claimed = await scene.running()
    number, consent = await ruled(scene)
    async with rival(place.url) as other:
        theirs = await people(other)
        await theirs.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now)
        answer = await other.commits_first(
            flushing(scene, claimed, scene.intent(name="pay", consent=consent))
        )
        assert answer[0].refusals == ((0, "rules_changed"),)


@blocked("flush", "rules", "changed")
async def _(place: Place) -> None:
    """A rule is put first, for a tool that had none."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).put_rule(scene.rule("pay", "deny"), now=scene.now)
        answer = await other.commits_first(flushing(scene, claimed, scene.intent(name="pay")))
        assert answer[0].refusals == ((0, "rules_changed"),)


@blocked("flush", "rules", "held")
async def _(place: Place) -> None:
    """A decision's time is over while a change of the rules is waited for: nothing is sent under it."""
    scene = place.scene
    claimed = await scene.running()
    ask = scene.ask(expires_in_us=SECOND // 2)
    await scene.store.flush(scene.batch(scene.writes(claimed, ask)))
    row = await scene.approval(claimed, ask.key)
    assert [one.kind for one in await scene.store.decide([scene.decision(row)])] == ["decided"]
    async with rival(place.url) as other:
        await (await people(other)).put_rule(scene.rule("other", "deny"), now=scene.now)
        twin = start(scene.store.flush(scene.batch(scene.writes(claimed, scene.agreed_intent(ask)))))
        assert await other.see_blocked(twin)
        await other.see_time_over(row.expires_at)
        await other.rollback()
        assert (await ended(twin))[0].refusals == ((0, "no_approval"),)
    assert (await scene.operation(claimed, ask.key)).state == "approved"


# ── a resend ─────────────────────────────────────────────────────────────────────────────────────


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The resend comes first: there is nothing to settle any more."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
    resend = scene.intent(intent.key, attempt=1, turn=2, resend=True)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, resend)
        answer = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, intent.key)], now=scene.now)
        )
        assert [(one.kind, one.state) for one in answer] == [("conflict", "running")]


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The settlement comes first: nothing is sent again."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.settle([scene.settlement(claimed, intent.key)], now=scene.now)
        resend = scene.intent(intent.key, attempt=1, turn=2, resend=True)
        verdict = await deferred_then(scene, other, claimed, resend)
    assert verdict.refusals == ((0, "not_planned"),)
    assert (await scene.operation(claimed, intent.key)).state == "succeeded"


@blocked("note", "head", "changed")
async def _(place: Place) -> None:
    """Evidence comes before the resend: nothing is sent again, and the evidence is considered."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
    again = scene.settlement(claimed, intent.key, "send_again", forced=True)
    await scene.store.settle([again], now=scene.now)
    row = await scene.operation(claimed, intent.key)
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, intent.key, "happened")], now=scene.now)
        resend = replace(intent, attempt=row.attempt, turn=row.turn, resend=True)
        verdict = await deferred_then(scene, other, claimed, resend)
    assert verdict.refusals == ((0, "not_planned"),)
    [item] = await scene.rows("unsettled", claimed)
    assert (item["resend"], item["ask_at"]) == (False, scene.now)


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
