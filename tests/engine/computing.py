"""Steps that run in processes of their own: importable there, so not in a test."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from outlast import Outlast

app = Outlast("computing")


@dataclass(frozen=True)
class Part:
    """Something with a type of its own."""

    amount: Decimal


def burn(started: str, forever: bool = True) -> int:
    """Say that it began, then compute without a pause, and never look whether it is to stop."""
    Path(started).write_text(str(os.getpid()))
    number = 0
    while forever:
        number += 1
    return os.getpid()


@app.step(executor="process")
def spin(started: str, forever: bool = True) -> int:
    """Compute for ever, in a process."""
    return burn(started, forever)


@app.step(executor="process", name="adds")
def add(left: int, right: Part) -> dict[str, Any]:
    """Add two numbers of different kinds."""
    return {"sum": right.amount + left, "pid": os.getpid()}


@app.step(executor="process")
async def soon(seconds: float) -> float:
    """Wait in a loop of the process's own."""
    await asyncio.sleep(seconds)
    return seconds


@app.step(executor="process")
def cannot_connect(address: str) -> None:
    """Fail as a driver does that puts the whole address into its errors."""
    raise RuntimeError(f"cannot connect to {address}")


class Account(BaseModel):
    """Something that values have to fit."""

    token: str
    owner: int = 0


@app.step(executor="process")
def open_account(given: dict[str, Any]) -> None:
    """Fail, since what was given does not fit."""
    Account.model_validate(given)


class Odd(Exception):
    """An error of a kind that only this module has."""


@app.step(executor="process")
def fails(how: str) -> Any:
    """End in some other way than with a result."""
    if how == "raises":
        raise Odd("not today")
    if how == "exits":
        raise SystemExit(3)
    if how == "dies":
        os.kill(os.getpid(), 9)
    if how == "unstorable":
        return float("nan")
    return object()


@app.step(executor="process", timeout=0.5)
def slow() -> None:
    """Take longer than it may."""
    time.sleep(60)
