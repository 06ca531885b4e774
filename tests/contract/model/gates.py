"""The model's gates: what is looked at, in this order, before a call is made or a session is held."""

from __future__ import annotations

from tests.contract.model.kept import FOREVER, Kept, Name, Operation, Task

from outlast.store.entries import AttachSession, CommitIntent
from outlast.store.reconciling import EVERY_TENANT


class Gates(Kept):
    """What may be refused under a lease."""

    def _intend(self, name: Name, task: Task, entry: CommitIntent, now: int) -> str | None:
        """Commit an intent, or answer the first reason not to."""
        there = task.operations.get(entry.key)
        attempt, turn = (there.attempt, there.turn) if there else (0, 0)
        question = task.questions.get((entry.key, entry.consent.approval or 0)) if entry.consent else None
        fits = ("unknown",) if entry.resend else (None, "planned", "approved")
        if (task.deadline_at or FOREVER) <= now:
            return "deadline"
        if task.cancelling and entry.kind != "compensation":
            return "cancelled"
        if (attempt, turn) != (entry.attempt, entry.turn) or (there.state if there else None) not in fits:
            return "not_planned"
        if there is not None and there.happened and entry.effect not in ("read", "idempotent"):
            return "not_planned"
        standing = sorted(
            (whose, scope)
            for whose, scope in self.switches
            if whose in (name[0], EVERY_TENANT) and scope in ("all", f"tool:{entry.name}")
        )
        if standing:
            self.held.add((standing[0], name))
            return "paused"
        left = self.waits.get((name[0], entry.provider or ""), 0) - now
        if left > 0:
            return f"held {left}"
        tool = (task.record.tenant, entry.name)
        if entry.consent is None:
            changed = any((rule.tenant, rule.tool) == tool for rule in self.rules.values())
        else:
            changed = entry.consent.rules != self.versions.get(tool, 0)
        if changed:
            return "rules_changed"
        if entry.consent is not None and entry.consent.approval is not None:
            allows = question is not None and (
                question.state == "approved"
                or (question.state == "used" and not question.spent and entry.attempt > 0)
            )
            if (
                not allows
                or question is None
                or question.ask.subject != "call"
                or question.fingerprint != entry.consent.fingerprint
                or question.ask.policy != entry.consent.policy
                or (question.expires_at or FOREVER) <= now
            ):
                return "no_approval"
        business = entry.business
        if business is not None:
            taken = self.business.refusal((*name, entry.key), business, repeat=entry.repeat, now=now)
            if taken is not None:
                return taken
        if question is not None:
            question.state = "used"
        self.business.take((*name, entry.key), business, now)
        position = there.position if there else entry.position
        deadline_at = min(now + entry.timeout_us, task.deadline_at or FOREVER)
        task.operations[entry.key] = Operation(
            kind=entry.kind, position=position, state="running", attempt=attempt + 1, turn=turn + 1,
            deadline_at=deadline_at, visible_at=deadline_at + entry.visible_us,
            due_at=there.due_at if there else None, sent=there.sent if there else None,
            effect=entry.effect, words=there.words if there else (),
        )  # fmt: skip
        return None

    def _attach(self, name: Name, entry: AttachSession) -> str | None:
        """Hold an outside session, unless another task that lives holds it."""
        of = (name[0], entry.provider, entry.session, entry.run)
        holder, _ = self.outside.get(of, (None, None))
        if holder != name[1]:
            if holder is not None and self.tasks[name[0], holder].live:
                return f"taken {holder}"
            # What the last holder heard of it is not this one's.
            self.outside[of] = (name[1], None)
        return None
