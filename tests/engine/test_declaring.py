"""What a tool may declare about itself: contradictions are refused when it is registered."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Backoff, Outlast, TaskContext, ToolCall
from outlast.errors import ConfigurationError, InvalidRequest


async def pay(call: ToolCall, employee: str, amount: int = 1) -> str:
    return employee


async def find(call: ToolCall, employee: str) -> None:
    return None


async def ready(employee: str) -> bool:
    return True


def declared(**options: Any) -> Any:
    app = Outlast("declaring", database_url="sqlite://:memory:")
    app.tool(**options)(pay)
    return app.registry.tools[options.get("name") or "pay"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "sometimes"}, "none of read, idempotent, keyed, queryable, manual"),
        ({"effects": "read"}, "has no option effects"),
        ({"effect": "keyed"}, "key_window="),
        ({"effect": "queryable", "key_window": "1h", "find": find}, "for keyed tools only"),
        ({"key_window": "1h"}, "for keyed tools only"),
        ({"effect": "queryable"}, "find="),
        ({"effect": "queryable", "find": None}, "find="),
        ({"lock": "wait"}, "lock= needs a business_key="),
        ({"once": "24h"}, "once= needs a business_key="),
        ({"on_repeat": "ask"}, "on_repeat= needs a business_key="),
        ({"business_key": "{employee}", "on_repeat": "ask"}, "on_repeat= needs once="),
        ({"business_key": "{employer}"}, "'employer' is none"),
        ({"business_key": "{employee}/{}"}, "'' is none"),
        ({"business_key": "{employee.name}"}, "'employee.name' is none"),
        ({"business_key": "always the same"}, "must name parameters"),
        ({"business_key": "{employee"}, "business_key"),
        ({"business_key": "{employee}", "lock": "refuses"}, "lock="),
        ({"business_key": "{employee}", "once": "1h", "on_repeat": "second"}, "on_repeat="),
        ({"effect": "queryable", "find": lambda call: None}, "find must be an async function"),
        ({"requires": lambda: True}, "requires must be an async function"),
        ({"list_effects": lambda call, since: []}, "list_effects must be an async function"),
        ({"provider": "a b"}, "provider"),
        ({"provider": ""}, "provider"),
        ({"name": "a b"}, "tool name"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigurationError, InvalidRequest), match=said.replace("{", r"\{")):
        declared(**options)


@pytest.mark.parametrize("option", ["key_window", "visible_within", "once", "timeout"])
@pytest.mark.parametrize("value", ["soon", -1, "200000d", True])
def test_lengths_of_time_make_sense(option: str, value: Any) -> None:
    options = {"effect": "keyed", "key_window": "1h", "business_key": "{employee}", option: value}
    with pytest.raises(InvalidRequest, match=option):
        declared(**options)


def test_find_and_requires_take_parameters_of_the_tool_only() -> None:
    async def find_by(call: ToolCall, employer: str) -> None:
        return None

    async def ready_for(employer: str) -> bool:
        return True

    for options in ({"effect": "queryable", "find": find_by}, {"requires": ready_for}):
        with pytest.raises(ConfigurationError, match="'employer' is no parameter of the tool"):
            declared(**options)


def test_a_tool_twice_is_refused() -> None:
    app = Outlast("declaring", database_url="sqlite://:memory:")
    app.tool(pay)
    with pytest.raises(ConfigurationError, match="registered twice"):
        app.tool(name="pay")(pay)


def test_what_is_not_said_is_the_careful_choice() -> None:
    spec = declared()
    assert (spec.name, spec.version, spec.effect, spec.provider) == ("pay", "1", "manual", "pay")
    assert (spec.find, spec.visible_within_us, spec.key_window_us, spec.business) == (None,) * 4
    assert spec.timeout_us == 30_000_000


def test_what_is_said_is_kept() -> None:
    spec = declared(
        effect="keyed",
        name="pay_out",
        version="3",
        key_window="24h",
        find=find,
        visible_within=0,
        business_key="{employee}/{amount}",
        lock="refuse",
        once="30d",
        on_repeat="ask",
        requires=ready,
        provider="bank",
        timeout="2s",
        retry=Backoff(attempts=1),
    )
    assert (spec.name, spec.version, spec.effect, spec.provider) == ("pay_out", "3", "keyed", "bank")
    assert (spec.key_window_us, spec.visible_within_us, spec.timeout_us) == (86_400_000_000, 0, 2_000_000)
    assert (spec.business.waits, spec.business.first, spec.business.once_us) == (
        False,
        False,
        2_592_000_000_000,
    )
    assert spec.business.value({"employee": "ada", "amount": 3}) == "ada/3"
    assert spec.find_signature.names == ("employee",)
    assert spec.requires_signature.names == ("employee",)
    assert spec.retry.attempts == 1


async def _lists(call: ToolCall, since: Any) -> list[str]:
    return []


@pytest.mark.parametrize(
    "options",
    [
        {"version": "2"}, {"effect": "idempotent"}, {"timeout": "2s"}, {"provider": "bank"},
        {"effect": "queryable", "find": find}, {"effect": "queryable", "find": find, "visible_within": "5s"},
        {"effect": "keyed", "key_window": "1h"}, {"effect": "keyed", "key_window": "2h"},
        {"business_key": "{employee}"}, {"business_key": "{employee}", "once": "1h"},
        {"business_key": "{employee}", "lock": "refuse"}, {"requires": ready}, {"list_effects": _lists},
        {"approval": lambda employee: True, "policy_version": "1"},
        {"approval": lambda employee: True, "policy_version": "2"}, {"undo": "pay_back"}, {"gateway": True},
        {"retry": Backoff(attempts=1)}, {"retry": Backoff(attempts=1, base_s=2.0)},
    ],
    ids="-".join,
)  # fmt: skip
def test_an_attempt_records_by_digest_all_that_its_tools_are_declared_with(options: dict[str, Any]) -> None:
    def digest(**given: Any) -> str:
        app = Outlast("configured")

        @app.tool(effect="manual")
        async def pay_back(call: ToolCall, employee: str) -> None: ...

        @app.tool(name="pay", **given)
        async def pay(call: ToolCall, employee: str) -> None: ...

        return app.registry.configuration()

    assert digest(**options) == digest(**options)
    others: list[dict[str, Any]] = [
        {},
        {"effect": "idempotent"},
        {"effect": "queryable", "find": find},
        {"effect": "keyed", "key_window": "1h"},
        {"business_key": "{employee}"},
        {"approval": lambda employee: True, "policy_version": "1"},
        {"retry": Backoff(attempts=1)},
    ]
    same = {key: value for key, value in options.items() if key != "approval"}
    for other in others:
        if {key: value for key, value in other.items() if key != "approval"} != same:
            assert digest(**other) != digest(**options), other


@pytest.mark.parametrize(
    "options",
    [{"version": "2"}, {"pool": "batch"}, {"deadline": "1h"}, {"retry": Backoff()}, {"on_failure": "undo"}],
    ids=str,
)
def test_an_attempt_records_by_digest_all_that_its_agents_are_declared_with(options: dict[str, Any]) -> None:
    def digest(**given: Any) -> str:
        app = Outlast("configured")

        @app.agent(**given)
        async def pays(task: TaskContext) -> None: ...

        return app.registry.configuration()

    assert digest(**options) == digest(**options) != digest()


@pytest.mark.parametrize("option", ["find", "key_window", "business_key", "provider", "version", "effect"])
def test_none_is_as_good_as_not_said(option: str) -> None:
    assert declared(**{option: None}).effect == "manual"


def test_calls_that_do_no_harm_when_made_twice_are_tried_for_longer() -> None:
    app = Outlast("defaults")

    def policy(effect: str) -> Backoff:
        options: dict[str, object] = {"effect": effect, "name": effect}
        if effect == "keyed":
            options["key_window"] = "1h"
        if effect == "queryable":
            options["find"] = find

        app.tool(**options)(act)  # type: ignore[arg-type]
        return app.registry.tools[effect].retry

    async def act(call: ToolCall) -> None:
        """Do nothing."""

    async def find(call: ToolCall) -> None:
        """Find nothing."""

    careful = Backoff(base_s=1.0, max_s=8.0, jitter_s=0.5, mode="plain", attempts=6, total_s=30.0)
    assert policy("keyed") == policy("queryable") == policy("manual") == careful
    harmless = policy("read")
    assert policy("idempotent") == harmless
    assert harmless.mode == "full"
    assert (harmless.attempts, harmless.total_s) > (careful.attempts, careful.total_s)
