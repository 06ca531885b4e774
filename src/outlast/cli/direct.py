"""An app without agents, for commands that work on the database alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlast.app import Outlast
from outlast.cli import options
from outlast.core import ids
from outlast.errors import InvalidKey, OperationNotFound, TaskNotFound


@asynccontextmanager
async def database(database_url: str | None) -> AsyncIterator[Outlast]:
    """Open the database that a command was told of."""
    async with Outlast("cli", database_url=options.choose_database(database_url)) as app:
        yield app


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
