"""Frozen records that are cheap to declare, and cheap to make.

A dataclass compiles half a dozen methods; the two hundred that a process declares are a quarter of what its
start costs. Of a record only ``__init__`` is compiled.

A frozen dataclass cannot assign its fields: it asks ``object.__setattr__`` for each, and for a wide record
that is most of what it costs to make one. A record is made as a twin that can still be written, then becomes
what it is; in all else it is the dataclass that it says it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_become = object.__dict__["__class__"].__set__


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen, slotted, keyword-only dataclass whose objects are cheap to make.

    For classes without bases, default factories, ``__post_init__`` and methods that a dataclass makes; they
    are not to be subclassed.
    """
    made = {"__post_init__", "__init__", "__repr__", "__eq__", "__hash__"}
    if cls.__bases__ != (object,) or made & cls.__dict__.keys():
        raise TypeError(f"{cls.__qualname__} needs a plain dataclass")
    # What describes it, and the slots; the methods follow.
    frozen: Any = dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
    known = fields(frozen)
    for each in known:
        if each.default_factory is not MISSING or not (each.init and each.repr and each.compare):
            raise TypeError(f"{cls.__qualname__}.{each.name} needs a plain dataclass")
    names = tuple(each.name for each in known)
    values = _values_of(names)

    @recursive_repr()
    def shown(self: Any) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in zip(names, values(self), strict=True))
        return f"{frozen.__qualname__}({said})"

    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is frozen else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    def restored(self: Any, state: tuple[Any, ...]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    frozen.__init__ = _init_of(frozen, known)
    frozen.__repr__, frozen.__eq__, frozen.__hash__ = shown, equal, hashed
    frozen.__getstate__, frozen.__setstate__ = lambda self: values(self), restored
    frozen.__init_subclass__ = _not_to_be_subclassed
    frozen.__setattr__, frozen.__delattr__ = _not_to_be_assigned, _not_to_be_deleted
    answer: type[T] = frozen
    return answer


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Make the function that answers a record's values as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _init_of(frozen: Any, known: tuple[Field[Any], ...]) -> Any:
    twin = type(frozen.__name__, (), {"__slots__": tuple(each.name for each in known)})
    given: dict[str, Any] = {"become": _become, "twin": twin, "frozen": frozen}
    taken = ["self", *(["*"] if known else [])]
    for each in known:
        if each.default is MISSING:
            taken.append(each.name)
        else:
            given[f"default_{each.name}"] = each.default
            taken.append(f"{each.name}=default_{each.name}")
    lines = [f"def __init__({', '.join(taken)}):", " become(self, twin)"]
    lines += [f" self.{each.name} = {each.name}" for each in known]
    lines += [" self.__class__ = frozen"]
    exec("\n".join(lines), given)
    made = given["__init__"]
    made.__qualname__ = f"{frozen.__qualname__}.__init__"
    made.__annotations__ = {**{each.name: each.type for each in known}, "return": None}
    return made


@classmethod  # type: ignore[misc]
def _not_to_be_subclassed(cls: type[Any]) -> None:
    raise TypeError(f"{cls.__qualname__}: a record is not to be subclassed")


def _not_to_be_assigned(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _not_to_be_deleted(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
