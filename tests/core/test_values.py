"""Stored values come back equal, or are refused by name before anything is stored."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import uuid
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from outlast.core import values
from outlast.core.values import MAX_VALUE_BYTES, decode, encode, normalise
from outlast.errors import Unserializable, ValueTooLarge

any_text = st.text(st.characters(exclude_categories=[])).filter(
    lambda text: not values._SPLIT_PAIR.search(text)
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def ascii_start(value: object) -> str:
    return values._carefully(value, "value")[:20].encode("ascii", "backslashreplace").decode()


def exact(value: object) -> object:
    """Tell apart what ``==`` does not: 1 and 1.0 and True, 0.0 and -0.0."""
    if isinstance(value, dict):
        return {name: exact(child) for name, child in value.items()}
    if isinstance(value, list):
        return [exact(child) for child in value]
    return type(value), repr(value)


@given(json_values)
def test_decode_inverts_encode(value: object) -> None:
    text = encode(value)
    assert exact(decode(text)) == exact(value)
    assert "\x00" not in text
    text.encode()  # no lone surrogate is left


@given(json_values)
def test_both_paths_carry_the_same_value(value: object) -> None:
    assert exact(decode(values._carefully(value, "value"))) == exact(value)


@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        {"\x00": "\x00"},
        "\ud800",
        {"\udfff": ["x\udc00\ud800"]},
        10**399,
        -(10**399),
        [1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1],
        [10**600 - 1, 10**600, 10**1200 + 7, -(10**600), 10**1199],
        10**4000 - 1,
        1 - 10**4000,
        [0.1, 5e-324, 1.7976931348623157e308, -0.0, 1.0, 1e16],
        ["null", None, {"null": None}],
        {"": ""},
    ],
    ids=ascii_start,
)
def test_what_stores_and_parsers_stumble_over_comes_back(value: object) -> None:
    assert exact(decode(encode(value))) == exact(value)


def test_long_integers_come_back_under_the_lowest_bound_that_python_allows() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        value = [10**4000 - 1, -(10**3999), 10**640, 12]
        assert decode(encode(value)) == value
        with pytest.raises(ValueError, match="Expecting"):
            decode("[1" + "0" * 700)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("digits", [4001, 100_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_of_more_than_4000_digits_is_refused_by_name(digits: int, sign: int) -> None:
    with pytest.raises(Unserializable, match="more than 4000 digits") as caught:
        encode({"n": [sign * 10 ** (digits - 1)]})
    assert caught.value.pointer == "/n/0"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("put", [encode, normalise])
def test_nan_and_infinities_are_refused_with_their_place(put: Any, number: float) -> None:
    for value, pointer in [(number, ""), ({"a": [None, number]}, "/a/1"), ((1, {"b": number}), "/1/b")]:
        with pytest.raises(Unserializable, match="NaN or infinite") as caught:
            put(value)
        assert caught.value.pointer == pointer


def test_a_surrogate_pair_as_two_characters_is_refused_since_reading_would_join_it() -> None:
    with pytest.raises(Unserializable, match="surrogate pair as two characters") as caught:
        encode(["\ud83d\ude00"])
    assert caught.value.pointer == "/0"
    assert decode(encode("\U0001f600")) == "\U0001f600"


@pytest.mark.parametrize("levels", [199, 200])
def test_200_levels_are_carried(levels: int) -> None:
    assert decode(encode(nested(levels))) == nested(levels)
    assert normalise(tuple(nested(levels - 1))) == nested(levels - 1)


@pytest.mark.parametrize("levels", [201, 254, 255, 256, 20_000])
@pytest.mark.parametrize("put", [encode, normalise])
def test_the_201st_level_is_refused_by_name(put: Any, levels: int) -> None:
    with pytest.raises(Unserializable, match="deeper than 200 levels") as caught:
        put(nested(levels))
    assert caught.value.pointer == "/0" * 200


def test_depth_does_not_depend_on_how_deep_the_caller_stands() -> None:
    def stand(levels: int) -> str:
        return stand(levels - 1) if levels else encode([nested(199), 1 << 70, {1}])

    room = sys.getrecursionlimit() - 150
    assert stand(room).startswith("[[[[")


def test_cycles_are_refused_by_name() -> None:
    loop: list[Any] = []
    loop.extend([loop] * 1000)
    for put in (encode, normalise):
        with pytest.raises(Unserializable, match="contains itself") as caught:
            put(loop)
        assert caught.value.pointer == "/0"


def of_size(size: int) -> list[object]:
    """Make values that are ``size`` bytes as JSON; the last one takes the careful path."""
    return [
        "x" * (size - 2),
        "é" * (size // 2 - 1) + "x" * (size % 2),
        "\x00" + "x" * (size - 8),
        ("x" * (size - 9), None),
    ]


@pytest.mark.parametrize("size", [MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES])
def test_values_up_to_the_limit_are_carried(size: int) -> None:
    for value in of_size(size):
        text = encode(value)
        assert len(text.encode()) == size
        assert decode(text) == normalise(value)


def test_one_byte_over_the_limit_is_refused_with_size_limit_and_advice() -> None:
    advice = r"^result is 1048577 bytes as JSON, over the limit of 1048576; .*artifact.*reference"
    for value in of_size(MAX_VALUE_BYTES + 1):
        with pytest.raises(ValueTooLarge, match=advice):
            encode(value, what="result")


@pytest.mark.parametrize(("limit", "fits"), [(9, False), (10, True), (11, True)])
def test_the_limit_can_be_set_and_counts_bytes_not_characters(limit: int, fits: bool) -> None:
    if fits:
        assert encode("éééé", limit=limit) == '"éééé"'
    else:
        with pytest.raises(ValueTooLarge, match="10 bytes"):
            encode("éééé", limit=limit)


@pytest.mark.parametrize("text", ["1", '{"a": [1, 2.5, null]}', "9" * 3_000, "[" + "9" * 6_000 + "]"])
def test_decode_reads_what_others_wrote_with_white_space_around_it(text: str) -> None:
    assert values.decode(f" \n{text}\t") == values.decode(text)


def test_decode_raises_for_what_is_no_json() -> None:
    with pytest.raises(json.JSONDecodeError):
        decode("[1,")


# --- beyond JSON ---------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    HI = "hi"


class Raw(Enum):
    BYTES = b"x"


Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Line:
    start: Point
    tags: set[str]
    when: datetime


@pydantic_dataclass
class Dose:
    amount: Decimal


class Inner(BaseModel):
    tags: set[str] = set()


class Invoice(BaseModel):
    number: str = Field(alias="invoiceNumber")
    total: Decimal
    inner: list[Inner] = []
    note: str = ""

    @field_serializer("note")
    def shout(self, note: str) -> str:
        return note.upper()


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (deque([1, (2,)]), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({("b", 1), ("a", 2)}), [["a", 2], ["b", 1]]),
        (OrderedDict(a=(1,)), {"a": [1]}),
        (Colour.RED, "red"),
        (Size.BIG, 3),
        (Word.HI, "hi"),
        ({Word.HI: Word.HI}, {"hi": "hi"}),
        (NOON, "2026-03-01T12:00:00Z"),
        (date(2026, 3, 1), "2026-03-01"),
        (timedelta(seconds=90), "PT1M30S"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("118.50"), "118.50"),
        (Dose(amount=Decimal("0.10")), {"amount": "0.10"}),
        (
            Line(start=Point(0, 1), tags={"b", "a"}, when=NOON),
            {"start": [0, 1], "tags": ["a", "b"], "when": "2026-03-01T12:00:00Z"},
        ),
        (
            Invoice(
                invoiceNumber="INV-102", total=Decimal("118.50"), note="hi", inner=[Inner(tags={"z", "y"})]
            ),
            {"invoiceNumber": "INV-102", "total": "118.50", "note": "HI", "inner": [{"tags": ["y", "z"]}]},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_normalise_turns_what_python_offers_into_json(value: object, expected: object) -> None:
    for wrapped, wanted in [(value, expected), ({"v": [value, None]}, {"v": [expected, None]})]:
        assert exact(normalise(wrapped)) == exact(wanted)
        assert exact(decode(encode(wrapped))) == exact(wanted)


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True, "x", {"b": {}}]}, [], "x", 0, None, 10**400])
def test_normalise_returns_plain_json_as_the_same_object(value: object) -> None:
    assert normalise(value) is value


@given(json_values)
def test_normalise_changes_no_json_value(value: object) -> None:
    assert exact(normalise([value, (1,)])) == exact([value, [1]])


def test_a_model_comes_back_from_what_is_stored() -> None:
    invoice = Invoice(invoiceNumber="INV-102", total=Decimal("118.50"), inner=[Inner(tags={"a", "b"})])
    assert Invoice.model_validate(decode(encode(invoice))) == invoice


def count() -> Iterator[int]:
    yield 1


class Measure(BaseModel):
    value: float


class Broken(BaseModel):
    x: int = 1

    @field_serializer("x")
    def fail(self, x: int) -> int:
        raise RuntimeError("secret")


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        (b"x", "", "bytes"),
        ([bytearray(b"x")], "/0", "bytes"),
        ({"a": memoryview(b"x")}, "/a", "bytes"),
        ([Raw.BYTES], "/0", "bytes"),
        ({"a": {1: 2}}, "/a", "type int, and would come back as text"),
        ({"a": {(1, 2): 2}}, "/a", "type tuple"),
        ({True: 1}, "", "type bool"),
        ([object()], "/0", "type object has no JSON form"),
        ([print], "/0", "no JSON form"),
        ([int], "/0", "a class"),
        ([Invoice], "/0", "a class"),
        ([count()], "/0", "read once"),
        ({"m": Measure(value=math.nan)}, "/m/value", "NaN"),
        ({"m": Broken()}, "/m", "type Broken has no JSON form"),
        ([{b"x"}], "/0", "bytes"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_place(value: object, pointer: str, reason: str) -> None:
    for put in (encode, normalise):
        with pytest.raises(Unserializable, match=reason) as caught:
            put(value)
        assert caught.value.pointer == pointer
        assert "secret" not in str(caught.value)


def test_sets_within_sets_are_written_once_a_level() -> None:
    value = frozenset({0})
    for level in range(1, 60):
        value = frozenset({value, level})  # type: ignore[arg-type]
    assert encode(value).count("[") == 60


def test_sets_nested_without_end_are_refused_by_name() -> None:
    value: frozenset[Any] = frozenset()
    for _ in range(3000):
        value = frozenset({value})
    with pytest.raises(Unserializable, match="nested"):
        encode(value)


def test_sets_are_written_alike_by_processes_that_hash_differently() -> None:
    program = (
        "from pydantic import BaseModel\n"
        "from outlast.core.values import encode\n"
        "class M(BaseModel):\n    tags: set[str]\n"
        "words = set('the quick brown fox jumps over a lazy dog'.split())\n"
        "print(encode([words, M(tags=words)]))"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in (1, 2)
    }
    assert len(written) == 1
