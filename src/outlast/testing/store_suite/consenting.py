"""Under what a call is made: a decision is consumed with the intent, and the tool's rules are those looked
at."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.approving import ApprovalRow, Rules
from outlast.store.entries import AskApproval, CommitIntent, Consent, ExpireApproval
from outlast.store.records import Claimed
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import PROVIDER, lock, refusal, switch
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

__all__ = ["TestConsentOrder", "TestConsume", "TestLaterAttempts", "TestRules", "TestRulesAtTheGate"]


async def agreed(scene: Scene, claimed: Claimed, **changes: Any) -> AskApproval:
    """Have a question about a call that was approved."""
    ask = scene.ask(**changes)
    decided = await scene.decide(await scene.asked(claimed, ask))
    assert decided.kind == "decided"
    return ask


def with_consent(intent: CommitIntent, **changes: Any) -> CommitIntent:
    """Change what an intent says of the consent that it has."""
    assert intent.consent is not None
    return replace(intent, consent=replace(intent.consent, **changes))


async def again(scene: Scene, claimed: Claimed, intent: CommitIntent, **changes: Any) -> CommitIntent:
    """Make the intent of the next attempt."""
    row = await scene.operation(claimed, intent.key)
    return replace(intent, attempt=row.attempt, turn=row.turn, **changes)


class TestConsume:
    """A decision and the intent that uses it are one transaction."""

    async def test_uses_the_decision(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask, other = await agreed(scene, claimed), await agreed(scene, claimed)
        was = await scene.approval(claimed, ask.key)
        scene.pass_time(3 * SECOND)
        await scene.write(claimed, scene.agreed_intent(ask))
        expected = replace(was, state="used", used_at=scene.now)
        assert await scene.approval(claimed, ask.key) == expected
        assert (await scene.approval(claimed, other.key)).state == "approved"
        row = await scene.operation(claimed, ask.key)
        assert (row.state, row.attempt, row.decision) == ("running", 1, ask.fingerprint)
        assert (row.position, row.name, row.arguments) == (ask.position, ask.name, ask.arguments)
        assert check_all(await scene.store.dump()) == []

    @pytest.mark.parametrize("state", ["pending", "rejected", "expired", "withdrawn", "none"])
    async def test_there_has_to_be_one(self, scene: Scene, state: str) -> None:
        claimed = await scene.running(ttl_us=9 * HOUR)
        ask = scene.ask(expires_in_us=5 * SECOND)
        if state == "none":
            await scene.write(claimed, scene.planned(scene.agreed_intent(ask)))
        else:
            row = await scene.asked(claimed, ask)
            if state == "rejected":
                await scene.decide(row, "reject")
            elif state == "withdrawn":
                await scene.write(claimed, scene.ask(ask.key, number=2))
            elif state == "expired":
                scene.pass_time(5 * SECOND)
                await scene.write(claimed, ExpireApproval(key=ask.key, number=1))
            assert (await scene.approval(claimed, ask.key)).state == state
        assert await refusal(scene, claimed, scene.agreed_intent(ask)) == "no_approval"

    async def test_has_to_be_about_this(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = await agreed(scene, claimed)
        intent = scene.agreed_intent(ask)
        for wrong in (
            with_consent(intent, fingerprint="fingerprint-of-another"),
            with_consent(intent, fingerprint=""),
            with_consent(intent, policy="policy-of-another"),
            with_consent(intent, approval=2),
        ):
            assert await refusal(scene, claimed, wrong) == "no_approval"
        assert (await scene.approval(claimed, ask.key)).state == "approved"
        await scene.write(claimed, intent)

    @pytest.mark.parametrize(("late", "expected"), [(-1, None), (0, "no_approval"), (1, "no_approval")])
    async def test_until_its_time_is_over(self, scene: Scene, late: int, expected: str | None) -> None:
        claimed = await scene.running()
        ask = await agreed(scene, claimed, expires_in_us=7 * SECOND)
        scene.now = ((await scene.approval(claimed, ask.key)).expires_at or 0) + late
        assert await refusal(scene, claimed, scene.agreed_intent(ask)) == expected

    async def test_without_an_end_it_stands(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = await agreed(scene, claimed, expires_in_us=None)
        scene.pass_time(99 * HOUR)
        assert await refusal(scene, claimed, scene.agreed_intent(ask)) is None

    async def test_authorises_one_operation(self, scene: Scene) -> None:
        """The same parameters under another key, in another task, or of another tenant."""
        claimed, other = await scene.running(), await scene.running()
        record = replace(scene.submission(tenant="tenant-blue"), task=claimed.task)
        await scene.accept([record])
        twin = await scene.claim_task(record)
        ask = await agreed(scene, claimed)
        intent = scene.agreed_intent(ask)
        assert await refusal(scene, claimed, replace(intent, key="another")) == "no_approval"
        assert await refusal(scene, other, intent) == "no_approval"
        assert await refusal(scene, twin, intent) == "no_approval"
        await scene.write(claimed, intent)
        assert await refusal(scene, claimed, replace(intent, key="another")) == "no_approval"
        assert await refusal(scene, claimed, intent) == "not_planned"

    async def test_an_edit_is_what_is_authorised(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = scene.ask()
        asked = await scene.asked(claimed, ask)
        edit = {"arguments": scene.text("edited"), "shown": "{}", "new_fingerprint": "fingerprint-edited"}
        assert (await scene.decide(asked, **edit)).kind == "decided"
        intent = scene.agreed_intent(ask)
        assert await refusal(scene, claimed, intent) == "no_approval"
        edited = with_consent(
            replace(intent, arguments=edit["arguments"], decision="fingerprint-edited"),
            fingerprint="fingerprint-edited",
        )
        assert await refusal(scene, claimed, edited) is None
        assert (await scene.operation(claimed, ask.key)).arguments == edit["arguments"]

    async def test_a_policy_that_allows_needs_none(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent = scene.intent(consent=Consent(policy="policy-1"))
        await scene.write(claimed, scene.planned(intent))
        assert await refusal(scene, claimed, intent) is None

    async def test_several_in_one_batch(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        asks = [await agreed(scene, one), await agreed(scene, one), await agreed(scene, two)]
        pending = scene.ask()
        await scene.write(two, pending)
        batch = scene.batch(
            scene.writes(one, scene.step(), scene.agreed_intent(asks[0]), scene.agreed_intent(asks[1])),
            scene.writes(two, scene.agreed_intent(pending), scene.step(), scene.agreed_intent(asks[2])),
        )
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [verdict.refusals for verdict in verdicts] == [(), ((0, "no_approval"),)]
        states = [(await scene.approval(one, ask.key)).state for ask in asks[:2]]
        assert [*states, (await scene.approval(two, asks[2].key)).state] == ["used"] * 3
        assert (await scene.approval(two, pending.key)).state == "pending"


class TestLaterAttempts:
    """A resend stays under its decision while nothing else has changed."""

    async def sent(
        self, scene: Scene, claimed: Claimed, state: Any, **changes: Any
    ) -> tuple[CommitIntent, ApprovalRow]:
        """Have a call under a decision, made once, with that outcome."""
        ask = await agreed(scene, claimed, **changes)
        intent = scene.agreed_intent(ask)
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, ask.key, state))
        return await again(scene, claimed, intent), await scene.approval(claimed, ask.key)

    async def test_what_was_not_sent_is_tried_again(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, used = await self.sent(scene, claimed, "planned")
        scene.pass_time(3 * SECOND)
        assert await refusal(scene, claimed, intent) is None
        assert (await scene.operation(claimed, intent.key)).attempt == 2
        assert await scene.approval(claimed, intent.key) == used

    async def test_what_is_unknown_is_sent_again(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, used = await self.sent(scene, claimed, "unknown")
        assert await refusal(scene, claimed, replace(intent, resend=True)) is None
        assert await scene.approval(claimed, intent.key) == used

    async def test_not_for_anything_else(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, _ = await self.sent(scene, claimed, "planned", expires_in_us=7 * SECOND)
        for wrong in (
            with_consent(intent, fingerprint="another"),
            with_consent(intent, policy="another"),
            with_consent(intent, approval=2),
        ):
            assert await refusal(scene, claimed, wrong) == "no_approval"
        scene.pass_time(7 * SECOND - 1)
        late = await again(scene, claimed, intent)
        scene.pass_time(1)
        assert await refusal(scene, claimed, late) == "no_approval"

    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    @pytest.mark.parametrize("by", ["person:ann", "settler"])
    async def test_a_persons_settlement_spends_it(self, scene: Scene, verdict: str, by: str) -> None:
        claimed = await scene.running()
        intent, used = await self.sent(scene, claimed, "unknown")
        kept, untouched = await self.sent(scene, claimed, "unknown")
        settlement = scene.settlement(claimed, intent.key, verdict, by=by, forced=True)
        [settled] = await scene.store.settle([settlement], now=scene.now)
        assert settled.kind == "settled"
        by_person = by != "settler"
        assert await scene.approval(claimed, intent.key) == replace(used, spent=by_person)
        assert await scene.approval(claimed, kept.key) == untouched

    @pytest.mark.parametrize("end", ["rejected", "expired"])
    async def test_a_persons_settlement_spends_a_no_as_well(self, scene: Scene, end: str) -> None:
        """Nobody knows of the call, and people were asked whether it may be sent again."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        asked = await scene.asked(claimed, scene.ask(key, expires_in_us=SECOND))
        if end == "rejected":
            assert (await scene.decide(asked, "reject")).kind == "decided"
        else:
            scene.pass_time(SECOND)
            await scene.write(claimed, ExpireApproval(key=key, number=1))
        before = await scene.approval(claimed, key)
        assert (before.state, before.spent) == (end, False)
        settlement = scene.settlement(claimed, key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        assert await scene.approval(claimed, key) == replace(before, spent=True)

    async def test_after_a_persons_word_a_new_decision_is_needed(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, _ = await self.sent(scene, claimed, "unknown")
        settlement = scene.settlement(claimed, intent.key, "send_again", forced=True)
        await scene.store.settle([settlement], now=scene.now)
        resend = await again(scene, claimed, intent, resend=True)
        assert await refusal(scene, claimed, resend) == "no_approval"
        assert len(await scene.rows("unsettled", claimed)) == 1
        ask = scene.ask(
            intent.key,
            number=2,
            name=intent.name,
            request=intent.request,
            arguments=intent.arguments,
            fingerprint=intent.decision,
            policy=intent.consent.policy if intent.consent else "",
        )
        asked = await scene.asked(claimed, ask)
        assert await refusal(scene, claimed, with_consent(resend, approval=2)) == "no_approval"
        await scene.decide(asked)
        assert await refusal(scene, claimed, resend) == "no_approval"
        assert await refusal(scene, claimed, with_consent(resend, approval=2)) is None
        rows = await scene.store.read_approvals(claimed.tenant, claimed.task)
        assert {row.number: row.state for row in rows} == {1: "used", 2: "used"}
        assert check_all(await scene.store.dump()) == []

    async def test_a_newer_question_leaves_what_is_used(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, used = await self.sent(scene, claimed, "planned")
        await scene.write(claimed, scene.ask(intent.key, number=2))
        assert await scene.approval(claimed, intent.key) == used


class TestRules:
    """Standing rules, and the version of a tool's list."""

    async def test_are_kept_as_they_were_put(self, scene: Scene) -> None:
        rule = scene.rule("pay", "deny")
        scene.pass_time(3 * SECOND)
        number = await scene.store.put_rule(rule, now=scene.now)
        expected = replace(rule, number=number, at=scene.now)
        rules = await scene.store.read_rules(scene.tenant, "pay")
        assert rules.rules == (expected,)
        assert rules.version > 0
        assert await scene.store.list_rules(scene.tenant) == [expected]

    async def test_where_there_are_none(self, scene: Scene) -> None:
        await scene.store.put_rule(scene.rule("pay"), now=scene.now)
        await scene.store.put_rule(scene.rule("mail", tenant="tenant-blue"), now=scene.now)
        assert await scene.store.read_rules(scene.tenant, "mail") == Rules(version=0, rules=())
        assert await scene.store.list_rules("tenant-red") == []

    async def test_every_change_gives_the_list_a_new_version(self, scene: Scene) -> None:
        versions = [0]
        numbers = []
        for verdict in ("allow", "deny", "allow"):
            numbers.append(await scene.store.put_rule(scene.rule("pay", verdict), now=scene.now))
            versions.append((await scene.store.read_rules(scene.tenant, "pay")).version)
        for number in (numbers[2], numbers[0], numbers[1]):
            assert await scene.store.withdraw_rule(
                scene.tenant, number, "person:ann", "no more", now=scene.now
            )
            versions.append((await scene.store.read_rules(scene.tenant, "pay")).version)
        assert versions == sorted(set(versions))
        rules = await scene.store.read_rules(scene.tenant, "pay")
        assert rules.rules == ()
        # Others' lists have not changed.
        await scene.store.put_rule(scene.rule("mail"), now=scene.now)
        await scene.store.put_rule(scene.rule("pay", tenant="tenant-blue"), now=scene.now)
        assert await scene.store.read_rules(scene.tenant, "pay") == rules

    async def test_are_listed_by_tool_and_number(self, scene: Scene) -> None:
        for tool in ("pay", "mail", "pay"):
            await scene.store.put_rule(scene.rule(tool), now=scene.now)
        rows = await scene.store.list_rules(scene.tenant)
        assert [row.tool for row in rows] == ["mail", "pay", "pay"]
        assert rows[1].number < rows[2].number
        assert (await scene.store.read_rules(scene.tenant, "pay")).rules == tuple(rows[1:])

    async def test_are_taken_back_once_by_their_own_tenant(self, scene: Scene) -> None:
        number = await scene.store.put_rule(scene.rule("pay"), now=scene.now)
        before = await scene.store.dump()
        for tenant, wrong in (("tenant-blue", number), (scene.tenant, number + 5)):
            assert not await scene.store.withdraw_rule(tenant, wrong, "person:ann", "no", now=scene.now)
        assert changed(before, await scene.store.dump()) == {}
        assert await scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no", now=scene.now)
        before = await scene.store.dump()
        assert not await scene.store.withdraw_rule(scene.tenant, number, "person:bob", "no", now=scene.now)
        assert changed(before, await scene.store.dump()) == {}

    async def test_are_kept_in_the_audit_trail(self, scene: Scene) -> None:
        rule = scene.rule("pay", "deny")
        begun = scene.now
        number = await scene.store.put_rule(rule, now=begun)
        scene.pass_time(SECOND)
        await scene.store.withdraw_rule(scene.tenant, number, "person:bob", "enough", now=scene.now)
        put, withdrawn = await scene.store.read_audit(scene.tenant)
        assert (put.at, put.who, put.what, put.reason) == (begun, rule.by, "rule:deny", rule.reason)
        assert (withdrawn.at, withdrawn.who, withdrawn.what, withdrawn.reason) == (
            scene.now,
            "person:bob",
            "rule:withdraw",
            "enough",
        )
        assert put.subject == withdrawn.subject == "pay"
        assert json.loads(put.data)["number"] == json.loads(withdrawn.data)["number"] == number


class TestRulesAtTheGate:
    """An intent stands under the rules that were looked at."""

    async def version(self, scene: Scene, tool: str = "pay") -> int:
        return (await scene.store.read_rules(scene.tenant, tool)).version

    async def test_has_to_have_looked_at_those_that_stand(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.store.put_rule(scene.rule("pay"), now=scene.now)
        version = await self.version(scene)
        for rules in (0, version - 1, version + 1):
            intent = scene.intent(name="pay", consent=Consent(policy="p", rules=rules))
            assert await refusal(scene, claimed, intent) == "rules_changed"
        intent = scene.intent(name="pay", consent=Consent(policy="p", rules=version))
        assert await refusal(scene, claimed, intent) is None

    async def test_other_tools_and_tenants_have_their_own(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.store.put_rule(scene.rule("mail"), now=scene.now)
        await scene.store.put_rule(scene.rule("pay", tenant="tenant-blue"), now=scene.now)
        assert await refusal(scene, claimed, scene.intent(name="pay")) is None
        consent = Consent(policy="p", rules=0)
        assert await refusal(scene, claimed, scene.intent(name="pay", consent=consent)) is None
        foreign = await scene.running(tenant="tenant-blue")
        assert await refusal(scene, foreign, scene.intent(name="pay")) == "rules_changed"

    async def test_one_that_has_looked_at_none_is_refused_while_one_stands(self, scene: Scene) -> None:
        claimed = await scene.running()
        number = await scene.store.put_rule(scene.rule("pay"), now=scene.now)
        assert await refusal(scene, claimed, scene.intent(name="pay")) == "rules_changed"
        await scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no more", now=scene.now)
        assert await refusal(scene, claimed, scene.intent(name="pay")) is None

    async def test_a_withdrawal_meets_the_calls_that_have_not_begun(self, scene: Scene) -> None:
        claimed = await scene.running()
        number = await scene.store.put_rule(scene.rule("pay", "allow"), now=scene.now)
        consent = Consent(policy="p", rules=await self.version(scene))
        begun, *pending = [scene.intent(name="pay", consent=consent) for _ in range(3)]
        await scene.write(claimed, begun, *(scene.planned(one) for one in pending))
        await scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no more", now=scene.now)
        for intent in pending:
            assert await refusal(scene, claimed, intent) == "rules_changed"
        assert (await scene.operation(claimed, begun.key)).state == "running"
        await scene.write(claimed, await scene.outcome(claimed, begun.key, "planned"))
        assert await refusal(scene, claimed, await again(scene, claimed, begun)) == "rules_changed"
        for intent in pending:
            looked = with_consent(intent, rules=await self.version(scene))
            assert await refusal(scene, claimed, looked) is None

    @pytest.mark.parametrize(
        ("about", "expected"),
        [
            ({}, "no_approval"),
            ({"decision": "sha256:another"}, None),
            ({"policy": "another"}, None),
            ({"key": "another"}, None),
        ],
        ids=["the-same", "another-call", "another-policy", "another-operation"],
    )
    async def test_a_person_s_no_to_a_call_stands_above_whatever_allows_it(
        self, scene: Scene, about: dict[str, str], expected: str | None
    ) -> None:
        """A worker may hear of a rule before it hears of the decision."""
        claimed = await scene.running()
        ask = scene.ask(name="pay")
        await scene.decide(await scene.asked(claimed, ask), "reject")
        await scene.store.put_rule(scene.rule("pay", "allow"), now=scene.now)
        consent = Consent(policy=about.get("policy", ask.policy), rules=await self.version(scene))
        changes = {name: value for name, value in about.items() if name != "policy"}
        intent = scene.agreed_intent(ask, **{"consent": consent, **changes})
        assert await refusal(scene, claimed, intent) == expected

    async def test_a_person_s_no_to_a_further_attempt_stands_as_well(self, scene: Scene) -> None:
        claimed = await scene.running()
        ask = await agreed(scene, claimed, name="pay")
        await scene.write(claimed, scene.agreed_intent(ask))
        await scene.write(claimed, await scene.outcome(claimed, ask.key, "planned"))
        await scene.decide(await scene.asked(claimed, replace(ask, number=2)), "reject")
        intent = await again(scene, claimed, scene.agreed_intent(ask))
        looked = with_consent(intent, approval=None, fingerprint="")
        assert await refusal(scene, claimed, looked) == "no_approval"

    async def test_a_decision_does_not_stand_above_a_look(self, scene: Scene) -> None:
        """What beats what is policy's affair; the gate wants it to have been weighed."""
        claimed = await scene.running()
        ask = await agreed(scene, claimed, name="pay")
        await scene.store.put_rule(scene.rule("pay", "deny"), now=scene.now)
        intent = scene.agreed_intent(ask)
        assert await refusal(scene, claimed, intent) == "rules_changed"
        assert (await scene.approval(claimed, ask.key)).state == "approved"
        assert await refusal(scene, claimed, with_consent(intent, rules=await self.version(scene))) is None


class TestConsentOrder:
    """The first refusal that applies is the one that is told, and a refused intent consumes nothing."""

    async def test_each_comes_before_the_next(self, scene: Scene) -> None:
        other = await scene.running(ttl_us=9 * HOUR)
        await scene.called(other, business=lock("held"))
        outcome = await scene.outcome(other, await scene.called(other), "planned", wait=(PROVIDER, HOUR))
        await scene.write(other, outcome)
        claimed = await scene.running(ttl_us=9 * HOUR)
        asked = await scene.asked(claimed, scene.ask(name="refund"))
        number = await scene.store.put_rule(scene.rule("refund"), now=scene.now)
        await scene.store.pause(switch(other.tenant), now=scene.now)
        consent = Consent(policy=asked.policy, approval=1, fingerprint=asked.fingerprint)
        intent = scene.intent(
            asked.key, name="refund", provider=PROVIDER, business=lock("held"), consent=consent
        )
        assert await refusal(scene, claimed, replace(intent, turn=1)) == "not_planned"
        assert await refusal(scene, claimed, intent) == "paused"
        await scene.store.resume(switch(other.tenant), now=scene.now)
        assert await refusal(scene, claimed, intent) == f"held {HOUR}"
        scene.pass_time(HOUR - SECOND)
        scene.pass_time(SECOND)
        assert await refusal(scene, claimed, intent) == "rules_changed"
        await scene.store.withdraw_rule(scene.tenant, number, "person:ann", "no", now=scene.now)
        version = (await scene.store.read_rules(scene.tenant, "refund")).version
        intent = with_consent(intent, rules=version)
        assert await refusal(scene, claimed, intent) == "no_approval"

    async def test_a_refusal_behind_it_leaves_the_decision(self, scene: Scene) -> None:
        other, claimed = await scene.running(), await scene.running()
        key = await scene.called(other, business=lock("held"))
        ask = await agreed(scene, claimed, name="refund")
        intent = scene.agreed_intent(ask, business=lock("held"))
        assert await refusal(scene, claimed, intent) == "key_held"
        assert (await scene.approval(claimed, ask.key)).state == "approved"
        await scene.write(other, await scene.outcome(other, key, "failed"))
        assert await refusal(scene, claimed, intent) is None
        assert (await scene.approval(claimed, ask.key)).state == "used"
