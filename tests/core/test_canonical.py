"""RFC 8785: the standard's own vectors, properties of the digests, and what is refused by name."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
import subprocess
import sys
import uuid
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core import canonical as module
from outlast.core.canonical import canonical, decision_digest, digest, fingerprint
from outlast.errors import Unserializable

SAFE = (1 << 53) - 1
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        # RFC 8785, appendix B.
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_appendix_b(bits: str, expected: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == expected.encode()
    assert canonical({"n": [number]}) == f'{{"n":[{expected}]}}'.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_of_appendix_b_that_are_errors(bits: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(Unserializable, match="NaN or infinite") as caught:
        canonical({"a": [1, number]})
    assert caught.value.pointer == "/a/1"


def test_the_sorting_example_of_section_3_2_3() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_the_example_of_section_3_2_2() -> None:
    source = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + r"""'B\"\\\\\"/"}"""
    )
    assert canonical(json.loads(source)) == expected.encode()


def test_the_shortest_escapes_of_section_3_2_2_2() -> None:
    short = {0x08: r"\b", 0x09: r"\t", 0x0A: r"\n", 0x0C: r"\f", 0x0D: r"\r", 0x22: r"\"", 0x5C: r"\\"}
    for code in [*range(0x80), 0x85, 0x2028, 0xFEFF, 0x10FFFF]:
        expected = short.get(code, f"\\u{code:04x}" if code < 0x20 else chr(code))
        assert canonical(chr(code)) == f'"{expected}"'.encode()
        assert canonical({chr(code): 0.5}) == f'{{"{expected}":0.5}}'.encode()


@given(json_values)
def test_both_paths_write_the_same_bytes(value: object) -> None:
    assert canonical(value) == module._carefully(value)


@given(json_values)
def test_canonical_reads_back_and_is_its_own_canonical_form(value: object) -> None:
    text = canonical(value)
    # As ECMAScript reads it: every number is a double, also 1e+20 written as an integer.
    again = json.loads(text, parse_int=float)
    assert canonical(again) == text
    assert again == value


@given(st.dictionaries(st.text(), leaves, min_size=2), st.randoms())
def test_the_order_of_names_does_not_matter(value: dict[str, object], draw: random.Random) -> None:
    items = list(value.items())
    draw.shuffle(items)
    assert digest(dict(items)) == digest(value)
    assert [name.encode("utf-16-be") for name in json.loads(canonical(value))] == sorted(
        name.encode("utf-16-be") for name in value
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_as_the_same_double(number: float) -> None:
    assert float(canonical(number)) == number


@pytest.mark.parametrize("number", [SAFE, -SAFE, 0, -1])
def test_integers_up_to_2_to_the_53(number: int) -> None:
    assert canonical([number]) == f"[{number}]".encode()


@pytest.mark.parametrize("number", [SAFE + 1, -SAFE - 1, 1 << 63, 1 << 64, 10**400])
def test_larger_integers_are_refused_with_advice(number: int) -> None:
    with pytest.raises(Unserializable, match=r"beyond 2\^53 - 1.*send it as text") as caught:
        canonical({"invoice/no": {"a~b": number}})
    assert caught.value.pointer == "/invoice~1no/a~0b"


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        (Decimal("118.50"), "", "Decimal.*send it as text"),
        ([0, {"x": Decimal(1)}], "/1/x", "Decimal"),
        ({"x": b"raw"}, "/x", "bytes"),
        ({"x": "\ud800"}, "/x", "lone surrogate"),
        ({"x": {"\udc00y": 1}}, "/x/\\udc00y", "lone surrogate"),
        ({"x": {1: 2}}, "/x", "type int"),
        ({"x": {None: 2}}, "/x", "type NoneType"),
        ({"x": [object()]}, "/x/0", "object has no JSON form"),
        ({"x": [{1, 2}]}, "/x/0", "set has no JSON form"),
        ([None, math.nan], "/1", "NaN"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(
    value: object, pointer: str, reason: str
) -> None:
    with pytest.raises(Unserializable, match=reason) as caught:
        canonical(value)
    assert caught.value.pointer == pointer
    assert str(caught.value).isascii()


def test_a_value_that_contains_itself_is_refused_and_one_that_repeats_is_not() -> None:
    wheel: dict[str, Any] = {"spokes": [1]}
    wheel["spokes"].append(wheel)
    with pytest.raises(Unserializable, match="contains itself") as caught:
        canonical(wheel)
    assert caught.value.pointer == "/spokes/1"
    part = [0.5]
    assert canonical([part, part]) == b"[[0.5],[0.5]]"


@pytest.mark.parametrize("levels", [199, 200])
def test_200_levels_are_carried(levels: int) -> None:
    assert canonical(nested(levels)) == b"[" * levels + b"]" * levels
    assert fingerprint("tool", "t", nested(levels)).startswith("sha256:")


@pytest.mark.parametrize("levels", [201, 254, 255, 256, 5_000])
def test_deeper_values_are_refused_by_name(levels: int) -> None:
    with pytest.raises(Unserializable, match="deeper than 200 levels") as caught:
        canonical({"x": nested(levels)})
    assert caught.value.pointer == "/x" + "/0" * 199


def test_many_flat_containers_are_not_deep() -> None:
    assert canonical([[] for _ in range(300)]) == b"[" + b",".join([b"[]"] * 300) + b"]"


def test_tuples_uuids_and_enums_count_as_what_is_stored_for_them() -> None:
    class Colour(Enum):
        RED = "red"

    some_id = uuid.UUID(int=7)
    for extra in ("plain", None, 0.5):  # None and 0.5 send it down the careful path
        assert canonical([(1, 2), some_id, Colour.RED, extra]) == canonical(
            [[1, 2], str(some_id), "red", extra]
        )


def test_digest_is_sha_256_over_the_canonical_form() -> None:
    assert digest({"b": 1, "a": 2.0}) == "sha256:" + hashlib.sha256(b'{"a":2,"b":1}').hexdigest()


@given(st.text(), st.text(), json_values)
def test_fingerprint_is_the_digest_of_kind_name_and_arguments(kind: str, name: str, value: object) -> None:
    assert fingerprint(kind, name, value) == digest({"kind": kind, "name": name, "arguments": value})


def test_fingerprint_tells_requests_apart() -> None:
    arguments = {"invoice": "INV-102", "amount": "118.50"}
    same = fingerprint("tool", "create_reimbursement_ticket", dict(reversed(arguments.items())))
    assert fingerprint("tool", "create_reimbursement_ticket", arguments) == same
    others = {
        fingerprint("step", "create_reimbursement_ticket", arguments),
        fingerprint("tool", "close_reimbursement_ticket", arguments),
        fingerprint("tool", "create_reimbursement_ticket", arguments | {"amount": "180.00"}),
    }
    assert len(others | {same}) == 4


def test_the_pointer_of_fingerprint_is_into_the_arguments() -> None:
    with pytest.raises(Unserializable) as caught:
        fingerprint("tool", "t", {"amount": math.inf})
    assert caught.value.pointer == "/amount"


def test_decision_digest_changes_with_each_part() -> None:
    request = fingerprint("tool", "t", {})
    target = {"object": "INV-102", "version": 3}
    digests = {
        decision_digest(request, "1", target),
        decision_digest(fingerprint("tool", "u", {}), "1", target),
        decision_digest(request, "2", target),
        decision_digest(request, "1", target | {"version": 4}),
        decision_digest(request, "1", None),
        request,
    }
    assert len(digests) == 6
    assert decision_digest(request, "1", target) == digest(
        {"request": request, "tool_version": "1", "target": target}
    )


def test_another_process_makes_the_same_digest() -> None:
    program = "from outlast.core.canonical import digest; print(digest({'b': [1, 0.5], 'ä': None}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest({"ä": None, "b": [1, 0.5]})
