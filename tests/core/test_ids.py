"""Ids sort by time and read back; every rule for a caller's key is refused at its edge."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core import ids
from outlast.errors import InvalidKey

millis = st.integers(0, (1 << 48) - 1)
randoms = st.integers(0, (1 << 74) - 1)


def test_new_id_is_the_typeid_of_a_uuid_version_7() -> None:
    # The TypeID specification's own example pair.
    number = uuid.UUID("01890a5d-ac96-774b-bcce-b302099a8057").int
    random_bits = (number >> 64 & 0xFFF) << 62 | number & ((1 << 62) - 1)
    assert ids.new_id("prefix", number >> 80, random_bits) == "prefix_01h455vb4pex5vsknk084sn02q"


@pytest.mark.parametrize(
    ("ms", "bits", "expected"),
    [
        (0, 0, "task_0000000000e008000000000000"),
        ((1 << 48) - 1, (1 << 74) - 1, "task_7zzzzzzzzzfzzvzzzzzzzzzzzz"),
    ],
)
def test_new_id_at_its_ends(ms: int, bits: int, expected: str) -> None:
    assert ids.new_id("task", ms, bits) == expected


@given(st.sampled_from([ids.TASK, ids.SESSION, ids.WRITER, ids.MESSAGE]), millis, randoms)
def test_parse_id_inverts_new_id(prefix: str, ms: int, bits: int) -> None:
    made = ids.new_id(prefix, ms, bits)
    assert ids.parse_id(made) == ids.ParsedId(prefix=prefix, unix_ms=ms, random_74_bits=bits)
    assert ids.unix_ms_of(made) == ms


@given(millis, millis, randoms, randoms)
def test_ids_sort_by_time_as_strings(ms: int, other_ms: int, bits: int, other_bits: int) -> None:
    one, other = ids.new_id("task", ms, bits), ids.new_id("task", other_ms, other_bits)
    assert (one < other) == ((ms, bits) < (other_ms, other_bits))


@given(millis, randoms)
def test_an_id_is_version_7_and_of_the_rfc_variant(ms: int, bits: int) -> None:
    number = 0
    for char in ids.new_id("task", ms, bits).removeprefix("task_"):
        number = number * 32 + "0123456789abcdefghjkmnpqrstvwxyz".index(char)
    made = uuid.UUID(int=number)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


@pytest.mark.parametrize(
    ("prefix", "ms", "bits"),
    [
        ("task", -1, 0),
        ("task", 1 << 48, 0),
        ("task", 0, -1),
        ("task", 0, 1 << 74),
        ("", 0, 0),
        ("Task", 0, 0),
        ("_task", 0, 0),
        ("task_", 0, 0),
        ("task\n", 0, 0),
    ],
)
def test_new_id_refuses_arguments_out_of_range(prefix: str, ms: int, bits: int) -> None:
    with pytest.raises(ValueError, match=r"prefix|unix_ms|random"):
        ids.new_id(prefix, ms, bits)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "task",
        "task_",
        "01h455vb4pex5vsknk084sn02q",
        "task_01h455vb4pex5vsknk084sn02",  # 25
        "task_01h455vb4pex5vsknk084sn02q0",  # 27
        "task_01H455VB4PEX5VSKNK084SN02Q",  # upper case
        "task_81h455vb4pex5vsknk084sn02q",  # over 128 bits
        "task_01h455vb4pex5vsknk084sn02u",  # u is no digit
        "task_01h455vb4pex5vsknk084sn02q\n",
        "task_01h455vb4p8x5vsknk084sn02q",  # version 4
        "task_01h455vb4pex5ksknk084sn02q",  # another variant
    ],
)
def test_parse_id_refuses_what_new_id_cannot_have_made(text: str) -> None:
    with pytest.raises(InvalidKey):
        ids.parse_id(text)


def test_parse_id_refuses_an_id_of_another_kind() -> None:
    made = ids.new_id(ids.SESSION, 1, 2)
    assert ids.parse_id(made, prefix=ids.SESSION).prefix == "ses"
    with pytest.raises(InvalidKey, match="begins with task_, not ses_"):
        ids.parse_id(made, prefix=ids.TASK)


@pytest.mark.parametrize("key", ["a", "x" * 255, " a ", "é", "\U0001f600" * 255, "a b", "a\u200bb", "0"])
def test_check_key_returns_a_good_key_unchanged(key: str) -> None:
    assert ids.check_key(key, "idempotency key") == key


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "is empty"),
        (" ", "only white space"),
        ("\u00a0\u2003", "only white space"),
        ("\t", r"control character \(U\+0009 at position 0\)"),
        ("x" * 256, "256 characters, at most 255"),
        ("ab\x00", r"control character \(U\+0000 at position 2\)"),
        ("a\x1fb", r"U\+001F"),
        ("a\x7fb", r"U\+007F"),
        ("a\x80b", r"U\+0080"),
        ("a\x9fb", r"U\+009F"),
        ("key\n", r"U\+000A"),
        ("a\ud800b", r"lone surrogate \(U\+D800 at position 1\)"),
        ("\udfff", r"lone surrogate \(U\+DFFF"),
        (None, "must be text, not NoneType"),
        (b"key", "must be text, not bytes"),
        (7, "must be text, not int"),
    ],
)
def test_check_key_names_the_broken_rule(key: object, rule: str) -> None:
    with pytest.raises(InvalidKey, match=f"^idempotency key .*{rule}"):
        ids.check_key(key, "idempotency key")


def test_white_space_is_what_unicode_says() -> None:
    controls = {*range(0x20), *range(0x7F, 0xA0)}
    for code in range(0xD800):
        if code not in controls and chr(code).isspace():
            with pytest.raises(InvalidKey, match="only white space"):
                ids.check_key(chr(code), "key")
        elif code not in controls:
            assert ids.check_key(chr(code), "key") == chr(code)


@given(st.text(st.characters(exclude_categories=[]), max_size=300))
def test_check_key_accepts_exactly_what_its_rules_allow(key: str) -> None:
    controls = {*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)}
    good = 1 <= len(key) <= 255 and not key.isspace() and not any(ord(char) in controls for char in key)
    if good:
        assert ids.check_key(key, "key") == key
        return
    with pytest.raises(InvalidKey) as caught:
        ids.check_key(key, "key")
    # The message goes to logs and terminals: it never repeats what it refuses.
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["a", "x" * 200, "step/fetch:3", "a b", "~!"])
def test_check_operation_key_returns_a_good_key_unchanged(key: str) -> None:
    assert ids.check_operation_key(key) == key


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "is empty"),
        ("x" * 201, "201 characters, at most 200"),
        (" a", "begins or ends with a space"),
        ("a ", "begins or ends with a space"),
        ("a\n", r"U\+000A at position 1"),
        ("a\x7f", r"U\+007F"),
        ("é", r"U\+00E9"),
        (None, "must be text"),
    ],
)
def test_check_operation_key_names_the_broken_rule(key: object, rule: str) -> None:
    with pytest.raises(InvalidKey, match=rule):
        ids.check_operation_key(key)


@pytest.mark.parametrize("name", ["a", "x" * 120, "file_ticket", "acme-2.eu:west/1", "9"])
def test_check_name_returns_a_good_name_unchanged(name: str) -> None:
    assert ids.check_name(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "tool name is empty"),
        ("x" * 121, "121 characters, at most 120"),
        ("a b", r"U\+0020 at position 1"),
        ("name\n", r"U\+000A"),
        ("ünder", r"U\+00FC at position 0"),
        ("a\x00", r"U\+0000"),
        ("٣", r"U\+0663"),
        (1.5, "must be text, not float"),
    ],
)
def test_check_name_names_the_broken_rule(name: object, rule: str) -> None:
    with pytest.raises(InvalidKey, match=rule):
        ids.check_name(name, "tool name")


def test_operation_id_is_task_colon_key() -> None:
    assert ids.operation_id("t-7f31", "act-3") == "t-7f31:act-3"


@given(st.from_regex(r"[a-z0-9_]{1,40}", fullmatch=True), st.from_regex(r"[!-~]{1,60}", fullmatch=True))
def test_split_operation_id_inverts_operation_id(task: str, key: str) -> None:
    assert ids.split_operation_id(ids.operation_id(task, key)) == (task, key)


def test_the_longest_operation_id_fits_an_idempotency_key() -> None:
    longest = ids.operation_id(ids.new_id(ids.TASK, 1, 1), "k" * ids.MAX_OPERATION_KEY_CHARS)
    assert ids.check_key(longest, "idempotency key") == longest


@pytest.mark.parametrize("text", ["", ":", "task", "task:", ":key"])
def test_split_operation_id_refuses_halves(text: str) -> None:
    with pytest.raises(InvalidKey, match="not an operation id"):
        ids.split_operation_id(text)


@pytest.mark.parametrize("task", ["", "a:b"])
def test_operation_id_refuses_a_task_id_that_would_not_split(task: str) -> None:
    with pytest.raises(InvalidKey, match="colon"):
        ids.operation_id(task, "key")
