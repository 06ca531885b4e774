"""Waiting for what nobody tells us: looking until it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")


async def until(
    look: Callable[[], Awaitable[T | None]], otherwise: str, *, patience_s: float, every_s: float = 0.1
) -> T:
    """Look until there is an answer. Raises TimeoutError, which says ``otherwise``, after the patience."""
    try:
        async with asyncio.timeout(patience_s):
            while True:
                seen = await look()
                if seen is not None:
                    return seen
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise TimeoutError(otherwise) from None
