"""What a request's headers say: keys of every bad shape, epochs, and the fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.otherside import keys
from outlast.otherside.problems import PROBLEMS, Refused

KEY = b"idempotency-key"


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        (b"op-1", "op-1"),
        (b'"op-1"', "op-1"),
        (rb'"a\"b\\c"', 'a"b\\c'),
        (b'a"b', 'a"b'),
        (b"  op-1\t", "op-1"),
        (b"task_1:pay, once #1", "task_1:pay, once #1"),
        (b"k" * 255, "k" * 255),
        (b'"' + b"k" * 255 + b'"', "k" * 255),
    ],
)
def test_good_keys(sent: bytes, key: str) -> None:
    assert keys.read([(b"Idempotency-Key", sent)]).key == key


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ([b""], "empty"),
        ([b"   "], "empty"),
        ([b'""'], "empty"),
        ([b'"  "'], "white space"),
        ([b"k" * 256], "256 characters"),
        ([b'"' + b"k" * 256 + b'"'], "256 characters"),
        ([b"a\x00b"], "control character"),
        ([b"a\tb"], "control character"),
        ([b"a\x7fb"], "control character"),
        ([b"\xc3\xa9"], "outside ASCII"),
        ([b"a\x85b"], "outside ASCII"),
        ([b'"open'], "begins with a quote"),
        ([b'"'], "begins with a quote"),
        ([b'"a"b"'], "begins with a quote"),
        ([rb'"a\n"'], "begins with a quote"),
        ([b'"a";v=1'], "begins with a quote"),
        ([b'"a\tb"'], "begins with a quote"),
        ([b"op-1", b"op-2"], "more than once"),
        ([b"op-1", b"op-1"], "more than once"),
    ],
)
def test_bad_keys_are_refused_and_the_reason_told(sent: list[bytes], says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        keys.read([(KEY, each) for each in sent])
    assert refused.value.code == "invalid_key"
    assert refused.value.answer().status == 400


@pytest.mark.parametrize("sent", [b"", b"-1", b"1.5", b"0x1", b"one", b"9" * 19, b"9" * 400, b"1 2", b"\xb2"])
def test_bad_epochs_are_refused(sent: bytes) -> None:
    with pytest.raises(Refused) as refused:
        keys.read([(KEY, b"op-1"), (b"outlast-epoch", sent)])
    assert refused.value.code == "invalid_epoch"


@pytest.mark.parametrize("sent", [[b"a\x00"], [b"t" * 256], [b"one", b"two"], [b"\xe9"]])
def test_bad_tasks_are_refused(sent: list[bytes]) -> None:
    with pytest.raises(Refused) as refused:
        keys.read([(KEY, b"op-1"), (b"outlast-epoch", b"1"), *((b"outlast-task", each) for each in sent)])
    assert refused.value.code == "invalid_epoch"


def test_an_epoch_is_the_tasks_or_else_the_keys() -> None:
    plain = [(KEY, b"op-1"), (b"Outlast-Epoch", b"9223372036854775807")]
    of_key, of_task = keys.read(plain), keys.read([*plain, (b"Outlast-Task", b"op-1")])
    assert (of_key.subject, of_key.epoch) == ("key:op-1", (1 << 63) - 1)
    assert of_task.subject == "task:op-1"
    assert keys.read([(KEY, b"op-1"), (b"Outlast-Task", b"t")]).subject is None


@pytest.mark.parametrize(("sent", "seconds"), [(b"1500", 1.5), (b"soon", None), (b"-1", None), (b"", None)])
def test_a_senders_time_is_advice(sent: bytes, seconds: float | None) -> None:
    assert keys.read([(KEY, b"op-1"), (b"outlast-deadline", sent)]).remaining_s == seconds


def _scope(**other: Any) -> dict[str, Any]:
    plain = {"method": "POST", "path": "/a", "query_string": b"q=1", "headers": [(b"content-type", b"x/y")]}
    return {**plain, **other}


def test_every_part_of_a_request_is_in_its_fingerprint() -> None:
    scopes = [
        _scope(),
        _scope(method="PUT"),
        _scope(path="/b"),
        _scope(query_string=b"q=2"),
        _scope(path="/aq", query_string=b"=1"),
        _scope(headers=[]),
    ]
    prints = [keys.fingerprint(scope, b"body") for scope in scopes] + [keys.fingerprint(_scope(), b"other")]
    assert len(set(prints)) == len(prints)
    same = _scope(headers=[(b"Content-Type", b"x/y"), (b"date", b"now"), (b"traceparent", b"00-1")])
    assert keys.fingerprint(same, b"body") == prints[0]


def test_every_problem_has_a_document() -> None:
    for code, (status, title) in PROBLEMS.items():
        answer = Refused(code, "why", retry_after=0.2, more=1).answer()
        assert answer.status == status
        assert (b"retry-after", b"1") in answer.headers
        assert title.encode() in answer.body
