"""An app without agents, for commands that work on the database alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outlast.app import Outlast
from outlast.cli import options
from outlast.core import ids
from outlast.errors import ApprovalNotFound, InvalidKey, OperationNotFound, TaskNotFound
from outlast.settings import Settings


@asynccontextmanager
async def database(database_url: str | None) -> AsyncIterator[Outlast]:
    """Open the database that a command was told of."""
    url = options.choose_database(database_url)
    async with Outlast("cli", database_url=url, secret=_kept_secret()) as app:
        yield app


def _kept_secret() -> str | None:
    """Answer the secret that ``outlast dev`` keeps in this folder, where no other is set."""
    kept = Path(".outlast", "secret")
    if Settings().secret.get_secret_value() or not kept.is_file():
        return None
    return kept.read_text().strip()


def task_id(text: str) -> str:
    """Take a task's id. Raises TaskNotFound for what cannot be one."""
    try:
        ids.parse_id(text, prefix=ids.TASK)
    except InvalidKey:
        raise TaskNotFound(f"no task {text[:100]!r}") from None
    return text


def operation_id(text: str) -> str:
    """Take an operation's id. Raises OperationNotFound for what cannot be one."""
    try:
        task, key = ids.split_operation_id(text)
        ids.parse_id(task, prefix=ids.TASK)
        ids.check_operation_key(key)
    except InvalidKey:
        raise OperationNotFound(f"no operation {text[:100]!r}") from None
    return text


def approval_id(text: str) -> str:
    """Take an approval's id. Raises ApprovalNotFound for what cannot be one."""
    try:
        return ids.check_approval_id(text)
    except InvalidKey:
        raise ApprovalNotFound(f"no approval {text[:100]!r}") from None
