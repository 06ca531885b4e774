"""The verbs ``pause`` and ``resume``, the tasks that switches hold back, and the audit trail of what people
decide."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store.reconciling import EVERY_TENANT, AuditRow, Pause
from outlast.store.sqlite.transaction import Row, Transaction


def pause(tx: Transaction, switch: Pause, now: int | None) -> None:
    """Throw a switch; see ``Store.pause``. One that stands as it is asked for is left as it is."""
    at = tx.now(now)
    if tx.row("read_pause", (switch.tenant, switch.scope)) == (switch.reason, switch.by):
        return
    tx.run("keep_pause", (switch.tenant, switch.scope, switch.reason, switch.by, at))
    _keep(tx, switch, "pause", at)


def resume(tx: Transaction, switch: Pause, now: int | None) -> bool:
    """Take a switch back; see ``Store.resume``."""
    at = tx.now(now)
    if not tx.run("drop_pause", (switch.tenant, switch.scope)):
        return False
    _keep(tx, switch, "resume", at)
    tx.hints.add("posts")
    return True


def _keep(tx: Transaction, switch: Pause, verb: str, at: int) -> None:
    tx.pauses = None
    audit(
        tx,
        switch.tenant,
        who=switch.by,
        what=f"{verb}:{switch.scope}",
        subject=switch.scope,
        reason=switch.reason,
        at=at,
    )


def standing(tx: Transaction, tenant: str, tool: str) -> tuple[str, str] | None:
    """Answer whose switch stands for a tool of a tenant, and for what; the first by name. All that stand are
    read once a transaction."""
    if tx.pauses is None:
        tx.pauses = frozenset(tx.rows("all_pauses"))
    if not tx.pauses:
        return None
    mine = {(whose, scope) for whose in (tenant, EVERY_TENANT) for scope in ("all", f"tool:{tool}")}
    return min(tx.pauses & mine, default=None)


def hold(tx: Transaction, tenant: str, task: str, tool: str) -> None:
    """Keep a task by the switch that stands for a tool, so that it is told when that is taken back."""
    switch = standing(tx, tenant, tool)
    assert switch is not None, "only a switch holds back"
    tx.run("hold_task", (*switch, tenant, task))


def released(tx: Transaction, limit: int) -> list[Row]:
    """Read tasks that a switch has held back which stands no more, as (by_tenant, scope, tenant, task).

    There are few switches; those that stand cost a look each, however many tasks they hold.
    """
    found: list[Row] = []
    switch = tx.row("next_held", ("", ""))
    while switch is not None and len(found) < limit:
        if tx.row("read_pause", switch) is None:
            found += tx.rows("read_held", (*switch, limit - len(found)))
        switch = tx.row("next_held", switch)
    return found


def let_go(tx: Transaction, told: Sequence[Row]) -> None:
    """Forget tasks that were told; each as ``released`` answers it."""
    tx.run_many("drop_held", told)


def audit(
    tx: Transaction,
    tenant: str,
    *,
    who: str,
    what: str,
    subject: str,
    reason: str,
    at: int,
    data: str = "{}",
) -> None:
    """Append to the audit trail. data: JSON text."""
    tx.run("add_audit", (tenant, at, who, what, subject, reason, data))


def list_pauses(tx: Transaction, tenant: str) -> list[Pause]:
    """List the switches that stand for a tenant; see ``Store.list_pauses``."""
    return [
        Pause(tenant=whose, scope=scope, reason=reason, by=by, at=at)
        for whose, scope, reason, by, at in tx.rows("list_pauses", (tenant, EVERY_TENANT))
    ]


def read_audit(tx: Transaction, tenant: str, after: int, limit: int) -> list[AuditRow]:
    """Read a tenant's audit trail; see ``Store.read_audit``."""
    return [
        AuditRow(number=number, at=at, who=who, what=what, subject=subject, reason=reason, data=data)
        for number, at, who, what, subject, reason, data in tx.rows("read_audit", (tenant, after, limit))
    ]
