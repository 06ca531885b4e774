"""Decisions of people: who may say what about which parameters, who is first, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.approving import ApprovalRow, Decided, VoteRow
from outlast.store.entries import ExpireApproval
from outlast.store.posting import News
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.posting import head, session_of
from outlast.testing.store_suite.scene import SECOND, Reopen, Scene, changed

__all__ = ["TestDecide", "TestEdits", "TestQuorum"]


async def decided_as(scene: Scene, row: ApprovalRow, kind: str, **changes: Any) -> ApprovalRow:
    """Decide, demand what kind of verdict it is, and answer the approval as the verdict shows it."""
    verdict = changes.pop("verdict", "approve")
    decided = await scene.decide(row, verdict, **changes)
    assert decided.kind == kind
    assert decided.approval == await scene.store.read_approval(row.tenant, row.id)
    assert decided.approval is not None
    return decided.approval


async def nothing_decides(scene: Scene, row: ApprovalRow, kind: str, **changes: Any) -> Decided:
    """Demand that a decision is answered by this kind of verdict and changes nothing."""
    before = await scene.store.dump()
    verdict = changes.pop("verdict", "approve")
    decided = await scene.decide(row, verdict, **changes)
    assert decided.kind == kind
    assert changed(before, await scene.store.dump()) == {}
    return decided


class TestDecide:
    """The verb ``decide``."""

    @pytest.mark.parametrize(("verdict", "state"), [("approve", "approved"), ("reject", "rejected")])
    async def test_stores_every_value_in_its_place(self, scene: Scene, verdict: Any, state: str) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        last = (await scene.task(claimed)).last_event
        scene.pass_time(3 * SECOND)
        decision = scene.decision(asked, verdict, via="link")
        expected = replace(
            asked,
            state=state,  # type: ignore[arg-type]
            votes=int(verdict == "approve"),
            decided_at=scene.now,
            decided_by=decision.by,
            decision_reason=decision.reason,
        )
        assert await scene.store.decide([decision], now=scene.now) == [
            Decided(kind="decided", approval=expected)
        ]
        assert await scene.approval(claimed, asked.key) == expected
        assert (await scene.operation(claimed, asked.key)).state == (
            "approved" if verdict == "approve" else "planned"
        )
        assert await scene.store.read_votes(asked.tenant, asked.id) == [
            VoteRow(
                approval=asked.id,
                who=decision.by,
                verdict=verdict,
                fingerprint=asked.fingerprint,
                reason=decision.reason,
                via="link",
                at=scene.now,
            )
        ]
        [audit] = await scene.store.read_audit(asked.tenant)
        assert (audit.at, audit.who, audit.what) == (scene.now, decision.by, verdict)
        assert (audit.subject, audit.reason) == (asked.id, decision.reason)
        kept = json.loads(audit.data)
        assert (kept["fingerprint"], kept["via"]) == (asked.fingerprint, "link")
        [event] = await scene.events(claimed, after=last)
        assert (event.kind, event.at) == (f"approval.{state}", scene.now)
        assert json.loads(event.data) == {
            "approval": asked.id,
            "by": decision.by,
            "fingerprint": asked.fingerprint,
            "edited": False,
        }
        assert (await head(scene, claimed))["facts"] == claimed.facts + 1
        assert await scene.news(await session_of(scene, claimed)) == [
            News(tenant=claimed.tenant, task=claimed.task, facts=claimed.facts + 1, cancelling=False)
        ]
        [loaded] = await scene.store.load([claimed])
        assert loaded.approvals == (expected,)

    @pytest.mark.parametrize(("verdict", "state"), [("approve", "approved"), ("reject", "rejected")])
    async def test_wakes_a_task_that_waits_for_it(self, scene: Scene, verdict: str, state: str) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        await scene.write(claimed, scene.suspension("approval"))
        last = (await scene.task(claimed)).last_event
        await decided_as(scene, asked, "decided", verdict=verdict)
        events = await scene.events(claimed, after=last)
        assert [event.kind for event in events] == [f"approval.{state}", "task.woken"]
        assert json.loads(events[1].data) == {"reason": "approval"}
        assert (await scene.claim_task(claimed)).facts == 1

    async def test_a_suspension_that_has_not_seen_it_is_queued_at_once(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        await decided_as(scene, asked, "decided")
        assert (await scene.write(claimed, scene.suspension("approval"))).state == "queued"

    async def test_a_question_is_answered(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.question())
        row = await decided_as(scene, asked, "decided", answer='{"choice": "blue"}')
        assert (row.state, row.answer, row.edited, row.arguments) == (
            "approved",
            '{"choice": "blue"}',
            False,
            None,
        )
        assert (await scene.operation(claimed, asked.key)).state == "running"

    async def test_an_answer_approves_no_call(self, scene: Scene) -> None:
        claimed = await scene.running()
        question = await scene.asked(claimed, scene.question())
        await scene.write(claimed, scene.planned(scene.intent(question.key)))
        assert (await scene.decide(question)).kind == "decided"
        assert (await scene.operation(claimed, question.key)).state == "planned"

    async def test_an_answered_question_stays_so(self, scene: Scene) -> None:
        claimed = await scene.running()
        answered = await scene.asked(claimed, scene.question(expires_in_us=5 * SECOND))
        refused = await scene.asked(claimed, scene.question())
        await decided_as(scene, answered, "decided")
        await decided_as(scene, refused, "decided", verdict="reject")
        scene.pass_time(5 * SECOND)
        verdict = await scene.flush(claimed, ExpireApproval(key=answered.key, number=1))
        assert verdict.refusals == ((0, "not_expired"),)
        await scene.write(claimed, scene.success())
        assert (await scene.approval(claimed, answered.key)).state == "approved"
        assert (await scene.approval(claimed, refused.key)).state == "rejected"
        assert "approval.withdrawn" not in await scene.kinds(claimed)

    async def test_the_first_wins(self, scene: Scene) -> None:
        claimed = await scene.running()
        for first, second in (("approve", "reject"), ("reject", "approve"), ("approve", "approve")):
            asked = await scene.asked(claimed)
            row = await decided_as(scene, asked, "decided", verdict=first)
            decided = await nothing_decides(scene, asked, "conflict", verdict=second)
            assert decided.approval == row

    @pytest.mark.parametrize("verdict", ["approve", "reject"])
    async def test_a_repeat_by_the_same_person_is_told(self, scene: Scene, verdict: str) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        row = await decided_as(scene, asked, "decided", verdict=verdict, by="person:ann")
        again = await nothing_decides(
            scene, asked, "repeated", verdict=verdict, by="person:ann", reason="once more"
        )
        assert again.approval == row
        other = "reject" if verdict == "approve" else "approve"
        await nothing_decides(scene, asked, "conflict", verdict=other, by="person:ann")
        # An earlier word is looked at before everything else.
        await nothing_decides(scene, asked, "conflict", verdict=verdict, by="person:ann", fingerprint="x")
        await scene.write(claimed, scene.success())
        await nothing_decides(scene, asked, "repeated", verdict=verdict, by="person:ann")

    async def test_of_nobodys_approval_changes_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        before = await scene.store.dump()
        for wrong in (
            replace(asked, tenant="tenant-blue"),
            replace(asked, id=asked.id[:-1] + "2"),
            replace(asked, id=asked.key),
        ):
            assert await scene.decide(wrong) == Decided(kind="not_found", approval=None)
        assert changed(before, await scene.store.dump()) == {}

    async def test_another_fingerprint_decides_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        decided = await nothing_decides(scene, asked, "fingerprint", fingerprint="fingerprint-of-another")
        assert decided.approval == asked
        await nothing_decides(scene, asked, "fingerprint", verdict="reject", fingerprint="")

    async def test_roles(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(roles=("lead", "finance")))
        for roles in ((), ("intern",), ("leads", "Lead")):
            for verdict in ("approve", "reject"):
                decided = await nothing_decides(scene, asked, "forbidden", verdict=verdict, roles=roles)
                assert decided.detail
        await decided_as(scene, asked, "decided", roles=("intern", "finance"))
        everybody = await scene.asked(claimed)
        await decided_as(scene, everybody, "decided", roles=("intern",))
        starred = await scene.asked(claimed, scene.ask(roles=("lead",)))
        await decided_as(scene, starred, "decided", roles=("*",))

    async def test_four_eyes(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(four_eyes=True, requester="person:rob"))
        for verdict in ("approve", "reject"):
            decided = await nothing_decides(scene, asked, "forbidden", verdict=verdict, by="person:rob")
            assert decided.detail
        await decided_as(scene, asked, "decided", by="person:ann")
        alone = await scene.asked(claimed, scene.ask(four_eyes=False, requester="person:rob"))
        await decided_as(scene, alone, "decided", by="person:rob")

    async def test_looks_at_its_reasons_in_their_order(self, scene: Scene) -> None:
        """Conflict or expiry, then who may decide, then the fingerprint."""
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(roles=("lead",), expires_in_us=5 * SECOND))
        wrong: dict[str, Any] = {"roles": ("intern",), "fingerprint": "another"}
        await nothing_decides(scene, asked, "forbidden", **wrong)
        await nothing_decides(scene, asked, "fingerprint", **{**wrong, "roles": ("lead",)})
        scene.pass_time(5 * SECOND)
        assert (await scene.decide(asked, **wrong)).kind == "expired"
        over = await scene.asked(claimed, scene.ask(roles=("lead",)))
        await decided_as(scene, over, "decided", roles=("lead",))
        await nothing_decides(scene, over, "conflict", **wrong)

    async def test_answers_each_in_order(self, scene: Scene) -> None:
        one, two = await scene.running(), await scene.running()
        here, there = await scene.asked(one), await scene.asked(two)
        decisions = [
            scene.decision(there, by="person:ann"),
            scene.decision(here, "reject"),
            scene.decision(replace(here, id="none")),
            scene.decision(there, by="person:ann"),
            scene.decision(here),
            scene.decision(there, "reject"),
        ]
        verdicts = await scene.store.decide(decisions, now=scene.now)
        assert [verdict.kind for verdict in verdicts] == [
            "decided",
            "decided",
            "not_found",
            "repeated",
            "conflict",
            "conflict",
        ]
        assert await scene.store.decide([], now=scene.now) == []

    async def test_of_an_ended_task_is_a_conflict(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        await scene.write(claimed, scene.success())
        decided = await nothing_decides(scene, asked, "conflict")
        assert decided.approval is not None
        assert decided.approval.state == "withdrawn"

    async def test_of_many_at_one_moment_exactly_one_wins(self, scene: Scene, reopen: Reopen) -> None:
        stores = [scene.store, await reopen()]
        for _ in range(6):
            claimed = await scene.running()
            asked = await scene.asked(claimed)
            decisions = [scene.decision(asked, ("approve", "reject")[n % 2]) for n in range(10)]
            answers = await asyncio.gather(
                *(stores[n % 2].decide([one], now=scene.now) for n, one in enumerate(decisions))
            )
            kinds = [decided.kind for [decided] in answers]
            assert sorted(kinds) == ["conflict"] * 9 + ["decided"]
            winner = decisions[kinds.index("decided")]
            row = await scene.approval(claimed, asked.key)
            assert (row.decided_by, row.state) == (
                winner.by,
                "approved" if winner.verdict == "approve" else "rejected",
            )
            assert (await head(scene, claimed))["facts"] == 1
            assert len(await scene.store.read_votes(asked.tenant, asked.id)) == 1
        assert check_all(await scene.store.dump()) == []


class TestQuorum:
    """How many have to agree."""

    async def test_decides_with_the_last_that_is_needed(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(quorum=3))
        last = (await scene.task(claimed)).last_event
        for votes, who in enumerate(("person:ann", "person:bob"), 1):
            row = await decided_as(scene, asked, "counted", by=who)
            assert (row.state, row.votes) == ("pending", votes)
            assert (row.decided_by, row.decided_at, row.decision_reason) == (None, None, None)
            assert (await scene.operation(claimed, asked.key)).state == "planned"
            # Nobody counts twice.
            assert (await nothing_decides(scene, asked, "repeated", by=who)).approval == row
        row = await decided_as(scene, asked, "decided", by="person:cid")
        assert (row.state, row.votes, row.decided_by) == ("approved", 3, "person:cid")
        votes_kept = await scene.store.read_votes(asked.tenant, asked.id)
        assert [vote.who for vote in votes_kept] == ["person:ann", "person:bob", "person:cid"]
        events = [e for e in await scene.events(claimed, after=last)]
        assert [event.kind for event in events] == ["approval.voted", "approval.voted", "approval.approved"]
        assert json.loads(events[0].data) == {
            "approval": asked.id,
            "by": "person:ann",
            "fingerprint": asked.fingerprint,
            "edited": False,
        }
        assert len(await scene.store.read_audit(asked.tenant)) == 3

    async def test_one_rejection_is_enough(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(quorum=2))
        await decided_as(scene, asked, "counted", by="person:ann")
        row = await decided_as(scene, asked, "decided", by="person:bob", verdict="reject")
        assert (row.state, row.decided_by) == ("rejected", "person:bob")
        await nothing_decides(scene, asked, "conflict", by="person:cid")

    async def test_a_person_may_take_a_word_back(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(quorum=2))
        await decided_as(scene, asked, "counted", by="person:ann")
        row = await decided_as(scene, asked, "decided", by="person:ann", verdict="reject")
        assert row.state == "rejected"

    async def test_another_answer_is_another_question(self, scene: Scene) -> None:
        """Two people who say different things do not agree."""
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.question(quorum=2))
        await decided_as(scene, asked, "counted", by="person:ann", answer='"yes"')
        row = await decided_as(scene, asked, "counted", by="person:bob", answer='"no"')
        assert (row.state, row.votes, row.answer) == ("pending", 1, '"no"')
        await nothing_decides(scene, asked, "repeated", by="person:bob", answer='"no"')
        row = await decided_as(scene, asked, "decided", by="person:ann", answer='"no"')
        assert (row.state, row.votes, row.answer) == ("approved", 2, '"no"')


class TestEdits:
    """An approver's edit decides what it leads to, in the same request."""

    def edit(self, scene: Scene) -> dict[str, Any]:
        return {
            "arguments": scene.text("edited"),
            "shown": scene.text("shown"),
            "new_fingerprint": f"fingerprint-{scene.number()}",
        }

    async def test_is_approved_as_it_is_edited(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        last = (await scene.task(claimed)).last_event
        edit = self.edit(scene)
        row = await decided_as(scene, asked, "decided", by="person:ann", **edit)
        assert (row.state, row.edited, row.arguments) == ("approved", True, edit["arguments"])
        assert (row.shown, row.fingerprint) == (edit["shown"], edit["new_fingerprint"])
        [event] = await scene.events(claimed, after=last)
        assert json.loads(event.data) == {
            "approval": asked.id,
            "by": "person:ann",
            "fingerprint": edit["new_fingerprint"],
            "edited": True,
        }
        [vote] = await scene.store.read_votes(asked.tenant, asked.id)
        assert vote.fingerprint == edit["new_fingerprint"]
        # What was recorded of the call is what it asked for; what is to be sent is the decision's.
        assert (await scene.operation(claimed, asked.key)).state == "approved"
        again = await nothing_decides(scene, asked, "repeated", by="person:ann", **edit)
        assert again.approval == row
        await nothing_decides(scene, asked, "conflict", by="person:bob", **edit)

    async def test_of_what_was_not_seen_decides_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed)
        await nothing_decides(scene, asked, "fingerprint", fingerprint="another", **self.edit(scene))

    async def test_of_what_was_sent_before_decides_nothing(self, scene: Scene) -> None:
        """Its key has carried one request, and carries no other."""
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown")
        asked = await scene.asked(claimed, scene.ask(key))
        answer = await nothing_decides(scene, asked, "forbidden", **self.edit(scene))
        assert "it was sent before" in answer.detail
        row = await decided_as(scene, asked, "decided", by="person:ann")
        assert (row.state, row.edited) == ("approved", False)

    async def test_voids_the_votes_for_what_was_before(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(quorum=2))
        await decided_as(scene, asked, "counted", by="person:ann")
        edit = self.edit(scene)
        row = await decided_as(scene, asked, "counted", by="person:bob", **edit)
        assert (row.state, row.votes, row.edited) == ("pending", 1, True)
        assert (row.fingerprint, row.arguments) == (edit["new_fingerprint"], edit["arguments"])
        # What was seen before is not what is asked any more, and whoever agreed to it has not agreed to this.
        for who in ("person:cid", "person:ann"):
            await nothing_decides(scene, asked, "fingerprint", by=who)
        new = await scene.approval(claimed, asked.key)
        row = await decided_as(scene, new, "decided", by="person:ann")
        assert (row.state, row.votes, row.fingerprint) == ("approved", 2, edit["new_fingerprint"])

    async def test_back_to_what_it_was_is_an_edit_too(self, scene: Scene) -> None:
        claimed = await scene.running()
        asked = await scene.asked(claimed, scene.ask(quorum=2))
        await decided_as(scene, asked, "counted", by="person:ann")
        await decided_as(scene, asked, "counted", by="person:bob", **self.edit(scene))
        back = {**self.edit(scene), "new_fingerprint": asked.fingerprint}
        new = await scene.approval(claimed, asked.key)
        row = await decided_as(scene, new, "counted", by="person:cid", **back)
        assert (row.state, row.votes) == ("pending", 1)
        row = await decided_as(scene, row, "decided", by="person:ann")
        assert (row.state, row.votes) == ("approved", 2)
