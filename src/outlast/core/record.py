"""Frozen records that are cheap to make.

A frozen dataclass cannot assign its fields: it asks ``object.__setattr__`` for each, and for a wide record
that is most of what it costs to make one. A record is made as a twin that can still be written, then becomes
what it is; in all else it is the dataclass that it says it is.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_become = object.__dict__["__class__"].__set__


@classmethod  # type: ignore[misc]
def _refuse(cls: type[Any]) -> None:
    raise TypeError(f"{cls.__qualname__}: a record is not to be subclassed")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen, slotted, keyword-only dataclass whose objects are cheap to make.

    For classes without bases, default factories and ``__post_init__``; they are not to be subclassed.
    """
    frozen: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    named = {field.name: field for field in fields(frozen)}
    twin = type(cls.__name__, (), {"__slots__": tuple(named)})
    known: dict[str, Any] = {"become": _become, "twin": twin, "frozen": frozen}
    taken = []
    for name, field in named.items():
        if field.default_factory is not MISSING or not field.init:
            raise TypeError(f"{cls.__qualname__}.{name} needs a plain dataclass")
        if field.default is MISSING:
            taken.append(name)
        else:
            known[f"default_{name}"] = field.default
            taken.append(f"{name}=default_{name}")
    lines = [f"def __init__(self, *, {', '.join(taken)}):", " become(self, twin)"]
    lines += [f" self.{name} = {name}" for name in named]
    lines += [" self.__class__ = frozen"]
    exec("\n".join(lines), known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = frozen.__init__.__annotations__
    frozen.__init__ = made
    frozen.__init_subclass__ = _refuse
    answer: type[T] = frozen
    return answer
