"""The stale twin of everything fenced, on every store: its right is gone, and it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
from tests.races.twins import BUILDS, LOSSES, begun

from outlast.core.operation import OperationState
from outlast.store.entries import TakeTurn
from outlast.store.posting import CancelReply, Delivered
from outlast.store.reconciling import OpenItem, OpenRequest, Postponement
from outlast.store.records import Claimed, Evidence, SessionRenewal, Settled, Submitted
from outlast.store.rows import Publication
from outlast.store.scheduling import Fired, PutSchedule, SchedulePut, ScheduleSet
from outlast.testing.checkers import check_all
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.claiming_along import asks, both, like
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

# ── entries of the journal ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entry_of", BUILDS)
async def test_an_entry_in_time_is_written(scene: Scene, entry_of: str) -> None:
    """What makes the stale twins below worth something: each would have changed the store."""
    claimed = await begun(scene, entry_of, deadline_us=HOUR)
    entry = await BUILDS[entry_of](scene, claimed)
    before = await scene.store.dump()
    await scene.write(claimed, entry)
    assert changed(before, await scene.store.dump()) != {}
    assert check_all(await scene.store.dump(), earlier=before) == []


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("entry_of", BUILDS)
async def test_an_entry_of_a_lost_lease_changes_nothing(scene: Scene, entry_of: str, loss: str) -> None:
    claimed = await begun(scene, entry_of, deadline_us=HOUR)
    entry = await BUILDS[entry_of](scene, claimed)
    await LOSSES[loss](scene, claimed)
    before = await scene.store.dump()
    assert (await scene.flush(claimed, entry)).kind == "stale"
    assert changed(before, await scene.store.dump()) == {}
    assert check_all(await scene.store.dump(), earlier=before) == []


@pytest.mark.parametrize("entry_of", BUILDS)
async def test_a_stale_entry_spares_its_neighbours(scene: Scene, entry_of: str) -> None:
    claimed, neighbour = await begun(scene, entry_of), await begun(scene, entry_of, ttl_us=HOUR)
    entry = await BUILDS[entry_of](scene, claimed)
    theirs = await BUILDS[entry_of](scene, neighbour)
    await scene.lose(claimed)
    mine = await scene.rows("events", claimed)
    batch = scene.batch(scene.writes(claimed, entry), scene.writes(neighbour, theirs))
    verdicts = await scene.store.flush(batch, now=scene.now)
    assert [verdict.kind for verdict in verdicts] == ["stale", "accepted"]
    assert await scene.rows("events", claimed) == mine
    assert check_all(await scene.store.dump()) == []


@pytest.mark.parametrize("entry_of", BUILDS)
async def test_an_entry_of_another_tenants_twin_changes_nothing(scene: Scene, entry_of: str) -> None:
    """Same task id, same epoch, same everything: but the tenant."""
    claimed = await begun(scene, entry_of, tenant="tenant-blue")
    record = replace(scene.submission(tenant="tenant-red"), task=claimed.task)
    await scene.accept([record])
    entry = await BUILDS[entry_of](scene, claimed)
    before = await scene.store.dump()
    foreign = replace(claimed, tenant="tenant-red")
    assert (await scene.flush(foreign, entry)).kind == "stale"
    assert changed(before, await scene.store.dump()) == {}


# ── verbs ────────────────────────────────────────────────────────────────────────────────────────

Twin = Callable[[Scene], Awaitable[None]]
STALE: dict[str, list[Twin]] = {"flush": [], "submit": []}


def stale(verb: str) -> Callable[[Twin], Twin]:
    """Register a stale twin of a verb."""

    def register(twin: Twin) -> Twin:
        STALE.setdefault(verb, []).append(twin)
        return twin

    return register


def passing(of: Claimed, key: str) -> Evidence:
    """Make the note of a request that is about to leave."""
    return Evidence(tenant=of.tenant, task=of.task, key=key, attempt=1, source="gateway", data="{}")


async def nothing_changes(scene: Scene, act: Callable[[], Awaitable[object]]) -> object:
    """Demand that an act changes nothing, and answer what it answered."""
    before = await scene.store.dump()
    answer = await act()
    assert changed(before, await scene.store.dump()) == {}
    return answer


@stale("flush")
async def _a_batch_whose_number_is_used(scene: Scene) -> None:
    claimed = await scene.running()
    first = scene.batch(scene.writes(claimed, scene.step()))
    verdicts = await scene.store.flush(first, now=scene.now)
    twin = replace(first, writes=(scene.writes(claimed, scene.success()),))
    assert await nothing_changes(scene, lambda: scene.store.flush(twin, now=scene.now)) == verdicts


@stale("submit")
async def _a_submission_whose_key_is_used(scene: Scene) -> None:
    first = await scene.submit()
    twin = scene.submission(key=first.key, request_digest=first.request_digest)
    [verdict] = await nothing_changes(scene, lambda: scene.store.submit([twin]))  # type: ignore[misc]
    assert (verdict.kind, verdict.task) == ("replayed", first.task)


@stale("renew")
async def _a_renewal_of_a_swept_session(scene: Scene) -> None:
    session = await scene.session()
    await scene.running(session=session)
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    renewal = SessionRenewal(session=session, name="late", ttl_us=HOUR)
    renewed = await nothing_changes(scene, lambda: scene.store.renew(renewal, now=scene.now))
    assert renewed.alive is False  # type: ignore[attr-defined]


@stale("retire")
async def _a_retirement_of_a_swept_session(scene: Scene) -> None:
    """The session's row may go; the task is its successor's."""
    session = await scene.session()
    claimed = await scene.running(session=session)
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    successor = await scene.claim_task(claimed)
    before = await scene.store.dump()
    await scene.store.retire(session)
    difference = changed(before, await scene.store.dump())
    assert set(difference) <= {"sessions"}
    await scene.write(successor, scene.success())


@stale("reconcile")
async def _a_look_through_the_leases_of_a_swept_session(scene: Scene) -> None:
    session = await scene.session()
    claimed = await scene.running(session=session)
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    await scene.claim_task(claimed)
    answer = await nothing_changes(scene, lambda: scene.store.reconcile(session, [], fence=1, now=scene.now))
    assert answer == []


@stale("claim")
async def _a_claim_of_a_swept_session(scene: Scene) -> None:
    record = await scene.submit()
    session = await scene.session()
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    with pytest.raises(AssertionError):
        await nothing_changes(scene, lambda: scene.claim_task(record, session=session))
    assert (await scene.task(record)).state == "queued"


@stale("claim")
async def _a_claim_behind_its_fence(scene: Scene) -> None:
    record = await scene.submit()
    session = await scene.session()
    await scene.store.reconcile(session, [], fence=1, now=scene.now)
    with pytest.raises(AssertionError):
        await nothing_changes(scene, lambda: scene.claim_task(record, session=session))
    assert (await scene.task(record)).state == "queued"


@stale("submit_and_claim")
async def _a_submit_that_claims_for_a_swept_session(scene: Scene) -> None:
    """The task is there, and nobody has it."""
    record, session = await like(scene), await scene.session()
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    _, reply = await both(scene, [record], asks(session, record))
    assert (reply.refused, reply.claims, await scene.rows("leases", record)) == (True, (), [])
    assert (await scene.task(record)).state == "queued"


@stale("submit_and_claim")
async def _a_submit_that_claims_behind_its_fence(scene: Scene) -> None:
    record, session = await like(scene), await scene.session()
    await scene.store.reconcile(session, [], fence=1, now=scene.now)
    _, reply = await both(scene, [record], asks(session, record))
    assert (reply.refused, reply.claims, await scene.rows("leases", record)) == (True, (), [])
    assert (await scene.task(record)).state == "queued"


@stale("settle")
async def _a_settlement_of_a_turn_that_passed(scene: Scene) -> None:
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    settlement = scene.settlement(claimed, key, turn=(await scene.operation(claimed, key)).turn)
    await scene.write(claimed, TakeTurn(key=key, attempt=1, turn=2))
    answer = await nothing_changes(scene, lambda: scene.store.settle([settlement], now=scene.now))
    assert answer == [Settled(kind="conflict", state="unknown")]


@stale("settle")
async def _a_settlement_of_what_is_settled(scene: Scene) -> None:
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
    twin = scene.settlement(claimed, key, "did_not_happen", forced=True)
    answer = await nothing_changes(scene, lambda: scene.store.settle([twin], now=scene.now))
    assert answer == [Settled(kind="conflict", state="succeeded")]


async def unknown(scene: Scene) -> tuple[Claimed, str]:
    """Have an unknown operation that waits for a settler."""
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown", name="look")
    await scene.write(claimed, scene.release())
    return claimed, key


async def taken(scene: Scene, session: str | None = None) -> list[OpenItem]:
    """Take what is open, for a while."""
    session = session or await scene.session(HOUR)
    request = OpenRequest(session=session, tools=("look",), limit=9, lease_us=20 * SECOND)
    return await scene.store.claim_open(request, now=scene.now)


def back(item: OpenItem) -> Postponement:
    """Put an item back under the turn that it was taken with."""
    operation = item.operation
    return Postponement(
        tenant=operation.tenant,
        task=operation.task,
        key=operation.key,
        turn=operation.turn,
        ask_in_us=SECOND,
        unusable=True,
        why="late",
    )


@stale("claim_open")
async def _a_look_of_a_swept_session(scene: Scene) -> None:
    session = await scene.session()
    await unknown(scene)
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    assert await nothing_changes(scene, lambda: taken(scene, session)) == []


@stale("claim_open")
async def _a_look_of_a_retired_session(scene: Scene) -> None:
    session = await scene.session()
    await unknown(scene)
    await scene.store.retire(session)
    assert await nothing_changes(scene, lambda: taken(scene, session)) == []


@stale("claim_open")
async def _a_look_at_what_somebody_has_taken(scene: Scene) -> None:
    session = await scene.session()
    await unknown(scene)
    await taken(scene)
    assert await nothing_changes(scene, lambda: taken(scene, session)) == []


@stale("claim_open")
async def _a_look_at_what_a_worker_has(scene: Scene) -> None:
    session = await scene.session()
    claimed, _ = await unknown(scene)
    await scene.claim_task(claimed)
    assert await nothing_changes(scene, lambda: taken(scene, session)) == []


@stale("claim_open")
async def _a_look_at_what_is_settled(scene: Scene) -> None:
    session = await scene.session()
    claimed, key = await unknown(scene)
    await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
    assert await nothing_changes(scene, lambda: taken(scene, session)) == []


@stale("postpone")
async def _a_postponement_of_what_another_settler_took(scene: Scene) -> None:
    await unknown(scene)
    [item] = await taken(scene)
    scene.pass_time(20 * SECOND)
    await taken(scene)
    answer = await nothing_changes(scene, lambda: scene.store.postpone([back(item)], now=scene.now))
    assert answer == [False]


@stale("postpone")
async def _a_postponement_of_what_a_worker_took(scene: Scene) -> None:
    claimed, key = await unknown(scene)
    [item] = await taken(scene)
    worker = await scene.claim_task(claimed)
    await scene.write(worker, TakeTurn(key=key, attempt=1, turn=item.operation.turn))
    answer = await nothing_changes(scene, lambda: scene.store.postpone([back(item)], now=scene.now))
    assert answer == [False]


@stale("postpone")
async def _a_postponement_of_what_is_settled(scene: Scene) -> None:
    claimed, key = await unknown(scene)
    [item] = await taken(scene)
    await scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
    answer = await nothing_changes(scene, lambda: scene.store.postpone([back(item)], now=scene.now))
    assert answer == [False]


@stale("postpone")
async def _a_postponement_that_was_made(scene: Scene) -> None:
    await unknown(scene)
    [item] = await taken(scene)
    await scene.store.postpone([back(item)], now=scene.now)
    scene.pass_time(SECOND)
    answer = await nothing_changes(scene, lambda: scene.store.postpone([back(item)], now=scene.now))
    assert answer == [True]


@stale("settle")
async def _a_settlement_by_a_settler_whose_time_is_over(scene: Scene) -> None:
    claimed, key = await unknown(scene)
    [item] = await taken(scene)
    scene.pass_time(20 * SECOND)
    await taken(scene)
    settlement = scene.settlement(claimed, key, by="settler", turn=item.operation.turn)
    answer = await nothing_changes(scene, lambda: scene.store.settle([settlement], now=scene.now))
    assert answer == [Settled(kind="conflict", state="unknown")]


@stale("admit")
async def _a_request_of_a_lease_that_is_lost(scene: Scene) -> None:
    """It is kept, and sees whose the task is now."""
    claimed = await scene.running()
    key = await scene.called(claimed)
    await scene.lose(claimed)
    [found] = await scene.store.admit([passing(claimed, key)], now=scene.now)
    assert found is not None
    assert (found.task_epoch > claimed.epoch, found.lease_epoch) == (True, None)
    assert await nothing_changes(
        scene, lambda: scene.store.admit([passing(claimed, "another")], now=scene.now)
    ) == [None]


async def _kept_and_no_more(
    scene: Scene, state: OperationState, says: Literal["did_not_happen", "over"]
) -> None:
    """Demand that what a first attempt says changes nothing of an operation whose second one ended so."""
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
    await scene.write(claimed, replace(intent, attempt=1, turn=2))
    settled_by = "worker" if state == "succeeded" else None
    await scene.write(claimed, await scene.outcome(claimed, intent.key, state, settled_by=settled_by))
    late = Evidence(
        tenant=claimed.tenant,
        task=claimed.task,
        key=intent.key,
        attempt=1,
        source="late",
        data="{}",
        says=says,
    )
    before = await scene.store.dump()
    await scene.store.note([late], now=scene.now)
    assert set(changed(before, await scene.store.dump())) == {"evidence"}


@stale("note")
async def _a_contradiction_of_an_attempt_that_was_followed_by_another(scene: Scene) -> None:
    """That the first one did nothing is kept, and that is all: the second one may have."""
    await _kept_and_no_more(scene, "succeeded", "did_not_happen")


@stale("note")
async def _that_a_sender_is_gone_of_an_attempt_that_was_followed_by_another(scene: Scene) -> None:
    """It says nothing of whoever made the last one."""
    await _kept_and_no_more(scene, "unknown", "over")


# ── facts from outside ───────────────────────────────────────────────────────────────────────────


@stale("submit")
async def _a_child_of_a_parent_that_was_taken_over(scene: Scene) -> None:
    parent = await scene.running()
    await scene.lose(parent)
    await scene.claim_task(parent)
    kid = scene.submission(key=None, parent=scene.parent(parent, "kid"))
    answer = await nothing_changes(scene, lambda: scene.store.submit([kid]))
    assert answer == [Submitted(kind="stale", task=kid.task)]


@stale("submit")
async def _a_child_of_a_parent_that_is_being_cancelled(scene: Scene) -> None:
    parent = await scene.running()
    await scene.cancel(parent)
    kid = scene.submission(key=None, parent=scene.parent(parent, "kid"))
    answer = await nothing_changes(scene, lambda: scene.store.submit([kid]))
    assert answer == [Submitted(kind="stale", task=kid.task)]


@stale("post")
async def _a_signal_whose_key_is_used(scene: Scene) -> None:
    claimed = await scene.running()
    signal = scene.signal(claimed, key="k")
    await scene.post(signal)
    twin = scene.signal(claimed, signal.name, key="k")
    answers = await nothing_changes(scene, lambda: scene.post(signal, twin))
    assert [one.kind for one in answers] == ["replayed", "conflict"]  # type: ignore[attr-defined]


@stale("post")
async def _a_signal_for_a_task_that_has_ended(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.success())
    [posted] = await nothing_changes(scene, lambda: scene.post(scene.signal(claimed)))  # type: ignore[misc]
    assert (posted.kind, posted.state) == ("ended", "succeeded")


@stale("cancel")
async def _a_cancel_of_what_has_ended(scene: Scene) -> None:
    claimed = await scene.running()
    await scene.write(claimed, scene.success())
    reply = await nothing_changes(scene, lambda: scene.cancel(claimed))
    assert reply == CancelReply(kind="ended", state="succeeded")


@stale("cancel")
async def _a_cancel_of_what_is_cancelled(scene: Scene) -> None:
    record = await scene.submit()
    await scene.cancel(record)
    reply = await nothing_changes(scene, lambda: scene.cancel(record))
    assert reply == CancelReply(kind="already", state="cancelled")


@stale("news")
async def _news_heard_by_a_session_that_was_swept(scene: Scene) -> None:
    """What it says that it has heard, its successor has not."""
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed))
    await scene.lose(claimed)
    successor = await scene.session()
    await scene.claim_task(claimed, session=successor)
    await scene.post(scene.signal(claimed))
    answer = await nothing_changes(scene, lambda: scene.news(session, (claimed, 1), (claimed, 2)))
    assert answer == []
    assert [one.facts for one in await scene.news(successor)] == [2]


@stale("news")
async def _news_that_were_followed_by_others(scene: Scene) -> None:
    session = await scene.session()
    claimed = await scene.running(session=session)
    await scene.post(scene.signal(claimed), scene.signal(claimed))
    [told] = await nothing_changes(scene, lambda: scene.news(session, (claimed, 1)))  # type: ignore[misc]
    assert told.facts == 2


@stale("deliver")
async def _a_delivery_of_what_is_delivered(scene: Scene) -> None:
    parent = await scene.running(ttl_us=HOUR)
    kid = await scene.child(parent)
    await scene.write(await scene.claim_task(kid), scene.success())
    await scene.deliver_all()
    delivered = await nothing_changes(scene, lambda: scene.store.deliver(9, now=scene.now))
    assert delivered == Delivered()


@stale("decide")
async def _a_decision_of_what_is_decided(scene: Scene) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed)
    await scene.decide(asked)
    decided = await nothing_changes(scene, lambda: scene.decide(asked, "reject"))
    assert decided.kind == "conflict"  # type: ignore[attr-defined]


@stale("decide")
async def _a_decision_of_what_was_asked_anew(scene: Scene) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed)
    await scene.write(claimed, scene.ask(asked.key, number=2))
    decided = await nothing_changes(scene, lambda: scene.decide(asked))
    assert decided.kind == "conflict"  # type: ignore[attr-defined]


@stale("decide")
async def _a_decision_of_what_has_been_edited_since(scene: Scene) -> None:
    claimed = await scene.running()
    asked = await scene.asked(claimed, scene.ask(quorum=2))
    await scene.decide(asked, arguments="{}", shown="{}", new_fingerprint="edited")
    decided = await nothing_changes(scene, lambda: scene.decide(asked))
    assert decided.kind == "fingerprint"  # type: ignore[attr-defined]


@stale("decide")
async def _a_decision_of_what_is_used(scene: Scene) -> None:
    claimed = await scene.running()
    ask = scene.ask()
    asked = await scene.asked(claimed, ask)
    await scene.decide(asked)
    await scene.write(claimed, scene.agreed_intent(ask))
    decided = await nothing_changes(scene, lambda: scene.decide(asked, "reject"))
    assert decided.kind == "conflict"  # type: ignore[attr-defined]


@stale("withdraw_rule")
async def _a_withdrawal_of_what_is_withdrawn(scene: Scene) -> None:
    number = await scene.store.put_rule(scene.rule("pay"), now=scene.now)
    await scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no", now=scene.now)
    answer = await nothing_changes(
        scene,
        lambda: scene.store.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now),
    )
    assert answer is False


@stale("flush")
async def _a_resend_of_what_was_settled(scene: Scene) -> None:
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
    await scene.store.settle([scene.settlement(claimed, intent.key)], now=scene.now)
    twin = replace(intent, attempt=1, turn=2, resend=True)
    verdict = await nothing_changes(scene, lambda: scene.flush(claimed, twin))
    assert verdict.refusals == ((0, "not_planned"),)  # type: ignore[attr-defined]


@stale("flush")
async def _an_intent_under_a_decision_that_was_withdrawn(scene: Scene) -> None:
    claimed = await scene.running()
    ask = scene.ask()
    await scene.decide(await scene.asked(claimed, ask))
    await scene.write(claimed, scene.ask(ask.key, number=2))
    verdict = await nothing_changes(scene, lambda: scene.flush(claimed, scene.agreed_intent(ask)))
    assert verdict.refusals == ((0, "no_approval"),)  # type: ignore[attr-defined]


@stale("sweep")
async def _a_sweep_of_what_is_swept(scene: Scene) -> None:
    await scene.running(deadline_us=HOUR)
    await scene.submit(run_at=scene.now + SECOND)
    scene.pass_time(61 * SECOND)
    await scene.sweep()
    await nothing_changes(scene, scene.sweep)


@stale("confirm_messages")
async def _a_confirmation_of_what_is_gone(scene: Scene) -> None:
    record = await scene.submit(announce=True)
    [message] = await scene.store.take_messages(9, now=scene.now)
    done = Publication(tenant=record.tenant, task=record.task, number=message.number)
    await scene.store.confirm_messages([done])
    await nothing_changes(scene, lambda: scene.store.confirm_messages([done, replace(done, parked="late")]))


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


@stale("put_schedule")
async def _a_schedule_put_over_a_later_revision(scene: Scene) -> None:
    row = await scheduling.put(scene)
    other = scheduling.schedule(scene, id=row.schedule.id)
    await scheduling.put(scene, replace(row.schedule, input=scene.text("other")))
    late = PutSchedule(schedule=other, next_at=scene.now, by="ann", revision=row.revision)
    answer = await nothing_changes(scene, lambda: scene.store.put_schedule(late, now=scene.now))
    assert answer == SchedulePut(kind="conflict", revision=2)


@stale("set_schedule")
async def _a_schedule_paused_under_an_earlier_revision(scene: Scene) -> None:
    row = await scheduling.put(scene)
    await scheduling.put(scene, replace(row.schedule, input=scene.text("other")))
    late = scheduling.set_(row, "pause", revision=row.revision)
    answer = await nothing_changes(scene, lambda: scene.store.set_schedule(late, now=scene.now))
    assert answer == ScheduleSet(kind="conflict", revision=2)


@stale("due_schedules")
async def _a_look_at_schedules_that_somebody_has_taken(scene: Scene) -> None:
    await scheduling.put(scene)
    await scheduling.due(scene)
    answer: Any = await nothing_changes(scene, lambda: scheduling.due(scene))
    assert answer.rows == ()


@stale("fire_schedules")
async def _a_firing_by_one_whose_time_is_over(scene: Scene) -> None:
    await scheduling.put(scene)
    [row] = (await scheduling.due(scene)).rows
    scene.pass_time(5 * SECOND)
    [again] = (await scheduling.due(scene)).rows
    await scheduling.fire(scene, scheduling.firing(scene, again))
    late = scheduling.firing(scene, row)
    answer = await nothing_changes(scene, lambda: scheduling.fire(scene, late))
    assert answer == [Fired(kind="passed")]


@stale("fire_schedules")
async def _a_firing_of_a_schedule_that_was_changed(scene: Scene) -> None:
    row = await scheduling.put(scene)
    late = scheduling.firing(scene, row)
    await scheduling.put(scene, replace(row.schedule, input=scene.text("other")))
    assert await nothing_changes(scene, lambda: scheduling.fire(scene, late)) == [Fired(kind="passed")]


@stale("fire_schedules")
async def _a_firing_of_a_schedule_that_is_paused(scene: Scene) -> None:
    row = await scheduling.put(scene)
    late = scheduling.firing(scene, row)
    await scene.store.set_schedule(scheduling.set_(row, "pause"), now=scene.now)
    late = replace(late, revision=row.revision + 1)
    assert await nothing_changes(scene, lambda: scheduling.fire(scene, late)) == [Fired(kind="passed")]


@pytest.mark.parametrize(
    "twin",
    [pytest.param(twin, id=f"{verb}-{twin.__name__.strip('_')}") for verb in STALE for twin in STALE[verb]],
)
async def test_a_stale_verb_changes_nothing(scene: Scene, twin: Twin) -> None:
    await twin(scene)
    assert check_all(await scene.store.dump()) == []
