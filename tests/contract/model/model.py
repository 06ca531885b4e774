"""The protocol of the store as plain Python: what a task is, and what each verb does to it.

It is written from the protocol's words and shares nothing with the stores but the records that cross the
seam. There are no transactions and no rows: verbs come one after the other, and change what is kept here.
What it leaves out it is never asked for: budgets, and the words of events.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.model.changing import Changing
from tests.contract.model.kept import Lease, Session
from tests.contract.model.publishing import Publishing
from tests.contract.model.reaching import Reaching
from tests.contract.model.scheduling import Scheduling
from tests.contract.model.writing import Writing

from outlast.store.posting import Heard, News
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Held,
    Renewed,
    SessionRenewal,
    SweepRequest,
    Swept,
    TaskRef,
)


class Model(Writing, Reaching, Changing, Scheduling, Publishing):
    """All that the store keeps, and its verbs."""

    # -- sessions and leases -------------------------------------------------------------------------------

    def renew(self, renewal: SessionRenewal, now: int) -> Renewed:
        """Open or renew a session; one that was swept stays ended."""
        session = self.sessions.setdefault(renewal.session, Session(expires_at=0))
        if not session.lost:
            session.expires_at = now + renewal.ttl_us
        return Renewed(alive=not session.lost, now=now, expires_at=session.expires_at)

    def retire(self, session: str) -> None:
        """Forget a session that holds nothing."""
        if not any(task.lease and task.lease.session == session for task in self.tasks.values()):
            self.sessions.pop(session, None)

    def claim(self, request: ClaimRequest, now: int) -> ClaimReply:
        """Take every queued task that is served: the epoch grows, and is the only fence."""
        session = self.sessions.get(request.session)
        if session is None or session.lost or session.fence > request.fence:
            return ClaimReply(now=now, claims=(), refused=True)
        claims = []
        for (tenant, name), task in self.tasks.items():
            agent = task.record.agent
            served = [
                one.version
                for one in request.serves
                if one.agent == agent
                and (task.version == one.version or (task.version == "" and one.default))
            ]
            if task.state != "queued" or task.record.pool not in request.pools or not served:
                continue
            task.state, task.epoch, task.version = "running", task.epoch + 1, max(served)
            task.lease = Lease(epoch=task.epoch, session=request.session)
            task.say("attempt.started")
            claims.append(
                Claimed(
                    tenant=tenant, task=name, epoch=task.epoch, round=task.round, agent=agent,
                    version=task.version, facts=task.facts, deadline_at=None, cancelling=task.undoing,
                )
            )  # fmt: skip
        return ClaimReply(now=now, claims=tuple(claims))

    def reconcile(self, session: str, held: Sequence[Held], fence: int) -> list[TaskRef]:
        """Give back what a session has and does not know of; nothing where that was looked at since."""
        known_as = self.sessions.get(session)
        if known_as is None or known_as.lost or known_as.fence >= fence:
            return []
        known_as.fence = fence
        known = {(one.tenant, one.task, one.epoch) for one in held}
        gone = []
        for name, task in sorted(self.tasks.items()):
            if task.lease is None or task.lease.session != session:
                continue
            if (*name, task.lease.epoch) in known:
                continue
            if task.cut:
                self._take_away(name, task, "cancelled")
                self._end(name, task, "cancelled")
            else:
                self._take_away(name, task, "released")
                task.epoch += 1
                self._queue(task, "task.queued")
            gone.append(TaskRef(tenant=name[0], task=name[1]))
        return gone

    def news(self, session: str, heard: Sequence[Heard]) -> list[News]:
        """Answer of which running tasks a session has not heard all."""
        for one in heard:
            task = self.tasks.get((one.tenant, one.task))
            if task and task.lease and task.lease.session == session and task.lease.news <= one.facts:
                task.lease.news = 0
        return [
            News(
                tenant=tenant, task=name, facts=task.lease.news, cancelling=task.cancelling,
                undoing=task.undoing,
            )
            for (tenant, name), task in sorted(self.tasks.items())
            if task.lease and task.lease.session == session and task.lease.news
        ]  # fmt: skip

    # -- sweeping ------------------------------------------------------------------------------------------

    def sweep(self, request: SweepRequest, now: int) -> Swept:
        """End sessions that ran out, and give back, park, expire and wake what is due."""
        found: dict[str, list[TaskRef]] = {"lost": [], "parked": [], "expired": [], "woken": []}
        ended = [name for name, one in self.sessions.items() if not one.lost and one.expires_at <= now]
        for name in ended:
            self.sessions[name].lost = True
        for (tenant, of), task in self.tasks.items():
            ref, name = TaskRef(tenant=tenant, task=of), (tenant, of)
            if task.lease is None or not self.sessions[task.lease.session].lost:
                continue
            if task.cut:
                self._take_away(name, task, "cancelled")
                self._end(name, task, "cancelled")
                found["lost"].append(ref)
                continue
            self._take_away(name, task, "lost")
            ends = [end for round_, end in task.attempts if round_ == task.round][-request.max_deaths :]
            if ends == ["lost"] * request.max_deaths:
                self._end(name, task, "cancelled" if task.cancelling else "failed")
                found["parked"].append(ref)
            else:
                task.epoch += 1
                self._queue(task, "task.queued")
                found["lost"].append(ref)
        for (tenant, of), task in self.tasks.items():
            ref, name = TaskRef(tenant=tenant, task=of), (tenant, of)
            patience = request.grace_us if task.state == "running" else 0
            if task.deadline_at is None or task.deadline_at > now - patience:
                continue
            state = "cancelled" if task.cancelling else "failed"
            if task.lease is not None:
                self._take_away(name, task, state)
            self._end(name, task, state)
            found["expired"].append(ref)
        for (tenant, of), task in self.tasks.items():
            if task.wake_at is not None and task.wake_at <= now:
                task.wake_at = None
                if task.state == "waiting":
                    self._queue(task, "task.woken")
                    found["woken"].append(TaskRef(tenant=tenant, task=of))
        self.waits = {of: until for of, until in self.waits.items() if until > now}
        return Swept(
            sessions=tuple(ended),
            lost=tuple(found["lost"]),
            parked=tuple(found["parked"]),
            woken=tuple(found["woken"]),
            expired=tuple(found["expired"]),
        )
