"""The blocked twins of what people do, on PostgreSQL: signals, cancels, decisions, children, rules.

Each began while another backend held what it needs, and answers what is true of what is there in the end: no
wake-up is lost, a cancel and a completion agree with each other, and a decision is consumed or is not.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.races.blocking import Blocked, Place, flushing, into
from tests.races.holding import Rival, ended, rival, start

from outlast.store.approving import ApprovalRow
from outlast.store.posting import Cancel, CancelReply, Delivered
from outlast.store.records import (
    Claimed,
    Consent,
    Entry,
    ExpireApproval,
    Parent,
    Serves,
    Submission,
    Submitted,
    TaskRef,
)
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.posting import head, inbox
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed


@pytest.fixture(params=["postgres"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """Only there does anybody wait for a row."""
    return str(request.param)


BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


# ── what a rival does and does not commit yet ────────────────────────────────────────────────────


async def flush(other: Rival, scene: Scene, claimed: Claimed, *entries: Entry) -> None:
    """Write entries, under another writer, and not commit yet."""
    await other.flush(scene.batch(scene.writes(claimed, *entries), writer="wr_other"), scene.now)


async def claim(other: Rival, scene: Scene, session: str, record: Submission, version: str = "v") -> None:
    """Claim a task, and not commit yet."""
    theirs = await other.about_to_commit("claim")
    serves = [Serves(agent=record.agent, version=version)]
    mine, scene.store = scene.store, theirs
    try:
        reply = await scene.claim(session, pools=[record.pool], serves=serves)
    finally:
        scene.store = mine
    assert [claimed.task for claimed in reply.claims] == [record.task]


async def people(other: Rival) -> Any:
    """Answer a store whose next signal, cancel, decision or rule is not committed yet."""
    return await other.about_to_commit("people")


def posting(scene: Scene, of: Any, **changes: Any) -> Any:
    """Begin to post a signal."""
    return start(scene.post(scene.signal(of, **changes)))


def cancelling(scene: Scene, of: Any) -> Any:
    """Begin to cancel."""
    return start(scene.cancel(of))


def cancel(of: Any) -> Cancel:
    """Make a rival's cancel."""
    return Cancel(tenant=of.tenant, task=of.task, by="person:rival", reason="first")


async def deferred_then(scene: Scene, other: Rival, claimed: Claimed, entry: Entry) -> Any:
    """Write an entry while the rival has the head, and again after it has committed."""
    assert (await ended(flushing(scene, claimed, entry)))[0].kind == "deferred"
    await other.commit()
    return await scene.flush(claimed, entry)


async def asked(scene: Scene, **changes: Any) -> tuple[Claimed, ApprovalRow]:
    """Have a running task with a question."""
    claimed = await scene.running()
    return claimed, await scene.asked(claimed, scene.ask(**changes))


# ── post ─────────────────────────────────────────────────────────────────────────────────────────


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: the signal wakes it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.wait("signal"), scene.suspension("signal"))
        twin = posting(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.kind for one in await ended(twin)] == ["accepted"]
    assert (await scene.task(claimed)).state == "queued"
    assert (await scene.claim_task(claimed)).facts == 1


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The signal comes first: the suspension has not seen it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).post([scene.signal(claimed)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.suspension("operator", facts=0))
    assert (verdict.kind, verdict.state) == ("accepted", "queued")


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The task ends first: there is nobody to hear it."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.success())
        twin = posting(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert [(one.kind, one.state) for one in await ended(twin)] == [("ended", "succeeded")]
    assert await scene.rows("inbox", claimed) == []
    assert (await scene.kinds(claimed))[-1] == "task.succeeded"


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task first, without the signal: it is news to it."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        twin = posting(scene, record)
        assert await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    assert [(one.task, one.facts) for one in await scene.news(session)] == [(record.task, 1)]


@blocked("post", "head", "changed")
async def _(place: Place) -> None:
    """The sweeper takes the task away first: the signal waits for the next worker."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        twin = posting(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    again = await scene.claim_task(claimed)
    assert again.facts == 1
    [loaded] = await scene.store.load([again])
    assert [row.number for row in loaded.inbox] == [1]


@blocked("post", "key", "changed")
async def _(place: Place) -> None:
    """Two signals under one key: the second is told of the first."""
    scene = place.scene
    claimed = await scene.running()
    first = scene.signal(claimed, "go", key="k")
    async with rival(place.url) as other:
        await (await people(other)).post([first], now=scene.now)
        same, another = start(scene.post(first)), scene.signal(claimed, "go", key="k")
        assert await other.see_blocked(same)
        await other.commit()
        assert [(one.kind, one.number) for one in await ended(same)] == [("replayed", 1)]
    assert [(one.kind, one.number) for one in await scene.post(another)] == [("conflict", 1)]


@blocked("post", "key", "held")
async def _(place: Place) -> None:
    """The first fails after all: the key is free."""
    scene = place.scene
    claimed = await scene.running()
    first = scene.signal(claimed, "go", key="k")
    async with rival(place.url) as other:
        await (await people(other)).post([first], now=scene.now)
        twin = posting(scene, claimed, name="go", key="k")
        assert await other.see_blocked(twin)
        await other.rollback()
        assert [(one.kind, one.number) for one in await ended(twin)] == [("accepted", 1)]


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The task completes first: the cancel says so."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.success())
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) == CancelReply(kind="ended", state="succeeded")
    assert (await scene.kinds(claimed))[-1] == "task.succeeded"
    assert await scene.store.read_audit(claimed.tenant) == []


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first: the completion becomes one."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        [reply] = await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        assert reply.kind == "requested"
        verdict = await deferred_then(scene, other, claimed, scene.success())
    assert (verdict.kind, verdict.state) == ("accepted", "cancelled")
    assert (await scene.task(claimed)).state == "cancelled"


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: it is ended here and now."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, scene.suspension("operator"))
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "cancelled"
    assert (await scene.task(claimed)).state == "cancelled"


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task first: it is marked, and its worker told."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    async with rival(place.url) as other:
        await claim(other, scene, session, record)
        twin = cancelling(scene, record)
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) == CancelReply(kind="requested", state="running")
    assert [one.cancelling for one in await scene.news(session)] == [True]


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel of a queued task comes first: a claim leaves it, before that is committed and after."""
    scene = place.scene
    record, session = await scene.submit(), await scene.session()
    serves = [Serves(agent=record.agent, version="v")]
    async with rival(place.url) as other:
        [reply] = await (await people(other)).cancel([cancel(record)], now=scene.now)
        assert reply.kind == "cancelled"
        for _ in range(2):
            twin = start(scene.claim(session, pools=[record.pool], serves=serves))
            assert (await ended(twin)).claims == ()
            if other._lines:
                await other.commit()
                await other.begin()
    assert (await scene.task(record)).state == "cancelled"


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """Two cancels: the second changes nothing."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) == CancelReply(kind="requested", state="running")
    assert (await scene.kinds(claimed)).count("task.cancel_requested") == 1
    assert [row.who for row in await scene.store.read_audit(claimed.tenant)] == ["person:rival"]


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The sweeper takes the task away first: it is queued, and cancelled there."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "cancelled"
    assert await scene.rows("queue", claimed) == []


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first and the sweeper does not wait for it: the next sweep ends it as cancelled."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        scene.pass_time(61 * SECOND)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        assert (await ended(twin)).lost == ()
        await other.commit()
    await scene.sweep()
    assert (await scene.task(claimed)).state == "cancelled"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["cancelled"]


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """An intent comes first: it is committed before the acknowledgement."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    async with rival(place.url) as other:
        await flush(other, scene, claimed, intent)
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "requested"
    assert (await scene.operation(claimed, intent.key)).state == "running"
    assert (await scene.flush(claimed, scene.intent())).refusals == ((0, "cancelled"),)


@blocked("cancel", "head", "changed")
async def _(place: Place) -> None:
    """The cancel comes first: no intent is admitted from its commit on."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(claimed)], now=scene.now)
        verdict = await deferred_then(scene, other, claimed, scene.intent())
    assert verdict.refusals == ((0, "cancelled"),)
    assert await scene.rows("operations", claimed) == []


@blocked("cancel", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = cancelling(scene, claimed)
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "requested"


# ── news ─────────────────────────────────────────────────────────────────────────────────────────


@blocked("news", "lease", "changed")
async def _(place: Place) -> None:
    """Another signal is under way while the worker says what it has heard: that one is not lost."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    async with rival(place.url) as other:
        await (await people(other)).post([scene.signal(claimed)], now=scene.now)
        twin = start(scene.news(session, (claimed, 1)))
        assert not await other.see_blocked(twin)
        await ended(twin)
        await other.commit()
    assert [one.facts for one in await scene.news(session, (claimed, 1))] == [2]
    assert await scene.news(session, (claimed, 2)) == []


@blocked("news", "lease", "held")
async def _(place: Place) -> None:
    """Somebody has the lease's row: nobody waits, and what was heard is told once more."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    async with rival(place.url) as other:
        await other.hold("leases", tenant=claimed.tenant, task=claimed.task)
        twin = start(scene.news(session, (claimed, 1)))
        assert not await other.see_blocked(twin)
        assert [one.facts for one in await ended(twin)] == [1]
        await other.commit()
    assert await scene.news(session, (claimed, 1)) == []


# ── decide ───────────────────────────────────────────────────────────────────────────────────────


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """Two decisions: the first to commit wins, and the second is told so."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row, by="person:ann")], now=scene.now)
        twins = [start(scene.decide(row, "reject")), start(scene.decide(row, by="person:ann"))]
        assert await other.see_blocked(twins[0])
        await other.commit()
        assert [(await ended(twin)).kind for twin in twins] == ["conflict", "repeated"]
    assert (await scene.approval(claimed, row.key)).decided_by == "person:ann"
    assert (await head(scene, claimed))["facts"] == 1


@blocked("decide", "approval", "held")
async def _(place: Place) -> None:
    """The first fails after all."""
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        twin = start(scene.decide(row, "reject"))
        assert await other.see_blocked(twin)
        await other.rollback()
        assert (await ended(twin)).kind == "decided"
    assert (await scene.approval(claimed, row.key)).state == "rejected"


@blocked("decide", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed, row = await asked(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "decided"


@blocked("decide", "quorum", "changed")
async def _(place: Place) -> None:
    """Two votes at once: both count, and the second decides."""
    scene = place.scene
    claimed, row = await asked(scene, quorum=2)
    async with rival(place.url) as other:
        await (await people(other)).decide([scene.decision(row)], now=scene.now)
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "decided"
    assert (await scene.approval(claimed, row.key)).votes == 2


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """An edit comes first: what was seen is not what is asked any more."""
    scene = place.scene
    claimed, row = await asked(scene, quorum=2)
    edit = scene.decision(row, arguments="{}", shown="{}", new_fingerprint="edited")
    async with rival(place.url) as other:
        await (await people(other)).decide([edit], now=scene.now)
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "fingerprint"
    assert (await scene.approval(claimed, row.key)).votes == 1


@blocked("decide", "approval", "changed")
async def _(place: Place) -> None:
    """The worker says first that its time is over."""
    scene = place.scene
    claimed, row = await asked(scene, expires_in_us=SECOND)
    scene.pass_time(SECOND)
    async with rival(place.url) as other:
        await flush(other, scene, claimed, ExpireApproval(key=row.key, number=1))
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "expired"
    assert (await scene.kinds(claimed)).count("approval.expired") == 1


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
        twin = start(scene.decide(row, "reject"))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "conflict"
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
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "conflict"
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
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "decided"
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
        twin = start(scene.decide(row))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).kind == "conflict"
    assert (await scene.kinds(claimed))[-1] == "task.cancelled"


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
        twin = withdrawing(scene, number)
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) is False


@blocked("withdraw_rule", "rules", "held")
async def _(place: Place) -> None:
    """The first fails after all."""
    scene = place.scene
    number, _ = await ruled(scene)
    async with rival(place.url) as other:
        theirs = await people(other)
        assert await theirs.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now)
        twin = withdrawing(scene, number)
        assert await other.see_blocked(twin)
        await other.rollback()
        assert await ended(twin) is True
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
        twin = withdrawing(scene, number)
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) is True
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
        twin = flushing(scene, claimed, scene.intent(name="pay", consent=consent))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin))[0].refusals == ((0, "rules_changed"),)


@blocked("flush", "rules", "changed")
async def _(place: Place) -> None:
    """A rule is put first, for a tool that had none."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        await (await people(other)).put_rule(scene.rule("pay", "deny"), now=scene.now)
        twin = flushing(scene, claimed, scene.intent(name="pay"))
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin))[0].refusals == ((0, "rules_changed"),)


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
        twin = start(scene.store.settle([scene.settlement(claimed, intent.key)], now=scene.now))
        assert await other.see_blocked(twin)
        await other.commit()
        assert [(one.kind, one.state) for one in await ended(twin)] == [("conflict", "running")]


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


# ── children ─────────────────────────────────────────────────────────────────────────────────────


def kid_of(scene: Scene, parent: Claimed) -> Submission:
    """Make the record of a child."""
    return scene.submission(key=None, parent=Parent(task=parent.task, epoch=parent.epoch, key="kid"))


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The parent ends first: it has no more children."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.success())
        twin = start(scene.store.submit([kid]))
        assert await other.see_blocked(twin)
        await other.commit()
        assert await ended(twin) == [Submitted(kind="stale", task=kid.task)]
    assert await scene.store.read_tasks([TaskRef(tenant=kid.tenant, task=kid.task)]) == []


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The parent is cancelled first."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await (await people(other)).cancel([cancel(parent)], now=scene.now)
        twin = start(scene.store.submit([kid]))
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.kind for one in await ended(twin)] == ["stale"]


@blocked("submit", "parent", "changed")
async def _(place: Place) -> None:
    """The child comes first: its parent's end reaches it."""
    scene = place.scene
    parent = await scene.running()
    kid = kid_of(scene, parent)
    async with rival(place.url) as other:
        await scene.store.submit([kid], connection=other.connection)
        verdict = await deferred_then(scene, other, parent, scene.success())
        assert verdict.kind == "accepted"
    await scene.deliver_all()
    assert (await scene.task(kid)).state == "cancelled"


@blocked("submit", "parent", "held")
async def _(place: Place) -> None:
    scene = place.scene
    parent = await scene.running()
    kid, alone = kid_of(scene, parent), scene.submission()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=parent.tenant, id=parent.task)
        twin = start(scene.store.submit([alone, kid]))
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.kind for one in await ended(twin)] == ["accepted", "accepted"]
    assert (await scene.task(parent)).children == 1


# ── deliver ──────────────────────────────────────────────────────────────────────────────────────


async def a_child_has_ended(scene: Scene) -> Claimed:
    """Have a running parent, its child's end on the way."""
    parent = await scene.running(ttl_us=HOUR)
    await scene.write(await scene.claim_task(await scene.child(parent, "kid")), scene.success())
    return parent


def delivering(scene: Scene) -> Any:
    """Begin to deliver."""
    return start(scene.store.deliver(99, now=scene.now))


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The parent suspends first: it is woken."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.suspension("child"))
        twin = delivering(scene)
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.task for one in (await ended(twin)).told] == [parent.task]
    assert (await scene.task(parent)).state == "queued"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The child's end comes first: the suspension has not seen it."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        verdict = await deferred_then(scene, other, parent, scene.suspension("child"))
    assert verdict.state == "queued"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """The parent ends first: nobody is told."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await flush(other, scene, parent, scene.success())
        twin = delivering(scene)
        assert await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).told == ()
    await scene.deliver_all()
    assert await inbox(scene, parent) == []
    assert (await scene.kinds(parent))[-1] == "task.succeeded"


@blocked("deliver", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the child first: it is marked."""
    scene = place.scene
    parent = await scene.running()
    kid, session = await scene.child(parent), await scene.session()
    await scene.write(parent, scene.success())
    async with rival(place.url) as other:
        await claim(other, scene, session, kid)
        twin = delivering(scene)
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.task for one in (await ended(twin)).cancelled] == [kid.task]
    task = await scene.task(kid)
    assert (task.state, task.cancelling) == ("running", True)


@blocked("deliver", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=parent.tenant, id=parent.task)
        twin = delivering(scene)
        assert await other.see_blocked(twin)
        await other.commit()
        assert [one.task for one in (await ended(twin)).told] == [parent.task]


@blocked("deliver", "post", "changed")
async def _(place: Place) -> None:
    """Another delivers it: nobody waits, and it is delivered once."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        twin = delivering(scene)
        assert not await other.see_blocked(twin)
        assert await ended(twin) == Delivered()
        await other.commit()
    before = await scene.store.dump()
    assert await scene.store.deliver(99, now=scene.now) == Delivered()
    assert changed(before, await scene.store.dump()) == {}
    assert [row.name for row in await inbox(scene, parent)] == ["kid"]


@blocked("deliver", "post", "held")
async def _(place: Place) -> None:
    """Another fails to deliver it: it is still there."""
    scene = place.scene
    parent = await a_child_has_ended(scene)
    async with rival(place.url) as other:
        await (await other.about_to_commit("deliver")).deliver(99, now=scene.now)
        assert await ended(delivering(scene)) == Delivered()
        await other.rollback()
    assert [one.task for one in (await scene.store.deliver(99, now=scene.now)).told] == [parent.task]


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("twin", [pytest.param(one, id=one.name) for one in BLOCKED])
async def test_a_blocked_twin_tells_the_truth(place: Place, twin: Blocked) -> None:
    await twin.play(place)
    assert check_all(await place.scene.store.dump()) == []
