"""Business keys: at most one operation of a tenant holds one, from its intent until it has an outcome."""

from __future__ import annotations

from outlast.store.entries import BusinessKey
from outlast.store.reconciling import KeyHolder
from outlast.store.sqlite.transaction import Transaction

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
    tenant, *own = operation
    found = tx.row("read_key", (tenant, asked.tool, asked.value))
    if found is None or list(found[:2]) == own:
        return None
    _, _, state, until_at = found
    if state == "held":
        return "key_held"
    return "key_done" if until_at > at and not repeat else None


def take(tx: Transaction, operation: Operation, asked: BusinessKey) -> None:
    """Let an operation hold a key that ``refusal`` had nothing against."""
    tenant, task, key = operation
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


def hold_again(tx: Transaction, operation: Operation) -> None:
    """Let an operation whose success is in doubt hold the key that was done."""
    if any_keys(tx):
        tx.run("hold_key_again", operation)


def give_up_planned(tx: Transaction, tenant: str, task: str) -> None:
    """Give up the keys of an ended task's operations, but for those that may still have their effect."""
    if any_keys(tx):
        tx.run("give_up_planned_keys", (tenant, task))


def read(tx: Transaction, tenant: str, tool: str, value: str) -> KeyHolder | None:
    """Read who holds a key; see ``Store.read_business_key``."""
    found = tx.row("read_key", (tenant, tool, value))
    if found is None:
        return None
    task, key, state, until_at = found
    if until_at is not None and until_at <= tx.now():
        return None
    return KeyHolder(task=task, key=key, state=state, until=until_at)
