"""The second guard below the verbs: decisions, votes and what was taken stay as they were."""

from __future__ import annotations

import asyncpg
import pytest

from outlast.core.transitions import APPROVAL
from outlast.store.contract import BatchRejected
from outlast.store.entries import Consent
from outlast.testing.store_suite.scene import HOUR, Scene


async def in_state(scene: Scene, state: str) -> str:
    """Have an approval in a state; answer its id."""
    claimed = await scene.running()
    asked = await scene.asked(claimed, scene.ask("it"))
    if state in ("approved", "used"):
        await scene.decide(asked, arguments="{}", new_fingerprint="edited")
    elif state == "rejected":
        await scene.decide(asked, "reject")
    elif state == "expired":
        scene.pass_time(HOUR)
        await scene.decide(asked)
    elif state == "withdrawn":
        await scene.write(claimed, scene.success())
    if state == "used":
        consent = Consent(policy=asked.policy, approval=1, fingerprint="edited")
        await scene.write(claimed, scene.intent("it", consent=consent))
    assert (await scene.approval(claimed, "it")).state == state
    return asked.id


async def refused(beside: asyncpg.Connection[asyncpg.Record], sql: str, *arguments: object) -> bool:
    """Say whether the database refuses a statement."""
    try:
        await beside.execute(sql, *arguments)
    except asyncpg.RestrictViolationError:
        return True
    return False


@pytest.mark.parametrize("state", APPROVAL.states)
async def test_an_approval_moves_only_as_the_table_says(
    scene: Scene, beside: asyncpg.Connection[asyncpg.Record], state: str
) -> None:
    name = await in_state(scene, state)
    reached = {target for (source, _), target in APPROVAL.moves.items() if source == state}
    for target in APPROVAL.states:
        if target == state:
            continue
        transaction = beside.transaction()
        await transaction.start()
        forbidden = await refused(beside, "update approvals set state = $2 where id = $1", name, target)
        await transaction.rollback()
        assert forbidden == (target not in reached), target


@pytest.mark.parametrize("state", [state for state in APPROVAL.states if state != "pending"])
@pytest.mark.parametrize(
    "change",
    [
        "fingerprint = 'other'",
        "shown = 'other'",
        "arguments = '[]'",
        "answer = '1'",
        "decided_by = 'person:other'",
        "decided_at = 5",
        "decision_reason = 'other'",
        "expires_at = null",
        "policy = 'other'",
        "votes = 9",
        "roles = '{other}'",
    ],
)
async def test_what_was_decided_is_never_changed(
    scene: Scene, beside: asyncpg.Connection[asyncpg.Record], state: str, change: str
) -> None:
    name = await in_state(scene, state)
    assert await refused(beside, f"update approvals set {change} where id = $1", name)


async def test_a_decision_that_was_used_stays_used_and_spent(
    scene: Scene, beside: asyncpg.Connection[asyncpg.Record]
) -> None:
    name = await in_state(scene, "used")
    assert await refused(beside, "update approvals set used_at = 5 where id = $1", name)
    assert not await refused(beside, "update approvals set spent = true where id = $1", name)
    assert await refused(beside, "update approvals set spent = false where id = $1", name)


async def test_votes_are_never_changed(scene: Scene, beside: asyncpg.Connection[asyncpg.Record]) -> None:
    await in_state(scene, "approved")
    assert await refused(beside, "update votes set who = 'person:other'")


async def test_what_was_taken_is_never_given_back(
    scene: Scene, beside: asyncpg.Connection[asyncpg.Record]
) -> None:
    claimed = await scene.running()
    await scene.post(scene.signal(claimed), scene.signal(claimed))
    await scene.write(claimed, scene.step("taker", takes=(1,)))
    assert await refused(beside, "update inbox set taken_by = null where number = 1")
    assert await refused(beside, "update inbox set taken_by = 'other' where number = 1")
    assert not await refused(beside, "update inbox set taken_by = 'other' where number = 2")


async def test_a_rule_that_was_taken_back_stays_so(
    scene: Scene, beside: asyncpg.Connection[asyncpg.Record]
) -> None:
    number = await scene.store.put_rule(scene.rule("tool"), now=scene.now)
    await scene.store.withdraw_rule(scene.tenant, number, "person:rose", "no more", now=scene.now)
    assert await refused(beside, "update rules set withdrawn_at = null")


@pytest.mark.parametrize("value", ["secret\x00", "secret\ud800"])
async def test_a_question_that_cannot_be_stored_says_nothing_of_its_values(scene: Scene, value: str) -> None:
    claimed = await scene.running()
    for entry in (scene.ask(shown=value), scene.intent(consent=Consent(policy=value))):
        batch = scene.batch(scene.writes(claimed, entry))
        with pytest.raises(BatchRejected) as raised:
            await scene.store.flush(batch, now=scene.now)
        assert "secret" not in str(raised.value)
        scene._batches[scene.writer] -= 1
    await scene.write(claimed, scene.step())
