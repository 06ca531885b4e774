"""The verbs ``retry``, ``adopt``, ``wake`` and ``accept``, and the views of versions and acceptances.

Each is judged by the task's head under the file's one writer lock; none needs a lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from outlast.store.changing import (
    Acceptance,
    AcceptanceRow,
    Accepted,
    Adopt,
    Adopted,
    Retried,
    Retry,
    VersionRow,
)
from outlast.store.records import ANY_VERSION, TaskRef
from outlast.store.rows import SessionRow
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Transaction

# -- trying again ------------------------------------------------------------------------------------------


def retry(tx: Transaction, requests: Sequence[Retry], now: int | None) -> list[Retried]:
    """Open the next round of failed or cancelled tasks; see ``Store.retry``."""
    at = tx.now(now)
    verdicts = [_retry_one(tx, one, at) for one in requests]
    tx.write_events()
    return verdicts


def _retry_one(tx: Transaction, one: Retry, at: int) -> Retried:
    name = (one.tenant, one.task)
    head = Head.read(tx, *name, at)
    if head is None:
        return Retried(kind="not_found")
    if head.state not in ("failed", "cancelled"):
        return Retried(kind="not_ended", state=head.state, round=head.round)
    if tx.row("any_undone", name) is not None:
        return Retried(kind="undone", state=head.state, round=head.round)
    for key in one.reopen:
        tx.run("reopen_operation", (*name, key))
    head.round += 1
    head.deadline_at = None if one.deadline_us is None else at + one.deadline_us
    if head.deadline_at is not None:
        tx.run("set_timer", (*name, "deadline", head.deadline_at))
    head.enqueue()
    head.append("task.retried", json_text({"by": one.by, "reason": one.reason, "round": head.round}))
    head.save()
    switches.audit(
        tx,
        one.tenant,
        who=one.by,
        what="retry",
        subject=one.task,
        reason=one.reason,
        at=at,
        data=json_text({"round": head.round, "reopen": one.reopen}),
    )
    return Retried(kind="retried", state=head.state, round=head.round)


# -- versions ----------------------------------------------------------------------------------------------


def adopt(tx: Transaction, requests: Sequence[Adopt], now: int | None) -> list[Adopted]:
    """Bind tasks to another version; see ``Store.adopt``."""
    at = tx.now(now)
    verdicts = [_adopt_one(tx, one, at) for one in requests]
    tx.write_events()
    return verdicts


def _adopt_one(tx: Transaction, one: Adopt, at: int) -> Adopted:
    name = (one.tenant, one.task)
    head = Head.read(tx, *name, at)
    if head is None:
        return Adopted(kind="not_found")
    if not head.live:
        return Adopted(kind="ended", state=head.state)
    if head.state == "running":
        return Adopted(kind="running", state=head.state)
    lane = tx.row("read_lane", name)
    assert lane is not None, "a head stands in a lane"
    pool, agent, version, tenant, priority = lane
    if (version, head.epoch, head.last_event) != (one.seen_version, one.seen_epoch, one.seen_event):
        return Adopted(kind="moved", state=head.state)
    head.lane = tx.lane((pool, agent, one.version, tenant, priority))
    # A task that has not begun is left to its time.
    if head.state == "queued" or head.epoch > 0:
        tx.run("dequeue", name)
        head.enqueue()
    said = {"from": version, "version": one.version, "by": one.by}
    head.append("task.adopted", json_text(said))
    head.save()
    switches.audit(
        tx,
        one.tenant,
        who=one.by,
        what="adopt",
        subject=one.task,
        reason=one.reason,
        at=at,
        data=json_text({"from": version, "version": one.version}),
    )
    return Adopted(kind="adopted", state=head.state)


def wake(tx: Transaction, ref: TaskRef, by: str, reason: str, now: int | None) -> bool:
    """Let a task that waits for an operator try again; see ``Store.wake``."""
    at = tx.now(now)
    head = Head.read(tx, ref.tenant, ref.task, at)
    if head is None or (head.state, head.reason) != ("waiting", "operator"):
        return False
    head.wake()
    head.save()
    switches.audit(tx, ref.tenant, who=by, what="wake", subject=ref.task, reason=reason, at=at)
    tx.write_events()
    return True


def list_versions(tx: Transaction, tenant: str | None) -> list[VersionRow]:
    """Count live tasks by the version that they need; see ``Store.list_versions``."""
    counted: dict[str, dict[tuple[str, str], int]] = {
        state: {(agent, version): count for agent, version, count in tx.rows(f"count_{state}", (tenant,))}
        for state in ("queued", "running", "waiting")
    }
    served = _served(tx)
    return [
        VersionRow(
            agent=agent,
            version=version,
            queued=counted["queued"].get((agent, version), 0),
            running=counted["running"].get((agent, version), 0),
            waiting=counted["waiting"].get((agent, version), 0),
            served_by=served[agent, version],
        )
        for agent, version in sorted(set().union(*counted.values()))
    ]


def _served(tx: Transaction) -> Counter[tuple[str, str]]:
    """Count living sessions by what they serve; a task that is not bound yet is served by any version."""
    served: Counter[tuple[str, str]] = Counter()
    for session in list_sessions(tx):
        agents: list[list[Any]] = orjson.loads(session.serves).get("agents", [])
        served.update({(agent, version) for agent, version in agents})
        served.update({(agent, ANY_VERSION) for agent, _ in agents})
    return served


def list_sessions(tx: Transaction) -> list[SessionRow]:
    """List the sessions that live; see ``Store.list_sessions``."""
    return [
        SessionRow(session=session, name=name, serves=serves, started_at=started_at, expires_at=expires_at)
        for session, name, serves, started_at, expires_at in tx.rows("list_sessions", (tx.now(),))
    ]


# -- acceptance --------------------------------------------------------------------------------------------


def accept(tx: Transaction, verdicts: Sequence[Acceptance], now: int | None) -> list[Accepted]:
    """Record verdicts on finished work; see ``Store.accept``."""
    at = tx.now(now)
    answers = [_accept_one(tx, one, at) for one in verdicts]
    tx.write_events()
    return answers


def _accept_one(tx: Transaction, one: Acceptance, at: int) -> Accepted:
    head = Head.read(tx, one.tenant, one.task, at)
    if head is None:
        return Accepted(kind="not_found")
    if head.state != "succeeded":
        return Accepted(kind="not_ended", state=head.state)
    number, stands = tx.row("last_acceptance", (one.tenant, one.task, head.round)) or (0, None)
    if number != one.seen or stands == one.verdict:
        return Accepted(kind="conflict", number=number, state=head.state)
    judge(tx, head, number + 1, (one.verdict, one.by, one.reason, one.evidence))
    head.save()
    return Accepted(kind="recorded", number=number + 1, state=head.state)


def judge(
    tx: Transaction, head: Head, number: int, verdict: tuple[str, str, str, str], *, epoch: int = 0
) -> None:
    """Keep a verdict, as (verdict, by, reason, evidence), on the work of a task's round."""
    said, by, reason, evidence = verdict
    tx.run(
        "keep_acceptance",
        (head.tenant, head.task, head.round, number, said, by, reason, evidence, head.at),
    )
    head.append(f"task.{said}", json_text({"by": by, "reason": reason, "number": number}), epoch=epoch)
    switches.audit(
        tx,
        head.tenant,
        who=by,
        what=f"accept:{said}",
        subject=head.task,
        reason=reason,
        at=head.at,
        data=json_text({"number": number, "evidence": orjson.Fragment(evidence)}),
    )


def read_acceptances(tx: Transaction, tenant: str, task: str) -> list[AcceptanceRow]:
    """Read the verdicts on a task's work; see ``Store.read_acceptances``."""
    return [
        AcceptanceRow(
            round=round_,
            number=number,
            verdict=verdict,
            by=by,
            reason=reason,
            evidence=evidence,
            at=at,
        )
        for round_, number, verdict, by, reason, evidence, at in tx.rows("read_acceptances", (tenant, task))
    ]
