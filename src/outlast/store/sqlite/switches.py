"""The verbs ``pause`` and ``resume``, and the audit trail of what people decide."""

from __future__ import annotations

from outlast.store.reconciling import EVERY_TENANT, AuditRow, Pause
from outlast.store.sqlite.transaction import Transaction


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


def paused(tx: Transaction, tenant: str, tool: str) -> bool:
    """Say whether a switch stands for a tool of a tenant. All that stand are read once a transaction."""
    if tx.pauses is None:
        tx.pauses = frozenset(tx.rows("all_pauses"))
    return bool(tx.pauses) and not tx.pauses.isdisjoint(
        (whose, scope) for whose in (tenant, EVERY_TENANT) for scope in ("all", f"tool:{tool}")
    )


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
