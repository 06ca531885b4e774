"""Deliberate faults in what people ask for: decisions, cancels, children, undos, retries, forks, submits."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.defects.declaring import Patch, defect, nothing

from outlast.engine import intents, undoing
from outlast.engine.children import Family
from outlast.store.records import Submitted
from outlast.store.sqlite import approving, gate, keys, submit, switches
from outlast.store.sqlite.heads import Head
from outlast.testing.simulation import Faults

# ── people ───────────────────────────────────────────────────────────────────────────────────────


@defect("a decision is not used up by the intent that it allowed", agents=("asker",))
def decision_not_used_up(patch: Patch) -> None:
    patch.set(approving, "use", nothing)


@defect("a call needs no decision at the gate", agents=("asker",))
def decision_not_needed(patch: Patch) -> None:
    make = intents.make

    def anyway(operation: Any, consent: Any, resend: str | None) -> Any:
        return make(operation, None, resend)

    patch.set(intents, "make", anyway)


@defect(
    "people may decide when the time of a question is over",
    agents=("asker",),
    faults=Faults(crashes=4, freezes=2),
)
def expiry_ignored(patch: Patch) -> None:
    decide = approving._decide_one
    read = approving.read_approval

    def timeless(tx: Any, tenant: str, approval: str) -> Any:
        row = read(tx, tenant, approval)
        return row and dataclasses.replace(row, expires_at=None)

    def decide_one(tx: Any, one: Any, at: int) -> Any:
        approving.read_approval = timeless
        try:
            return decide(tx, one, at)
        finally:
            approving.read_approval = read

    patch.set(approving, "_decide_one", decide_one)


@defect(
    "what people decide on is not compared with what they saw",
    agents=("asker",),
    faults=Faults.calm(),
)
def fingerprint_not_compared(patch: Patch) -> None:
    decide = approving._decide_one

    def blind(tx: Any, one: Any, at: int) -> Any:
        row = approving.read_approval(tx, one.tenant, one.approval)
        return decide(tx, dataclasses.replace(one, fingerprint=row.fingerprint) if row else one, at)

    patch.set(approving, "_decide_one", blind)


@defect("the gate does not look whether a decision still stands", agents=("asker",), faults=Faults(brink=0.9))
def gate_ignores_decision(patch: Patch) -> None:
    patch.set(approving, "covers", lambda *_: True)


@defect("an edit keeps the fingerprint of what was asked", agents=("asker",))
def edit_keeps_fingerprint(patch: Patch) -> None:
    patch.sql(
        "edit_approval",
        "set fingerprint = :fingerprint",
        "set fingerprint = coalesce(fingerprint, :fingerprint)",
    )


@defect("one person's word is enough, however many have to agree", agents=("asker",))
def quorum_ignored(patch: Patch) -> None:
    count = approving._count

    def alone(tx: Any, head: Any, row: Any, one: Any, edit: Any) -> Any:
        return count(tx, head, dataclasses.replace(row, quorum=1), one, edit)

    patch.set(approving, "_count", alone)


@defect("a person who says the same again counts twice", agents=("asker",))
def person_counted_twice(patch: Patch) -> None:
    patch.set(approving, "_stands", lambda *_: False)


@defect("the questions of a task that has ended stay open", agents=("asker",))
def questions_left_open(patch: Patch) -> None:
    patch.set(Head, "withdraw_approvals", nothing)


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


@defect("the gate admits intents although a cancel stands")
def gate_ignores_cancel(patch: Patch) -> None:
    admit = gate.admit

    def blind(tx: Any, head: Any, entry: Any) -> Any:
        mark, head.cancelling = head.cancelling, 0
        try:
            return admit(tx, head, entry)
        finally:
            head.cancelling = mark

    patch.set(gate, "admit", blind)


@defect("the end of an attempt does not look at the cancel")
def ending_ignores_cancel(patch: Patch) -> None:
    patch.set(Head, "cut", property(lambda _: False))


@defect("who cancelled is not written down")
def cancel_not_audited(patch: Patch) -> None:
    audit = switches.audit

    def forgetful(tx: Any, tenant: str, **said: Any) -> None:
        if said["what"] != "cancel":
            audit(tx, tenant, **said)

    patch.set(switches, "audit", forgetful)


# ── families ─────────────────────────────────────────────────────────────────────────────────────


@defect("a child's end is posted to nobody", agents=("family",), quick=True)
def child_end_posted_to_nobody(patch: Patch) -> None:
    patch.sql(
        "leave_post",
        "values (:tenant, :task, :kind, :name, :data)",
        "select :tenant, :task, :kind, :name, :data where 0",
    )


@defect("what was delivered is delivered again", agents=("family",), quick=True)
def delivered_again(patch: Patch) -> None:
    patch.sql("drop_post", "where ", "where 0 and ")


@defect("children go on when their parent has ended", agents=("family",))
def children_go_on(patch: Patch) -> None:
    patch.sql("leave_cancels", "where ", "where 0 and ")


@defect("an end that a worker will tell to the parent's run is left for nobody else", agents=("family",))
def end_only_told(patch: Patch) -> None:
    finish = Head.finish

    def trusting(self: Head, state: str, *, heard: bool = False, **said: Any) -> None:
        finish(self, state, heard=heard, **said)
        if heard:
            _, parent, parent_key, *_ = self._tx.row("read_leavings", (self.tenant, self.task)) or ()
            assert self._tx.run("take_post", (self.tenant, parent, parent_key)), "the end was left"

    patch.set(Head, "finish", trusting)


@defect("a parent is told of a child's end as of that of another child", agents=("family",), quick=True)
def end_told_of_another(patch: Patch) -> None:
    told = Family.told

    def muddled(self: Family, child: Any, ending: Any) -> bool:
        others = [one for one in self.spawned.values() if one is not child and one.key in self._waiting]
        return told(self, others[0] if others else child, ending)

    patch.set(Family, "told", muddled)


# ── undo, retry, fork ────────────────────────────────────────────────────────────────────────────


@defect("effects are undone in the order in which they were made", agents=("undone",))
def undone_in_order_of_success(patch: Patch) -> None:
    read = undoing.read_history

    def backwards(rows: Any) -> Any:
        history = read(rows)
        order = {key: -number for key, number in history.succeeded.items()}
        return dataclasses.replace(history, succeeded=order)

    patch.set(undoing, "read_history", backwards)


@defect("what is undone was not decided on record", agents=("undone",))
def undone_without_decision(patch: Patch) -> None:
    async def unwritten(self: Any, error: Any) -> None:
        self._error = error

    patch.set(undoing.Undoing, "_decide", unwritten)


@defect("an undo that nobody knows of counts as done", agents=("undone",))
def unknown_undo_is_done(patch: Patch) -> None:
    undo = undoing.Undoing._undo

    async def surely(self: Any, row: Any, heard: int) -> bool:
        await undo(self, row, heard)
        return True

    patch.set(undoing.Undoing, "_undo", surely)


@defect(
    "the gate admits an undo although there is news that its worker has not heard",
    agents=("undone",),
    faults=Faults(brink=0.9),
)
def gate_ignores_news(patch: Patch) -> None:
    against = gate._against

    def deaf(tx: Any, head: Any, entry: Any) -> Any:
        return against(tx, head, dataclasses.replace(entry, heard=None))

    patch.set(gate, "_against", deaf)


@defect("a task that is tried again stays in its round")
def retry_opens_no_round(patch: Patch) -> None:
    patch.sql("write_heads", "round = :round", "round = round + 0 * :round")


@defect("a fork does not know what was made behind it")
def fork_without_issued(patch: Patch) -> None:
    patch.sql("fork_issued", "where ", "where 0 and ")


@defect("a fork goes on under keys of its own")
def fork_under_own_keys(patch: Patch) -> None:
    patch.sql(
        "fork_operations",
        "coalesce(idempotency_key, case when attempt > 0 then task || ':' || key end), usage",
        "null, usage",
    )


@defect("a fork may begin with what has not ended")
def fork_of_unsettled(patch: Patch) -> None:
    patch.sql("unsettled_prefix", "where tenant = :tenant", "where 0 and tenant = :tenant")


# ── submitting, business keys ────────────────────────────────────────────────────────────────────


@defect("a submit that is repeated is told of a task that was never stored")
def repeat_gets_another_task(patch: Patch) -> None:
    patch.set(submit, "_read_winner", lambda _, one: Submitted(kind="accepted", task=one.task))


@defect("a business key is given to whoever asks", agents=("exclusive",), tasks=3)
def business_key_not_looked_at(patch: Patch) -> None:
    patch.set(keys, "refusal", nothing)


@defect("a business key is kept when its call has ended", agents=("exclusive",), tasks=3)
def business_key_kept(patch: Patch) -> None:
    patch.set(keys, "end", nothing)
