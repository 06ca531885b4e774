"""Where operations are written down as they happen: in memory, or in a file that outlives its process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from outlast.testing.history.search import Operation, Register

__all__ = ["History", "HistoryFile", "Writing", "read"]


class Writing(Protocol):
    """Whatever operations are written to."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock that all clients share, in seconds."""
        ...

    def invoke(self, client: str, register: Register, *asked: Any, at: float | None = None) -> int:
        """Write down that a client is about to ask; answer the number under which it is answered.

        at: when it asked, where its register was not known before it was answered.
        """
        ...

    def answered(self, number: int, answer: Hashable) -> None:
        """Write down what it was told; an operation that never is stays open."""
        ...


class History:
    """The operations of clients of one process, in the order of their invocation.

    now: the clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._operations: list[Operation] = []

    def invoke(self, client: str, register: Register, *asked: Any, at: float | None = None) -> int:
        """See ``Writing.invoke``."""
        self._operations.append(
            Operation(
                client=client, register=register, asked=asked, invoked_at=self.now() if at is None else at
            )
        )
        return len(self._operations) - 1

    def answered(self, number: int, answer: Hashable) -> None:
        """See ``Writing.answered``."""
        self._operations[number] = replace(self._operations[number], answer=answer, answered_at=self.now())

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)


class HistoryFile:
    """The operations of one process in a file, a line for each invocation and each answer.

    A line is handed to the system before the question is asked, so that nothing of a process that is killed
    is missing. now: a clock that the processes of the machine share.
    """

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.now = now
        self._count = 0

    def invoke(self, client: str, register: Register, *asked: Any, at: float | None = None) -> int:
        """See ``Writing.invoke``."""
        self._count += 1
        self._write([self._count, self.now() if at is None else at, client, *register, *asked])
        return self._count

    def answered(self, number: int, answer: Hashable) -> None:
        """See ``Writing.answered``."""
        self._write([-number, self.now(), answer])

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> list[Operation]:
    """Read the operations of a file; what was cut while it was written has no answer."""
    found: dict[int, Operation] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        number, at, *rest = json.loads(line)
        if number > 0:
            client, kind, name, *asked = rest
            found[number] = Operation(client=client, register=(kind, name), asked=tuple(asked), invoked_at=at)
        else:
            answer = tuple(rest[0]) if isinstance(rest[0], list) else rest[0]
            found[-number] = replace(found[-number], answer=answer, answered_at=at)
    return list(found.values())
