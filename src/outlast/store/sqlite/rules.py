"""Standing rules of tools: the verbs ``put_rule`` and ``withdraw_rule``, and the version that an intent
compares with."""

from __future__ import annotations

from outlast.store.approving import Rule, Rules
from outlast.store.entries import Consent
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import json_text
from outlast.store.sqlite.transaction import Row, Transaction


def put_rule(tx: Transaction, rule: Rule, now: int | None) -> int:
    """Let a rule stand; see ``Store.put_rule``."""
    at = tx.now(now)
    number = _next_change(tx)
    tx.run(
        "keep_rule",
        (rule.tenant, number, rule.tool, rule.verdict, rule.bounds, rule.by, rule.reason, at, number),
    )
    tx.rules = True
    switches.audit(
        tx,
        rule.tenant,
        who=rule.by,
        what=f"rule:{rule.verdict}",
        subject=rule.tool,
        reason=rule.reason,
        at=at,
        data=_about(number, rule.verdict, rule.bounds),
    )
    return number


def withdraw_rule(tx: Transaction, tenant: str, number: int, by: str, reason: str, now: int | None) -> bool:
    """Take a rule back; see ``Store.withdraw_rule``."""
    at = tx.now(now)
    found = tx.row("read_rule", (tenant, number))
    if found is None:
        return False
    tool, verdict, bounds = found
    tx.run("withdraw_rule", (at, _next_change(tx), tenant, number))
    switches.audit(
        tx,
        tenant,
        who=by,
        what="rule:withdraw",
        subject=tool,
        reason=reason,
        at=at,
        data=_about(number, verdict, bounds),
    )
    return True


def _next_change(tx: Transaction) -> int:
    row = tx.row("next_change")
    assert row is not None
    return int(row[0])


def _about(number: int, verdict: str, bounds: str) -> str:
    return json_text({"number": number, "verdict": verdict, "bounds": bounds})


def any_rules(tx: Transaction) -> bool:
    """Say whether there has ever been a rule: one look a transaction, so that those without pay nothing."""
    if tx.rules is None:
        tx.rules = tx.row("any_rules") is not None
    return tx.rules


def agrees(tx: Transaction, tenant: str, tool: str, consent: Consent | None) -> bool:
    """Say whether an intent was made with a look at the rules that stand now: at this version of them, or,
    without consent, where there are none."""
    if consent is None:
        return tx.row("any_rule", (tenant, tool)) is None
    return _version(tx, tenant, tool) == consent.rules


def _version(tx: Transaction, tenant: str, tool: str) -> int:
    row = tx.row("read_rules_version", (tenant, tool))
    return 0 if row is None or row[0] is None else int(row[0])


def read_rules(tx: Transaction, tenant: str, tool: str) -> Rules:
    """Read the rules that stand for a tool; see ``Store.read_rules``."""
    rules = tuple(_rule(tenant, row) for row in tx.rows("read_rules", (tenant, tool)))
    return Rules(version=_version(tx, tenant, tool), rules=rules)


def list_rules(tx: Transaction, tenant: str) -> list[Rule]:
    """List a tenant's standing rules; see ``Store.list_rules``."""
    return [_rule(tenant, row) for row in tx.rows("list_rules", (tenant,))]


def _rule(tenant: str, row: Row) -> Rule:
    number, tool, verdict, bounds, by, reason, at = row
    return Rule(
        tenant=tenant, tool=tool, verdict=verdict, by=by, reason=reason, bounds=bounds, number=number, at=at
    )
