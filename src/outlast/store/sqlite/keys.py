"""Business keys: at most one operation of a tenant holds one, from its intent until it has an outcome.

Beside whoever holds it stand successes, for their window, and whoever is in doubt: an operation whose outcome
was contradicted, until it is settled again.
"""

from __future__ import annotations

from outlast.store.entries import BusinessKey
from outlast.store.reconciling import KeyHolder
from outlast.store.sqlite.transaction import Row, Transaction

Operation = tuple[str, str, str]
"""(tenant, task, key)."""


def any_keys(tx: Transaction) -> bool:
    """Say whether there is any key at all: one look a transaction, so that those without keys pay nothing."""
    if tx.keys is None:
        tx.keys = tx.row("any_keys") is not None
    return tx.keys


def refusal(
    tx: Transaction, operation: Operation, asked: BusinessKey, *, repeat: bool, at: int
) -> str | None:
    """Say why an operation may not have a key, None when it may."""
    # Those that hold it, or may, come first; then the success that stands longest.
    others = _others(tx, operation, asked.tool, asked.value)
    if not others:
        return None
    _, _, state, until_at = others[0]
    if state == "held":
        return "key_held"
    return "key_done" if until_at > at and not repeat else None


def take(tx: Transaction, operation: Operation, asked: BusinessKey, at: int) -> None:
    """Let an operation hold a key that ``refusal`` had nothing against."""
    tenant, task, key = operation
    tx.run("drop_over_keys", (tenant, asked.tool, asked.value, at))
    tx.run("take_key", (tenant, asked.tool, asked.value, asked.mode, asked.window_us, task, key))
    tx.keys = True


def give_up_others(tx: Transaction, operation: Operation, asked: BusinessKey | None) -> None:
    """Give up what earlier attempts of an operation held under another name than this one's."""
    if any_keys(tx):
        tool, value = ("", "") if asked is None else (asked.tool, asked.value)
        tx.run("give_up_other_keys", (*operation, tool, value))


def end(tx: Transaction, operation: Operation, state: str, at: int) -> None:
    """Let an operation's key follow its final state: given up, or done for its window."""
    if any_keys(tx) and not (state == "succeeded" and tx.run("finish_key", (at, *operation))):
        tx.run("give_up_key", operation)


def doubt(tx: Transaction, operation: Operation) -> tuple[str, KeyHolder] | None:
    """Let an operation whose outcome is in doubt have the key of its last intent; answer the key's value and
    who else has it, None where nobody does."""
    found = tx.row("doubt_key", operation)
    if found is None:
        return None
    tx.keys = True
    tool, value = found
    others = _others(tx, operation, tool, value)
    if not others:
        return None
    task, key, state, until_at = others[0]
    return value, KeyHolder(task=task, key=key, state=state, until=until_at)


def _others(tx: Transaction, operation: Operation, tool: str, value: str) -> list[Row]:
    tenant, task, key = operation
    return tx.rows("read_others", (tenant, tool, value, task, key))


def give_up_planned(tx: Transaction, tenant: str, task: str) -> None:
    """Give up the keys of an ended task's operations, but for those that may still have their effect."""
    if any_keys(tx):
        tx.run("give_up_planned_keys", (tenant, task))


def read(tx: Transaction, tenant: str, tool: str, value: str) -> KeyHolder | None:
    """Read who holds a key; see ``Store.read_business_key``."""
    found = tx.row("read_key", (tenant, tool, value, tx.now()))
    if found is None:
        return None
    task, key, state, until_at = found
    return KeyHolder(task=task, key=key, state=state, until=until_at)
