"""Facts, decisions and cancels against what is in flight: each waits for the head and looks afterwards.

The twin that comes first has done its work in a transaction that is still open. What comes second is started,
seen to wait (a flush waits for nobody: it is deferred), and then the first one commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.contract.postgres_only.conftest import until, until_blocked

from outlast.store.approving import ApprovalRow, Decision
from outlast.store.postgres import PostgresStore, batches
from outlast.store.posting import Cancel, Signal
from outlast.store.records import Claimed, Consent, EndAttempt, Entry, Evidence, ExpireApproval, Parent
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene


class Twin:
    """A verb that has done its work in a transaction which is still open."""

    def __init__(self, scene: Scene, connection: Any) -> None:
        self._scene, self._connection = scene, connection
        self._transaction = connection.transaction()

    async def run(self, name: str, *arguments: Any) -> Any:
        """Do a verb's work by its statement."""
        store = self._scene.store
        assert isinstance(store, PostgresStore)
        if not self._connection.is_in_transaction():
            await self._transaction.start()
        return await self._connection.fetch(store._sql[name], *arguments, self._scene.now)

    async def flush(self, *writes: Any) -> str:
        """Flush as another worker's writer would."""
        await self._transaction.start()
        batch = self._scene.batch(*writes, writer="wr_twin")
        return str(
            await self._connection.fetchval(batches.statement(), *batches.encode(batch, self._scene.now))
        )

    async def post(self, signal: Signal) -> None:
        one = ([signal.tenant], [signal.task], [signal.name], [signal.data], [signal.digest], [signal.key])
        [row] = await self.run("post", *one, 99)
        assert row["kind"] == "accepted"

    async def cancel(self, of: Any) -> str:
        [row] = await self.run("cancel", [of.tenant], [of.task], ["person:eve"], ["enough"], [False])
        return str(row["kind"])

    async def decide(self, one: Decision) -> str:
        texts = [one.tenant, one.approval, one.verdict, one.by, one.fingerprint, one.reason, '["*"]', one.via]
        more = [one.arguments, one.shown, one.new_fingerprint, one.answer]
        [row] = await self.run("decide", *([value] for value in (*texts, *more)))
        return str(row["verdict"])

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


@pytest.fixture
def twin(scene: Scene, beside: Any) -> Twin:
    """The one that comes first."""
    return Twin(scene, beside)


Blocks = Callable[[str, Awaitable[Any]], Awaitable["asyncio.Future[Any]"]]


@pytest.fixture
async def blocks(connect: Any) -> Blocks:
    """Start what comes second and see that it waits."""
    watcher = await connect()

    async def start(duty: str, work: Awaitable[Any]) -> asyncio.Future[Any]:
        started = asyncio.ensure_future(work)
        await until_blocked(watcher, duty)
        assert not started.done()
        return started

    return start


async def deferred(scene: Scene, claimed: Claimed, *entries: Entry) -> None:
    """See that a worker's write is put off while somebody has the head."""
    assert (await scene.flush(claimed, *entries)).kind == "deferred"


async def finals(scene: Scene, of: Any) -> list[str]:
    """Read a task's final events."""
    kinds = await scene.kinds(of)
    return [kind for kind in kinds if kind in ("task.succeeded", "task.failed", "task.cancelled")]


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_signal_that_waits_for_a_suspension_wakes_the_task(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    await twin.flush(scene.writes(claimed, scene.suspension("signal")))
    posting = await blocks("people", scene.post(scene.signal(claimed)))
    await twin.commit()
    assert [posted.kind for posted in await posting] == ["accepted"]
    assert (await scene.task(claimed)).state == "queued"
    assert (await scene.kinds(claimed))[-2:] == ["signal.received", "task.woken"]
    assert len(await scene.rows("queue", claimed)) == 1


async def test_a_suspension_that_waits_for_a_signal_is_queued_at_once(scene: Scene, twin: Twin) -> None:
    claimed = await scene.running()
    suspension = scene.suspension("signal")
    await twin.post(scene.signal(claimed))
    await deferred(scene, claimed, suspension)
    await twin.commit()
    assert (await scene.write(claimed, suspension)).state == "queued"
    assert (await scene.claim_task(claimed)).facts == 1


async def test_a_signal_that_waits_for_the_end_is_told_of_it(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    await twin.flush(scene.writes(claimed, scene.success()))
    posting = await blocks("people", scene.post(scene.signal(claimed)))
    await twin.commit()
    assert [(posted.kind, posted.state) for posted in await posting] == [("ended", "succeeded")]
    assert await scene.rows("inbox", claimed) == []


async def test_two_signals_under_one_key_are_one(scene: Scene, twin: Twin, blocks: Blocks) -> None:
    claimed = await scene.running()
    signal = scene.signal(claimed, key="once")
    await twin.post(signal)
    posting = await blocks("people", scene.post(signal, replace(signal, digest="other")))
    await twin.commit()
    assert [(posted.kind, posted.number) for posted in await posting] == [("replayed", 1), ("conflict", 1)]


async def test_news_waits_for_no_post_and_loses_none(scene: Scene, twin: Twin) -> None:
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    await twin.post(scene.signal(claimed))
    assert [one.facts for one in await scene.news(session, (claimed, 1))] == [1]
    await twin.commit()
    assert [one.facts for one in await scene.news(session, (claimed, 1))] == [2]
    assert await scene.news(session, (claimed, 2)) == []


# ── cancels ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancel_that_waits_for_an_ending_states_that_end(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    await twin.flush(scene.writes(claimed, scene.success()))
    cancelling = await blocks("people", scene.cancel(claimed))
    await twin.commit()
    reply = await cancelling
    assert (reply.kind, reply.state) == ("ended", "succeeded")
    assert await finals(scene, claimed) == ["task.succeeded"]


@pytest.mark.parametrize("how", ["success", "failure", "release", "suspension"])
async def test_an_ending_that_waits_for_a_cancel_ends_as_cancelled(
    scene: Scene, twin: Twin, how: str
) -> None:
    claimed = await scene.running()
    endings: dict[str, EndAttempt] = {
        "success": scene.success(),
        "failure": scene.failure(),
        "release": scene.release(),
        "suspension": scene.suspension("timer", wake_in_us=HOUR),
    }
    assert await twin.cancel(claimed) == "requested"
    await deferred(scene, claimed, endings[how])
    await twin.commit()
    assert (await scene.write(claimed, endings[how])).state == "cancelled"
    task = await scene.task(claimed)
    assert (task.state, task.cancelling, task.result) == ("cancelled", False, None)
    assert task.error == '{"code":"cancelled","message":"enough"}'
    assert await finals(scene, claimed) == ["task.cancelled"]
    assert await scene.rows("queue", claimed) == await scene.rows("timers", claimed) == []


async def test_no_intent_gets_in_behind_an_acknowledged_cancel(scene: Scene, twin: Twin) -> None:
    claimed = await scene.running()
    intent = scene.intent()
    await twin.cancel(claimed)
    await deferred(scene, claimed, intent)
    await twin.commit()
    assert (await scene.flush(claimed, intent)).refusals == ((0, "cancelled"),)


async def test_a_cancel_waits_for_an_intent_under_way(scene: Scene, twin: Twin, blocks: Blocks) -> None:
    claimed = await scene.running()
    await twin.flush(scene.writes(claimed, scene.intent("it")))
    cancelling = await blocks("people", scene.cancel(claimed))
    await twin.commit()
    assert (await cancelling).kind == "requested"
    assert (await scene.operation(claimed, "it")).state == "running"


# ── children ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_childs_end_that_waits_for_its_parents_suspension_wakes_it(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    parent = await scene.running()
    child = await scene.child(parent, "kid")
    await scene.write(await scene.claim_task(child), scene.success())
    await twin.flush(scene.writes(parent, scene.suspension("child")))
    delivering = await blocks("deliver", scene.store.deliver(9, now=scene.now))
    await twin.commit()
    assert [ref.task for ref in (await delivering).told] == [parent.task]
    assert (await scene.task(parent)).state == "queued"
    assert await scene.store.dump() | {"posts": []} == await scene.store.dump()


async def test_a_suspension_that_waits_for_a_childs_end_is_queued_at_once(scene: Scene, twin: Twin) -> None:
    parent = await scene.running()
    child = await scene.child(parent, "kid")
    await scene.write(await scene.claim_task(child), scene.success())
    suspension = scene.suspension("child")
    assert [row["kind"] for row in await twin.run("deliver", 9)] == ["told"]
    await deferred(scene, parent, suspension)
    # What somebody is delivering is nobody else's.
    again = await scene.store.deliver(9, now=scene.now)
    assert (again.told, again.cancelled, again.more) == ((), (), False)
    await twin.commit()
    assert (await scene.write(parent, suspension)).state == "queued"
    assert [(row["number"], row["name"]) for row in await scene.rows("inbox", parent)] == [(1, "kid")]


async def test_a_child_that_waits_for_its_parents_end_is_stale(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    parent = await scene.running()
    record = scene.submission(parent=Parent(task=parent.task, epoch=parent.epoch, key="kid"))
    await twin.flush(scene.writes(parent, scene.success()))
    submitting = await blocks("submit", scene.store.submit([record, other := scene.submission()]))
    await twin.commit()
    assert [verdict.kind for verdict in await submitting] == ["stale", "accepted"]
    assert await scene.rows("inputs", record) == []
    assert len(await scene.rows("queue", other)) == 1
    assert (await scene.task(parent)).children == 0


async def test_a_parents_end_that_waits_for_its_child_cancels_it(scene: Scene, beside: Any) -> None:
    parent = await scene.running()
    record = scene.submission(parent=Parent(task=parent.task, epoch=parent.epoch, key="kid"))
    async with beside.transaction():
        [verdict] = await scene.store.submit([record], connection=beside)
        assert verdict.kind == "accepted"
        await deferred(scene, parent, success := scene.success())
    await scene.write(parent, success)
    await scene.deliver_all()
    assert (await scene.task(record)).state == "cancelled"
    assert await scene.rows("queue", record) == []


async def test_two_batches_that_end_each_others_children_wait_for_nobody(scene: Scene, twin: Twin) -> None:
    one, two = await scene.running(), await scene.running()
    ones = await scene.claim_task(await scene.child(one, "kid"))
    twos = await scene.claim_task(await scene.child(two, "kid"))
    over = [scene.success() for _ in range(4)]
    assert await twin.flush(scene.writes(one, over[0]), scene.writes(twos, over[1])) == "SS"
    batch = scene.batch(scene.writes(two, over[2]), scene.writes(ones, over[3]))
    async with asyncio.timeout(5):
        verdicts = await scene.store.flush(batch, now=scene.now)
    assert [(verdict.kind, verdict.state) for verdict in verdicts] == [("accepted", "succeeded")] * 2
    await twin.commit()
    await scene.deliver_all()
    for task in (one, two, ones, twos):
        assert await finals(scene, task) == ["task.succeeded"]


async def test_two_deliveries_into_the_same_families_do_not_deadlock(
    scene: Scene, twin: Twin, connect: Any, another: Any
) -> None:
    """Posts are shared out, heads are locked in the order of their names by both."""
    parents = [await scene.running() for _ in range(4)]
    for _ in range(2):
        for parent in parents:
            child = await scene.child(parent)
            await scene.write(await scene.claim_task(child), scene.success())
    rows = await twin.run("deliver", 3)
    other = await another()
    delivering = asyncio.ensure_future(other.deliver(99, now=scene.now))
    await until_blocked(await connect(), "deliver")
    await twin.commit()
    told = {row["task"] for row in rows if row["kind"] == "told"} | {r.task for r in (await delivering).told}
    assert told == {parent.task for parent in parents}
    for parent in parents:
        assert [row["number"] for row in await scene.rows("inbox", parent)] == [1, 2]


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


async def question(scene: Scene, claimed: Claimed) -> ApprovalRow:
    """Put a question before people that is over in an hour."""
    return await scene.asked(claimed, scene.question("it"))


async def test_a_decision_that_waits_for_the_expiry_is_too_late(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    asked = await question(scene, claimed)
    scene.pass_time(HOUR)
    assert await twin.flush(scene.writes(claimed, ExpireApproval(key="it", number=1))) == "r"
    scene.pass_time(-SECOND)
    deciding = await blocks("people", scene.decide(asked))
    await twin.commit()
    decided = await deciding
    assert decided.kind == "expired"
    assert decided.approval is not None
    assert decided.approval.state == "expired"
    assert await scene.rows("votes", claimed) == []


async def test_an_expiry_that_waits_for_the_answer_is_refused(scene: Scene, twin: Twin) -> None:
    claimed = await scene.running()
    asked = await question(scene, claimed)
    assert await twin.decide(scene.decision(asked)) == "decided"
    scene.pass_time(HOUR)
    await deferred(scene, claimed, ExpireApproval(key="it", number=1))
    await twin.commit()
    verdict = await scene.flush(claimed, ExpireApproval(key="it", number=1))
    assert verdict.refusals == ((0, "not_expired"),)
    assert (await scene.approval(claimed, "it")).state == "approved"


async def test_the_time_is_looked_at_once_the_head_is_there(scene: Scene, beside: Any, connect: Any) -> None:
    """Whoever waited past the expiry is too late, whenever they began."""
    claimed = await scene.running()
    ask = scene.ask("it", expires_in_us=400_000)
    [verdict] = await scene.store.flush(scene.batch(scene.writes(claimed, ask)))
    assert verdict.kind == "accepted"
    asked = await scene.approval(claimed, "it")
    transaction = beside.transaction()
    await transaction.start()
    await beside.fetch("select from tasks where id = $1 for update", claimed.task)
    deciding = asyncio.ensure_future(scene.store.decide([scene.decision(asked)]))
    watcher = await connect()
    await until_blocked(watcher, "people")
    await until(watcher, "select outlast.clock_us() > $1", asked.expires_at)
    await transaction.rollback()
    assert [one.kind for one in await deciding] == ["expired"]
    assert (await scene.approval(claimed, "it")).state == "expired"


@pytest.mark.parametrize("verdicts", [("approve", "reject"), ("reject", "approve")])
async def test_the_first_of_two_decisions_wins(
    scene: Scene, twin: Twin, blocks: Blocks, verdicts: tuple[Any, Any]
) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed)
    first, second = (scene.decision(asked, verdict) for verdict in verdicts)
    assert await twin.decide(first) == "decided"
    deciding = await blocks("people", scene.store.decide([second], now=scene.now))
    await twin.commit()
    [decided] = await deciding
    assert decided.kind == "conflict"
    assert decided.approval is not None
    assert (decided.approval.decided_by, decided.approval.votes) == (first.by, int(verdicts[0] == "approve"))
    assert [vote.who for vote in await scene.store.read_votes(asked.tenant, asked.id)] == [first.by]


async def test_a_decision_that_was_not_committed_is_none(scene: Scene, twin: Twin, blocks: Blocks) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed)
    await twin.decide(scene.decision(asked, "reject"))
    deciding = await blocks("people", scene.decide(asked))
    await twin.rollback()
    assert (await deciding).kind == "decided"
    assert (await scene.approval(claimed, asked.key)).state == "approved"


async def test_two_votes_are_two(scene: Scene, twin: Twin, blocks: Blocks) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed, quorum=2)
    assert await twin.decide(scene.decision(asked)) == "counted"
    deciding = await blocks("people", scene.decide(asked))
    await twin.commit()
    assert (await deciding).kind == "decided"
    assert (await scene.approval(claimed, asked.key)).votes == 2


async def test_a_decision_that_waits_for_the_end_finds_nothing_to_decide(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed)
    await twin.flush(scene.writes(claimed, scene.failure()))
    deciding = await blocks("people", scene.decide(asked))
    await twin.commit()
    decided = await deciding
    assert decided.kind == "conflict"
    assert decided.approval is not None
    assert decided.approval.state == "withdrawn"


async def test_an_edit_in_flight_leaves_an_intent_without_its_decision(scene: Scene, twin: Twin) -> None:
    claimed = await scene.running()
    ask = scene.ask("it")
    asked = await scene.asked(claimed, ask)
    edit = scene.decision(asked, new_fingerprint="edited", arguments=scene.text("edited"))
    await twin.decide(edit)
    consent = Consent(policy=asked.policy, approval=1, fingerprint=asked.fingerprint)
    intent = scene.intent("it", name=ask.name, consent=consent)
    await deferred(scene, claimed, intent)
    await twin.commit()
    assert (await scene.flush(claimed, intent)).refusals == ((0, "no_approval"),)
    edited = replace(intent, consent=replace(consent, fingerprint="edited"))
    await scene.write(claimed, edited)
    assert (await scene.approval(claimed, "it")).state == "used"


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_withdrawal_waits_for_the_intents_under_way(scene: Scene, twin: Twin, blocks: Blocks) -> None:
    claimed = await scene.running()
    number = await scene.store.put_rule(scene.rule("tool"), now=scene.now)
    version = (await scene.store.read_rules(scene.tenant, "tool")).version
    intent = scene.intent("it", name="tool", consent=Consent(policy="p", rules=version))
    assert await twin.flush(scene.writes(claimed, intent)) == "r"
    work = scene.store.withdraw_rule(scene.tenant, number, "person:rose", "no more", now=scene.now)
    withdrawing = await blocks("people", work)
    await twin.commit()
    assert await withdrawing is True
    assert (await scene.operation(claimed, "it")).state == "running"


@pytest.mark.parametrize("change", ["withdraw_rule", "put_rule"])
async def test_an_intent_that_waits_for_a_change_of_rules_is_refused(
    scene: Scene, twin: Twin, blocks: Blocks, change: str
) -> None:
    claimed = await scene.running()
    number = await scene.store.put_rule(scene.rule("tool"), now=scene.now)
    version = (await scene.store.read_rules(scene.tenant, "tool")).version
    intent = scene.intent("it", name="tool", consent=Consent(policy="p", rules=version))
    if change == "withdraw_rule":
        await twin.run("withdraw_rule", scene.tenant, number, "person:rose", "no more")
    else:
        await twin.run("put_rule", scene.tenant, "tool", "deny", "{}", "person:rose", "no more")
    flushing = await blocks("flush", scene.flush(claimed, intent))
    await twin.commit()
    assert (await flushing).refusals == ((0, "rules_changed"),)


async def test_the_first_rule_of_all_meets_an_intent_that_waits_for_it(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    await twin.run("put_rule", scene.tenant, "tool", "deny", "{}", "person:rose", "no more")
    flushing = await blocks("flush", scene.flush(claimed, scene.intent("it", name="tool")))
    await twin.commit()
    assert (await flushing).refusals == ((0, "rules_changed"),)


# ── resends ──────────────────────────────────────────────────────────────────────────────────────


async def test_evidence_in_flight_stops_the_resend_that_waits_for_it(scene: Scene, twin: Twin) -> None:
    claimed = await scene.running()
    intent = scene.intent("it")
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, "it", "unknown"))
    settlement = scene.settlement(claimed, "it", "send_again", forced=True)
    await scene.store.settle([settlement], now=scene.now)
    row = await scene.operation(claimed, "it")
    again = replace(intent, attempt=row.attempt, turn=row.turn, resend=True)
    late = Evidence(
        tenant=claimed.tenant,
        task=claimed.task,
        key="it",
        attempt=1,
        source="late",
        data="{}",
        says="happened",
    )
    columns = (late.tenant, late.task, late.key, late.attempt, late.source, late.data, late.says)
    await twin.run("note", *([value] for value in columns))
    await deferred(scene, claimed, again)
    await twin.commit()
    assert (await scene.flush(claimed, again)).refusals == ((0, "not_planned"),)
    [item] = await scene.rows("unsettled", claimed)
    assert (item["resend"], item["ask_at"]) == (False, scene.now)


async def test_a_cancel_asked_for_twice_at_once_keeps_the_first_reason(
    scene: Scene, twin: Twin, blocks: Blocks
) -> None:
    claimed = await scene.running()
    await twin.cancel(claimed)
    second = Cancel(tenant=claimed.tenant, task=claimed.task, by="person:ann", reason="other")
    cancelling = await blocks("people", scene.store.cancel([second], now=scene.now))
    await twin.commit()
    assert [reply.kind for reply in await cancelling] == ["requested"]
    await scene.write(claimed, scene.success())
    error = (await scene.task(claimed)).error
    assert error == '{"code":"cancelled","message":"enough"}'
