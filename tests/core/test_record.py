"""Records are the frozen dataclasses that they stand for, only cheaper to make."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from inspect import signature
from typing import Any

import pytest

from outlast.core.record import record


@record
class Made:
    """A record."""

    key: str
    position: int = 1
    rest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """What it stands for."""

    key: str
    position: int = 1
    rest: tuple[int, ...] = ()


def test_a_record_is_the_dataclass_that_it_stands_for() -> None:
    made, plain = Made(key="a", rest=(2,)), Plain(key="a", rest=(2,))
    assert type(made) is Made
    assert is_dataclass(made)
    assert repr(made) == repr(plain).replace("Plain", "Made")
    assert hash(made) == hash(plain)
    assert [(f.name, f.default) for f in fields(Made)] == [(f.name, f.default) for f in fields(Plain)]
    assert signature(Made) == signature(Plain)
    assert made == Made(key="a", position=1, rest=(2,))
    assert made != Made(key="b", rest=(2,))
    assert made != plain  # type: ignore[comparison-overlap]
    assert Made.__doc__ == "A record."


def test_a_record_cannot_be_changed() -> None:
    made = Made(key="a")
    with pytest.raises(FrozenInstanceError):
        made.key = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.key
    with pytest.raises((AttributeError, TypeError)):
        made.other = "b"  # type: ignore[attr-defined]
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize("arguments", [{}, {"key": "a", "other": 1}])
def test_a_record_takes_its_fields_by_name_and_nothing_else(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Made\.__init__\(\)"):
        Made(**arguments)
    with pytest.raises(TypeError):
        Made("a")  # type: ignore[call-arg]


def test_a_record_goes_through_copies() -> None:
    made = Made(key="a", position=2)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(other) is Made
        assert other == made
    assert replace(made, position=3) == Made(key="a", position=3)


@record
class Alone:
    """Of one field."""

    rest: Any = None


@record
class Empty:
    """Of none."""


def test_a_record_of_one_field_or_none_is_the_dataclass_that_it_stands_for() -> None:
    assert repr(Alone(rest="a")) == "Alone(rest='a')"
    assert hash(Alone(rest="a")) == hash(("a",))
    assert Alone(rest="a") == Alone(rest="a") != Alone(rest="b")
    assert repr(Empty()) == "Empty()"
    assert hash(Empty()) == hash(())
    assert Empty() == Empty() != Alone()
    for made in (Alone(rest=("a",)), Empty()):
        assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError):
        Empty(1)  # type: ignore[call-arg]


def test_a_record_that_holds_itself_can_be_shown() -> None:
    rest: list[Any] = []
    rest.append(Alone(rest=rest))
    assert repr(rest) == "[Alone(rest=[...])]"
    assert repr(rest[0]) == "Alone(rest=[...])"


def test_values_are_compared_as_those_of_a_dataclass_are() -> None:
    odd = float("nan")
    assert Alone(rest=odd) == Alone(rest=odd)  # the very same, as in any tuple
    assert Alone(rest=odd) != Alone(rest=float("nan"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Alone(rest=[]))


def test_a_record_in_a_cycle_is_freed() -> None:
    class Held:
        """Can be watched."""

    held = Held()
    held.made = Made(key="a", rest=(held,))  # type: ignore[attr-defined, arg-type]
    watched = weakref.ref(held)
    del held
    gc.collect()
    assert watched() is None


def test_what_a_record_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a plain dataclass"):

        @record
        class WithFactory:
            items: list[int] = field(default_factory=list)

    with pytest.raises(TypeError, match="needs a plain dataclass"):

        @record
        class Hiding:
            secret: str = field(default="", repr=False)

    with pytest.raises(TypeError, match="needs a plain dataclass"):

        @record
        class Checking:
            key: str

            def __post_init__(self) -> None: ...

    with pytest.raises(TypeError, match="needs a plain dataclass"):

        @record
        class Telling:
            key: str

            def __repr__(self) -> str:
                return self.key

    with pytest.raises(TypeError, match="needs a plain dataclass"):

        @record
        class Under(Exception):
            key: str

    with pytest.raises(TypeError, match="not to be subclassed"):

        class Below(Made):
            pass
