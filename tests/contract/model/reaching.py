"""What reaches the model's tasks from outside: facts, and people's words."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.model.kept import FOREVER, Kept, Name, Question, Row, Task

from outlast.store.approving import Decided, Decision, Rule
from outlast.store.changing import OutsideEvent, OutsidePosted
from outlast.store.posting import Cancel, CancelReply, Delivered, Posted, Signal
from outlast.store.reconciling import Pause
from outlast.store.records import Evidence, Settled, Settlement, TaskRef


class Reaching(Kept):
    """The verbs that need no lease."""

    # -- unknowns ------------------------------------------------------------------------------------------

    def settle(self, settlements: Sequence[Settlement], now: int) -> list[Settled]:
        """Settle unknowns by compare-and-set."""
        return [self._settle(one, now) for one in settlements]

    def _settle(self, one: Settlement, now: int) -> Settled:
        task = self.tasks.get((one.tenant, one.task))
        operation = task.operations.get(one.key) if task else None
        if task is None or operation is None:
            return Settled(kind="not_found")
        if operation.state != "unknown" or one.turn not in (None, operation.turn):
            return Settled(kind="conflict", state=operation.state)
        person = one.by.startswith("person:")
        left = ((operation.visible_at if person else operation.deadline_at) or 0) - now
        if one.verdict != "happened" and not one.forced and left > 0:
            return Settled(kind="too_early", state=operation.state, wait_us=left)
        by_person = one.by.startswith("person:")
        if one.verdict != "happened" and not by_person and operation.happened:
            return Settled(kind="conflict", state=operation.state)
        state = {"happened": "succeeded", "did_not_happen": "failed", "send_again": "unknown"}[one.verdict]
        operation.state, operation.turn, operation.settled_by = state, operation.turn + 1, one.by
        operation.open = state == "unknown"
        operation.resend = operation.open and task.live
        operation.gone = operation.gone and operation.open
        self.business.end((one.tenant, one.task, one.key), state, now)
        if by_person:
            operation.words = ()
            for (key, _), question in task.questions.items():
                if key == one.key and question.state in ("used", "rejected", "expired"):
                    question.spent = True
        if task.live:
            task.say("operation.settled")
            self._raise(task, 1, operators=False)
        return Settled(kind="settled", state=state)

    def note(self, evidence: Sequence[Evidence]) -> None:
        """Believe evidence that contradicts a settlement, and send nothing again that it tells of."""
        for one in evidence:
            task = self.tasks.get((one.tenant, one.task))
            if task is not None and one.says == "over":
                task.over.add((one.key, one.attempt))
            operation = task.operations.get(one.key) if task else None
            if task is None or operation is None or one.says in (None, "over"):
                continue
            if one.says == "happened":
                operation.words += (one.attempt,)
                to_be_sent = operation.state in ("planned", "approved") and one.attempt > 0
                contradicts = one.attempt <= operation.attempt and (operation.state == "failed" or to_be_sent)
            else:
                done = operation.state == "succeeded" and operation.settled_by is not None
                contradicts = done and one.attempt == operation.attempt
            if contradicts and operation.effect != "read":
                operation.state, operation.open, operation.lost = "unknown", True, False
                self.business.doubt((one.tenant, one.task, one.key))
                if task.live:
                    task.say("operation.contradicted")
            elif operation.resend:
                operation.turn, operation.resend = operation.turn + 1, False

    # -- facts and people ----------------------------------------------------------------------------------

    def post(self, signals: Sequence[Signal]) -> list[Posted]:
        """Put signals into inboxes."""
        answers, more = [], dict.fromkeys(((one.tenant, one.task) for one in signals), 0)
        for one in signals:
            name = (one.tenant, one.task)
            task = self.tasks.get(name)
            if task is None:
                answers.append(Posted(kind="not_found"))
                continue
            used = [
                (number, row)
                for number, row in task.inbox.items()
                if one.key is not None and (row.kind, row.name, row.key) == ("signal", one.name, one.key)
            ]
            if used:
                [(number, row)] = used
                kind = "replayed" if row.digest == one.digest else "conflict"
                answers.append(Posted(kind=kind, number=number))  # type: ignore[arg-type]
            elif not task.live:
                answers.append(Posted(kind="ended", state=task.state))
            else:
                more[name] += 1
                number = task.facts + more[name]
                task.inbox[number] = Row(kind="signal", name=one.name, key=one.key, digest=one.digest)
                task.say("signal.received")
                answers.append(Posted(kind="accepted", number=number))
        for name, count in more.items():
            if count:
                self._raise(self.tasks[name], count)
        return answers

    def post_outside(self, events: Sequence[OutsideEvent]) -> list[OutsidePosted]:
        """Post what happens in outside sessions to whoever holds the run, else to the holder of the whole."""
        signals: dict[int, tuple[tuple[str, str, str, str], Signal]] = {}
        for place, one in enumerate(events):
            runs = [(one.tenant, one.provider, one.session, run) for run in (one.run, "")]
            of = next((of for of in runs if of in self.outside), None)
            if of is not None:
                key = f"{one.session}/{one.run}/{one.event}"
                signals[place] = of, Signal(
                    tenant=one.tenant, task=self.outside[of][0], name=f"outside:{one.provider}",
                    data=one.data, digest=one.digest, key=key,
                )  # fmt: skip
        answers = [OutsidePosted(kind="not_found")] * len(events)
        posted = self.post([signal for _, signal in signals.values()])
        for (place, (of, signal)), said in zip(signals.items(), posted, strict=True):
            if said.kind == "accepted":
                self.outside[of] = (signal.task, events[place].event)
            answers[place] = OutsidePosted(
                kind=said.kind,  # type: ignore[arg-type]
                task=TaskRef(tenant=signal.tenant, task=signal.task),
            )
        return answers

    def cancel(self, requests: Sequence[Cancel]) -> list[CancelReply]:
        """Cancel tasks."""
        return [self._cancel((one.tenant, one.task), one.undo)[0] for one in requests]

    def _cancel(self, name: Name, undo: bool) -> tuple[CancelReply, bool]:
        """End or mark a task; answer also whether that was new."""
        task = self.tasks.get(name)
        if task is None:
            return CancelReply(kind="not_found"), False
        if not task.live:
            kind = "already" if task.state == "cancelled" else "ended"
            return CancelReply(kind=kind, state=task.state), False  # type: ignore[arg-type]
        if task.cancelling:
            return CancelReply(kind="requested", state=task.state), False
        undo = undo and task.epoch > 0
        if task.state != "running" and not undo:
            self._end(name, task, "cancelled")
            return CancelReply(kind="cancelled", state="cancelled"), True
        task.cancelling, task.undoing = True, undo
        task.say("task.cancel_requested")
        self._raise(task, 1)
        return CancelReply(kind="requested", state=task.state), True

    def deliver(self) -> Delivered:
        """Tell parents of their children's ends, children of their parents', and whom no switch holds any
        more."""
        posts, self.posts = self.posts, []
        free = {one for one in self.held if one[0] not in self.switches}
        self.held -= free
        told, cancelled = [], []
        for name in sorted({of for of, _, _ in posts} | {of for _, of in free}):
            task = self.tasks[name]
            # What it has on record its worker has heard of by itself.
            ends = [
                said for of, kind, said in posts if (of, kind) == (name, "child") and not task.has_ended(said)
            ]
            # One that has failed or was cancelled may be tried again, and then has to know.
            if task.state == "succeeded":
                continue
            for n, said in enumerate(ends, 1):
                task.inbox[task.facts + n] = Row(kind="child", name=said)
            more = len(ends) + (task.live and any(of == name for _, of in free))
            if more:
                self._raise(task, more)
            if not task.live:
                continue
            if more:
                told.append(TaskRef(tenant=name[0], task=name[1]))
            if any((of, kind) == (name, "cancel") for of, kind, _ in posts) and self._cancel(name, False)[1]:
                cancelled.append(TaskRef(tenant=name[0], task=name[1]))
        return Delivered(told=tuple(told), cancelled=tuple(cancelled))

    def decide(self, decisions: Sequence[Decision], now: int) -> list[Decided]:
        """Decide questions; the first word that suffices counts."""
        return [Decided(kind=self._decide(one, now)) for one in decisions]  # type: ignore[arg-type]

    def _decide(self, one: Decision, now: int) -> str:
        found = self._question(one.tenant, one.approval)
        if found is None:
            return "not_found"
        task, question = found
        ask = question.ask
        edit = one.new_fingerprint if one.verdict == "approve" else None
        theirs = (one.by, one.verdict, edit or one.fingerprint)
        words = [word for word in question.words if word[1] == one.verdict]
        if one.verdict == "approve":
            words = words[len(words) - question.votes :]
        if theirs in words and (one.verdict == "reject" or one.answer == question.answer):
            return "repeated"
        if question.state == "expired":
            return "expired"
        if question.state != "pending" or not task.live:
            return "conflict"
        if (question.expires_at or FOREVER) <= now:
            question.state = "expired"
            task.say("approval.expired")
            self._raise(task, 1)
            return "expired"
        if ask.roles and not set(one.roles) & {*ask.roles, "*"}:
            return "forbidden"
        if ask.four_eyes and ask.requester == one.by:
            return "forbidden"
        if question.fingerprint != one.fingerprint:
            return "fingerprint"
        if edit is not None and task.operations[ask.key].attempt > 0:
            return "forbidden"
        if edit is not None:
            question.fingerprint, question.votes = edit, 0
        if one.verdict == "approve":
            if question.answer != one.answer:
                question.answer, question.votes = one.answer, 0
            question.votes += 1
        question.words.append((one.by, one.verdict, question.fingerprint))
        final = one.verdict == "reject" or question.votes >= ask.quorum
        if final:
            question.state = "rejected" if one.verdict == "reject" else "approved"
            operation = task.operations[ask.key]
            if (question.state, ask.subject, operation.state) == ("approved", "call", "planned"):
                operation.state = "approved"
        task.say(f"approval.{question.state if final else 'voted'}")
        self._raise(task, 1)
        return "decided" if final else "counted"

    def put_rule(self, rule: Rule) -> int:
        """Let a standing rule stand; answer its number."""
        self._changes += 1
        self.rules[self._changes] = rule
        self.versions[rule.tenant, rule.tool] = self._changes
        return self._changes

    def withdraw_rule(self, tenant: str, number: int, _by: str, _reason: str) -> bool:
        """Take a rule back; answer whether it stood."""
        rule = self.rules.get(number)
        if rule is None or rule.tenant != tenant:
            return False
        del self.rules[number]
        self._changes += 1
        self.versions[rule.tenant, rule.tool] = self._changes
        return True

    def pause(self, switch: Pause) -> None:
        """Let a switch stand."""
        self.switches[switch.tenant, switch.scope] = (switch.reason, switch.by)

    def resume(self, switch: Pause) -> bool:
        """Take a switch back; answer whether it stood."""
        return self.switches.pop((switch.tenant, switch.scope), None) is not None

    def _question(self, tenant: str, approval: str) -> tuple[Task, Question] | None:
        name, _, rest = approval.partition(":")
        key, _, number = rest.rpartition("~")
        task = self.tasks.get((tenant, name))
        question = task.questions.get((key, int(number))) if task else None
        return (task, question) if task and question else None
