"""Every public method refuses by name what it cannot take, alike on both stores, and stores nothing.

The walk is over what there is: a method that is added is looked at, and one without the check fails.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_type_hints

import pytest
from tests.engine.house import House

from outlast import Client, Outlast, Request, ScheduleRequest, TaskContext
from outlast.core.durations import microseconds
from outlast.entrances import MAX_LIMIT
from outlast.errors import InvalidRequest, InvalidToken, NotFound, OutlastError

TASK = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
LOOKS_ITSELF = {"Outlast.agent", "Outlast.tool", "Outlast.step"}
"""Registering is the application's own code at its start; what is wrong there is ConfigurationError's."""

GOOD: dict[str, Any] = {
    "after": "a", "agent": "files", "answer": 1, "approval": f"{TASK}:pay#1~1", "arguments": {}, "at": None,
    "before": "pay#1", "bounds": {}, "budget": {"operations": 4}, "by": "ada", "connection": None, "count": 3,
    "cron": "0 6 * * *", "data": {}, "deadline": "1h", "event_id": "e-1", "evidence": {}, "every": None,
    "expires_in": "1h", "final": False, "fingerprint": "f" * 64, "forced": False, "id": "nightly",
    "input": {}, "jitter": "1s", "key": "k-1", "leave_effects": False, "limit": 10, "max_missed": 3,
    "message": "m-1", "migrate": False, "missed": "once", "name": "paid", "number": 1,
    "operation": f"{TASK}:pay#1", "operations": [f"{TASK}:pay#1"], "overlap": "skip", "parent": TASK,
    "pool": "default", "priority": 1, "provider": "voice", "reason": "since", "result": {}, "revision": 1,
    "roles": ["approver"], "run": "r-1", "run_at": datetime(2030, 1, 1, tzinfo=UTC), "scope": "all",
    "seen": 1, "session": "s-1", "settings": None, "signed": None, "since": datetime(2030, 1, 1, tzinfo=UTC),
    "state": "pending", "task": TASK, "tenant": "acme", "timeout": 0.01, "to": "ada", "token": "t",
    "tool": "pay", "trace": None, "turn": 1, "undo": False, "user": "ada", "verdict": "happened",
    "version": "1", "via": "python", "wait": 0, "zone": "UTC",
    "request": ScheduleRequest(id="nightly", agent="files", cron="0 6 * * *"),
    "requests": [Request(agent="files")],
}  # fmt: skip
CHOICES = {"verdict": {"Approvals": "approve", "Rules": "allow", "Outlast": "accepted", "Client": "accepted"}}
ANYTHING = {"answer", "connection", "data", "evidence", "input", "result"}
"""Values of any kind: what JSON cannot hold of them is refused where it is written."""

NO_KIND = [object(), b"bytes", {1, 2}, Decimal(1), 1j]
NO_TEXT = ["\0", "a\0b", "\ud800", "b\udfff", True, 7, 1.5, ["a"], {"a": 1}]
NO_NUMBER = [True, False, 1.5, math.nan, "1", "\0", [1], 2**31, 2**63, -(2**63) - 1, 10**400]
NO_SWITCH = [0, 1, "true", "\0", []]
NO_TIME = ["2030-01-01", "\0", 0, 1.5, True]
NO_LENGTH = [True, "\0", "\ud800", "soon", [], {}, math.nan, math.inf, 10**400, -1]
NO_LIST = ["approver", b"ab", 1, True, ["\0"], ["\ud800"], [1], [None]]
NO_OBJECT = ["{}", 1, True, [1]]
LIMITS = [-1, 0, 10_001, *NO_NUMBER]


def parts(app: Any) -> Iterator[Any]:
    """An app, and whatever stands on it that has methods of its own."""
    yield app
    for name, value in vars(app).items():
        if not name.startswith("_") and type(value).__module__.startswith("outlast.") and name != "registry":
            yield value


def methods(app: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for part in parts(app):
        for name, function in vars(type(part)).items():
            label = f"{type(part).__name__}.{name}"
            if name.startswith("_") or not inspect.isfunction(function) or label in LOOKS_ITSELF:
                continue
            yield label, getattr(part, name)


def bad_for(name: str, declared: str) -> list[Any]:
    """Answer what a parameter cannot take, by what it says that it is."""
    said = declared.removesuffix(" | None")
    if name in ANYTHING:
        return []
    if said == "str":
        return [*NO_KIND, *NO_TEXT]
    if said == "int":
        most = {"limit": LIMITS, "after": [-1, *[one for one in NO_NUMBER if one != 2**31]]}
        return [*NO_KIND, *most.get(name, NO_NUMBER)]
    if said == "bool":
        return [*NO_KIND, *NO_SWITCH]
    if said == "datetime":
        return [*NO_KIND, *NO_TIME]
    if said == "Duration":
        return [*NO_KIND, *NO_LENGTH]
    if said == "Sequence[str]":
        return [object(), *NO_LIST]
    if said.startswith("Mapping"):
        return [*NO_KIND, *NO_OBJECT]
    if said.startswith("Literal") or said in ("Missed", "Overlap", "ApprovalState"):
        return [*NO_KIND, *NO_TEXT, "", "perhaps"]
    if said == "Callable[..., Any] | str":
        return [*NO_KIND, "\0", "\ud800", 1, True]
    return [*NO_KIND, "text", 1, True]


def asked_with(label: str, method: Callable[..., Any], name: str, value: Any) -> dict[str, Any]:
    """Answer the arguments of a call in which one is bad."""
    owner = label.partition(".")[0]
    given = {
        each: CHOICES.get(each, {}).get(owner, GOOD[each])
        for each, parameter in inspect.signature(method).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    return {**given, name: value}


def cases(app: Any) -> Iterator[tuple[str, Callable[..., Any], str, Any]]:
    for label, method in methods(app):
        for name, parameter in inspect.signature(method).parameters.items():
            for value in bad_for(name, str(parameter.annotation)):
                yield label, method, name, value


async def called(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a method whatever it is, and let a stream begin."""
    answer = method(**given)
    if inspect.isasyncgen(answer):
        try:
            return await anext(answer)
        finally:
            await answer.aclose()
    return await answer if inspect.isawaitable(answer) else answer


async def refused(app: Any) -> tuple[int, list[str]]:
    """Try all that cannot be taken; answer how many cases there were, and what was not refused so."""
    wrong, count = [], 0
    for label, method, name, value in cases(app):
        count += 1
        case = f"{label}({name}={ascii(value)[:60]})"
        try:
            await called(method, asked_with(label, method, name, value))
        except (InvalidRequest, InvalidToken) as error:
            if name not in str(error) and getattr(error, "pointer", "") != f"/{name}":
                wrong.append(f"{case}: {error} does not name it")
            # Text for people, logs and terminals.
            str(error).encode()
        # Whatever else it raises is what this looks for.
        except BaseException as error:
            wrong.append(f"{case}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{case}: accepted")
    return count, wrong


@pytest.fixture
def app(house: House) -> Outlast:
    @house.app.agent(name="files")
    async def files(task: TaskContext) -> None:
        return None

    return house.app


async def test_every_argument_that_cannot_be_taken_is_refused_by_name(house: House, app: Outlast) -> None:
    before = await house.store.dump()
    count, wrong = await refused(app)
    assert "\n".join(wrong) == ""
    assert count > 2_000
    assert await house.store.dump() == before


async def test_an_app_that_runs_elsewhere_refuses_the_same_before_it_asks() -> None:
    # Nobody is there, and nobody is asked.
    async with Outlast.connect("http://127.0.0.1:9", api_key="k", patience=0.01) as client:
        count, wrong = await refused(client)
    assert "\n".join(wrong) == ""
    assert count > 1_000


@pytest.mark.parametrize("app", [Outlast("tests", database_url="sqlite:///:memory:"), Client("http://x")])
def test_every_public_method_looks_at_its_arguments(app: Any) -> None:
    bare = [label for label, method in methods(app) if not hasattr(method, "__wrapped__")]
    assert bare == []
    unknown = {
        name
        for _, method in methods(app)
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in GOOD
    }
    assert unknown == set()


async def test_what_is_odd_ends_in_an_answer_or_in_an_error_of_the_tree(app: Outlast) -> None:
    """Ids that are none, text of every script, too much of it: an answer, or an error of the tree."""
    odd = [
        "a",
        " a",
        "ä\u2028🎉",
        "\x7f",
        "x" * 255,
        "x" * 256,
        "'; drop table tasks; --",
        "%00",
        "../x",
        "*",
        "",
    ]
    handle = await app.submit("files")
    await app.cancel(handle.id)
    wrong = []
    for label, method in methods(app):
        if label in ("Outlast.close", "Outlast.open", "Outlast.worker"):
            continue
        for name, parameter in inspect.signature(method).parameters.items():
            if str(parameter.annotation).removesuffix(" | None") not in ("str", "Callable[..., Any] | str"):
                continue
            for value in odd:
                given = asked_with(label, method, name, value)
                if "task" in given and name != "task":
                    given["task"] = handle.id
                try:
                    await called(method, given)
                except (OutlastError, StopAsyncIteration):
                    pass
                # Whatever else it raises is what this looks for.
                except BaseException as error:
                    wrong.append(f"{label}({name}={ascii(value)[:60]}): {type(error).__name__}: {error}")
    assert wrong == []


@pytest.mark.parametrize("record", [Request, ScheduleRequest])
async def test_what_holds_for_an_argument_holds_for_a_request(app: Outlast, record: Any) -> None:
    good: dict[str, Any] = {"agent": "files"}
    if record is ScheduleRequest:
        good |= {"id": "nightly", "cron": "0 6 * * *"}
    wrong = []
    for name in get_type_hints(record):
        if name in ANYTHING or name == "budget":
            continue
        for value in ["\0", "\ud800", object(), b"x", True]:
            request = record(**{**good, name: value})
            try:
                await (app.submit_many([request]) if record is Request else app.schedules.apply(request))
            except InvalidRequest:
                continue
            wrong.append(f"{name}={value!a}")
    assert wrong == []


@pytest.mark.parametrize(
    "value",
    [None, [], {}, b"1s", object(), 10**400, -(10**400), math.nan, True, "1" * 400 + "d"],
    ids=lambda value: ascii(value)[:12],
)
def test_a_length_of_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        microseconds(value, what="timeout")


BOUNDS: dict[str, tuple[int, Callable[[Outlast, int], Any]]] = {
    "limit": (MAX_LIMIT, lambda app, n: app.list(limit=n)),
    "after": (2**63 - 1, lambda app, n: app.stored_events(TASK, after=n)),
    "turn": (2**31 - 1, lambda app, n: app.operations.settle(
        f"{TASK}:a", "happened", reason="r", by="ada", turn=n)),
    "key": (255, lambda app, n: app.submit("files", key="k" * n)),
    "user": (255, lambda app, n: app.submit("files", user="u" * n)),
    "tenant": (120, lambda app, n: app.submit("files", tenant="t" * n)),
    "pool": (120, lambda app, n: app.submit("files", pool="p" * n)),
    "signal name": (120, lambda app, n: app.signal(TASK, "n" * n)),
    "priority": (1_000, lambda app, n: app.submit("files", priority=n)),
    "deadline": (100 * 365 * 86_400, lambda app, n: app.submit("files", deadline=n)),
    "reason": (2_000, lambda app, n: app.cancel(TASK, reason="r" * n)),
    "count": (1_000, lambda app, n: app.schedules.preview(cron="* * * * *", count=n)),
    "max_missed": (1_000, lambda app, n: app.schedules.put(
        "s", "files", every="1d", missed="all", max_missed=n)),
    "jitter": (86_400, lambda app, n: app.schedules.put("s", "files", every="2d", jitter=n)),
    "schedule id": (120, lambda app, n: app.schedules.put("s" * n, "files", every="1d")),
}  # fmt: skip
"""What is accepted at most, in characters, seconds or as a number, and a call that asks for so much."""


@pytest.mark.parametrize("what", BOUNDS)
async def test_a_bound_lets_through_what_is_in_it_and_nothing_above(app: Outlast, what: str) -> None:
    bound, call = BOUNDS[what]
    for within in (bound - 1, bound):
        try:
            await call(app, within)
        except InvalidRequest as error:
            pytest.fail(f"{within}: {error}")
        except NotFound:
            # It was looked for.
            pass
    with pytest.raises(InvalidRequest):
        await call(app, bound + 1)
