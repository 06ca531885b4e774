"""Every check: what passes while all is as it should be, and its twin that must not; the Recorder judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.desk import HOST, SECRET, Desk, other_side, token

from outlast import tokens
from outlast.core.destinations import MAX_RULES
from outlast.errors import StoreUnavailable
from outlast.store.reconciling import EVERY_TENANT, Pause
from outlast.store.records import Claimed
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor
from outlast.tools.passing import Pass

# ── the token ────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_of_a_running_call_passes(desk: Desk) -> None:
    _, said = await desk.called()
    answer = await desk.send(said)
    assert (answer.status_code, answer.headers["outlast-gateway"]) == (201, "passed")
    (call,) = await desk.recorder.log()
    assert (call.effect, call.key, call.epoch) == ("created", f"{said.task}:{said.key}", said.epoch)


async def test_without_a_token_nothing_passes(desk: Desk) -> None:
    answer = await desk.refused("token_missing", None)
    assert answer.status_code == 407
    assert "Bearer" in answer.headers["proxy-authenticate"]
    for header in ("Basic !!!", "Digest x", "Bearer"):
        answer = await desk.send(None, headers={"Proxy-Authorization": header})
        assert answer.json()["code"] in ("token_missing", "invalid_token")
    assert await desk.recorder.log() == []


async def test_an_altered_token_is_refused(desk: Desk) -> None:
    _, said = await desk.called()
    good = token(said)
    for place in (0, len(good) // 2, len(good) - 1):
        for letter in "AB":
            altered = good[:place] + letter + good[place + 1 :]
            if altered != good:
                await desk.refused("invalid_token", altered)
    for bad in ("x", good + "A", good[:-4], "%C3", "a" * 5_000, good + "="):
        await desk.refused("invalid_token", bad)
    await desk.refused("invalid_token", token(said, "a secret of another app altogether"))
    assert await desk.notes(said) == []


async def test_a_token_for_another_purpose_is_refused(desk: Desk) -> None:
    _, said = await desk.called()
    await desk.refused("invalid_token", tokens.sign(SECRET, "callback", said.parts()))
    await desk.refused("invalid_token", tokens.sign(SECRET, "gateway", said.parts()[:5]))
    await desk.refused(
        "invalid_token", tokens.sign(SECRET, "gateway", ("a", "b", "c", "d", "e", "f", "g", "h"))
    )


async def test_a_token_of_another_tenant_is_refused(desk: Desk) -> None:
    _, said = await desk.called()
    await desk.refused("not_running", replace(said, tenant="tenant-blue"))
    assert await desk.store.read_evidence(said.tenant, said.task, said.key) == []


async def test_a_token_that_is_too_old_is_refused_by_the_databases_clock(desk: Desk) -> None:
    _, said = await desk.called()
    now = (await desk.store.health()).now
    await desk.refused("token_expired", replace(said, expires_at=now))
    assert (await desk.send(replace(said, expires_at=now + 30 * SECOND))).status_code == 201


# ── lease, cancel, operation ─────────────────────────────────────────────────────────────────────

Change = Callable[[Desk, Claimed, Pass], Awaitable[Any]]


async def cancel(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.cancel(claimed)


async def lose(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.lose(claimed)


async def lose_and_take_over(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.lose(claimed)
    await desk.scene.claim_task(claimed, ttl_us=10 * HOUR)


async def release(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.write(claimed, desk.scene.release())


async def suspend(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.write(claimed, desk.scene.suspension("timer", wake_in_us=HOUR))


async def succeed(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.write(claimed, await desk.scene.outcome(claimed, said.key, "succeeded"))


async def not_know(desk: Desk, claimed: Claimed, said: Pass) -> None:
    await desk.scene.write(claimed, await desk.scene.outcome(claimed, said.key, "unknown"))


async def send_again(desk: Desk, claimed: Claimed, said: Pass) -> None:
    """Make the next attempt; the token is of the one before."""
    await desk.scene.write(claimed, await desk.scene.outcome(claimed, said.key, "planned"))
    row = await desk.scene.operation(claimed, said.key)
    intent = desk.scene.intent(
        said.key, name=row.name, request=row.request, decision=row.decision,
        attempt=row.attempt, turn=row.turn, timeout_us=60 * SECOND,
    )  # fmt: skip
    await desk.scene.write(claimed, intent)


def pause(tenant: str | None, scope: str) -> Change:
    async def change(desk: Desk, claimed: Claimed, said: Pass) -> None:
        row = await desk.scene.operation(claimed, said.key)
        switch = scope.format(tool=row.name)
        await desk.store.pause(
            Pause(tenant=tenant or claimed.tenant, scope=switch, reason="maintenance", by="person:ann")
        )

    return change


CHANGES: list[tuple[str, Change]] = [
    ("cancelled", cancel),
    ("stale_epoch", lose),
    ("stale_epoch", lose_and_take_over),
    ("stale_epoch", release),
    ("stale_epoch", suspend),
    ("not_running", succeed),
    ("not_running", not_know),
    ("not_running", send_again),
    ("paused", pause(None, "all")),
    ("paused", pause(None, "tool:{tool}")),
    ("paused", pause(EVERY_TENANT, "all")),
    ("paused", pause(EVERY_TENANT, "tool:{tool}")),
]


@pytest.mark.parametrize(
    ("code", "change"), CHANGES, ids=[f"{n}-{code}" for n, (code, _) in enumerate(CHANGES)]
)
async def test_what_changed_since_the_token_was_made_is_seen(desk: Desk, code: str, change: Change) -> None:
    claimed, said = await desk.called()
    _, other = await desk.called()
    assert (await desk.send(said)).status_code == 201
    await change(desk, claimed, said)
    await desk.refused(code, said)
    # A second time it is refused as well, whether the store is asked or not.
    await desk.refused(code, said)
    if code != "paused" and change not in (lose, lose_and_take_over):
        assert (await desk.send(other)).status_code == 201, "what is beside it is not touched"


async def test_an_undo_passes_while_a_cancel_stands(desk: Desk) -> None:
    claimed, said = await desk.called(kind="compensation")
    await desk.scene.cancel(claimed)
    assert (await desk.send(said)).status_code == 201


async def test_a_lease_that_has_run_out_is_refused_before_anybody_sweeps(
    desk: Desk, backdoor: Backdoor
) -> None:
    _, said = await desk.called()
    assert (await desk.send(said)).status_code == 201
    now = (await desk.store.health()).now
    await backdoor.run(f"update sessions set expires_at = {now}")
    await desk.refused("lease_over", said)
    await backdoor.run(f"update sessions set expires_at = {now + HOUR}")
    assert (await desk.send(said)).status_code == 201
    await backdoor.run(f"update sessions set lost_at = {now}")
    await desk.refused("lease_over", said)


async def test_the_time_of_the_operation_counts_and_not_only_that_of_the_token(desk: Desk) -> None:
    desk.scene.pass_time(-20 * SECOND)
    _, said = await desk.called(timeout_us=10 * SECOND, ttl_us=HOUR)
    await desk.refused("deadline_over", replace(said, expires_at=said.expires_at + HOUR))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1_000_000},
        {"epoch": 0},
        {"attempt": 2},
        {"attempt": 0},
        {"key": "another"},
        {"task": "task_0"},
    ],
    ids=str,
)
async def test_a_token_for_something_else_is_refused(desk: Desk, change: dict[str, Any]) -> None:
    _, said = await desk.called()
    await desk.refused("stale_epoch" if "epoch" in change else "not_running", replace(said, **change))


async def test_a_token_for_another_decision_is_refused(desk: Desk) -> None:
    _, said = await desk.called()
    await desk.refused("other_decision", replace(said, decision=f"{said.decision}-else"))


# ── approvals ────────────────────────────────────────────────────────────────────────────────────


async def approved(desk: Desk) -> tuple[Claimed, Pass]:
    """Have a call that runs under a decision of people."""
    claimed = await desk.scene.running(ttl_us=HOUR)
    ask = desk.scene.ask()
    await desk.scene.decide(await desk.scene.asked(claimed, ask))
    await desk.scene.write(claimed, desk.scene.agreed_intent(ask, timeout_us=60 * SECOND))
    return claimed, await desk.passing(claimed, ask.key, approval=1)


async def test_a_call_under_its_decision_passes(desk: Desk) -> None:
    _, said = await approved(desk)
    assert (await desk.send(said)).status_code == 201


@pytest.mark.parametrize(
    "change",
    [
        "state = 'approved'", "state = 'pending'", "state = 'withdrawn'", "state = 'rejected'",
        "state = 'expired'", "spent = true", "fingerprint = 'fingerprint-else'",
    ],
)  # fmt: skip
async def test_a_decision_that_does_not_stand_lets_nothing_through(
    desk: Desk, backdoor: Backdoor, change: str
) -> None:
    _, said = await approved(desk)
    await _forced(backdoor, f"update approvals set {change}")
    await desk.refused("no_approval", said)
    await desk.refused("no_approval", replace(said, approval=2))


async def _forced(backdoor: Backdoor, sql: str) -> None:
    """Run a statement past the guards of the database."""
    if backdoor.dialect == "postgres":
        async with backdoor.transaction() as connection:
            await connection.execute("set local session_replication_role = replica")
            await connection.execute(sql.replace("update approvals", "update outlast.approvals"))
        return
    triggers = await backdoor.run("select name, sql from sqlite_master where type = 'trigger'")
    for name, _ in triggers:
        await backdoor.run(f"drop trigger {name}")
    await backdoor.run(sql)


async def test_a_token_that_forgets_the_decision_is_of_no_use(desk: Desk) -> None:
    claimed = await desk.scene.running(ttl_us=HOUR)
    ask = desk.scene.ask()
    row = await desk.scene.asked(claimed, ask)
    await desk.scene.decide(row, "reject")
    # As if an engine sent all the same.
    intent = desk.scene.intent(
        ask.key, name=ask.name, request=ask.request, decision=ask.fingerprint, timeout_us=60 * SECOND
    )
    await desk.scene.write(claimed, intent)
    await desk.refused("no_approval", await desk.passing(claimed, ask.key))


async def test_a_question_about_another_call_is_no_hindrance(desk: Desk) -> None:
    claimed, said = await desk.called()
    await desk.scene.asked(claimed)
    assert (await desk.send(said)).status_code == 201


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────


async def test_only_what_both_lists_cover_passes(closed_desk: Desk) -> None:
    desk, port = closed_desk, closed_desk.recorder.port
    desk.names["other.test"] = [["127.0.0.1"]]
    _, said = await desk.called()
    both = replace(said, hosts=(f"http://{HOST}:{port}", f"http://other.test:{port}"))
    async with desk.open(allow=(f"http://{HOST}:{port}/tickets", f"http://x.test:{port}")):
        assert (await desk.send(both)).status_code == 201
        await desk.refused("forbidden_host", both, url=desk.reverse(f"http://other.test:{port}/tickets"))
        await desk.refused("forbidden_host", both, url=desk.reverse(f"http://{HOST}:{port}/_/log"))
        await desk.refused("forbidden_host", both, url=desk.reverse(f"http://{HOST}/tickets"))
        await desk.refused("forbidden_host", both, url=desk.reverse(f"https://{HOST}:{port}/tickets"))
        await desk.refused("forbidden_host", replace(said, hosts=(f"http://x.test:{port}",)))
        await desk.refused("forbidden_host", replace(said, hosts=()))
        await desk.refused("invalid_token", replace(said, hosts=("host",) * (MAX_RULES + 1)))
        await desk.refused("invalid_target", both, url=f"{desk.url}/http/{HOST}:{port}/tickets/%2e%2e/_/log")
    assert "other.test" not in desk.asked, "what may not be reached is not even looked up"
    async with desk.open():
        await desk.refused("forbidden_host", both)


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "017700000001", "127.1", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_addresses_in_any_spelling_are_refused(closed_desk: Desk, host: str) -> None:
    desk, port = closed_desk, closed_desk.recorder.port
    _, said = await desk.called()
    allow = [f"http://{HOST}:{port}"]
    plain = host.startswith("[") or host == "127.0.0.1"
    if plain:
        allow.append(f"http://{host}:{port}")
    async with desk.open(allow=tuple(allow), ranges=()):
        url = desk.url + f"/http/{host}:{port}/tickets"
        code = "forbidden_address" if plain else "invalid_target"
        await desk.refused(code, replace(said, hosts=tuple(allow)), url=url)
        await desk.refused("forbidden_address", said)


async def test_a_literal_of_a_listed_range_passes(closed_desk: Desk) -> None:
    desk, place = closed_desk, f"http://127.0.0.1:{closed_desk.recorder.port}"
    _, said = await desk.called()
    async with desk.open(allow=(place,)):
        answer = await desk.send(
            replace(said, hosts=(place,)),
            desk.reverse(f"{place}/tickets"),
            json={"invoice": "INV-1", "amount": "1.00"},
        )
        assert answer.status_code == 201
    assert desk.asked == []


async def test_a_name_that_resolves_to_a_private_address_the_second_time_is_refused(desk: Desk) -> None:
    _, said = await desk.called()
    async with other_side("127.0.0.2", desk.recorder.port) as inside:
        desk.names[HOST] = [["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1"]]
        assert (await desk.send(said)).status_code == 201
        answer = await desk.refused("forbidden_address", said)
        assert "127.0.0.2" not in answer.text
        assert (await desk.send(said)).status_code == 201
        assert inside.connections == 0
    assert desk.asked == [HOST] * 3, "looked up once a request, and never by the connection itself"


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1", "127.0.0.2"],
        ["127.0.0.2", "127.0.0.1"],
        ["10.0.0.1"],
        ["::1"],
        ["fe80::1%lo"],
        ["not one"],
    ],
    ids=str,
)
async def test_a_name_with_any_forbidden_address_is_refused(desk: Desk, addresses: list[str]) -> None:
    _, said = await desk.called()
    async with other_side("127.0.0.2", desk.recorder.port) as inside:
        desk.names[HOST] = [addresses]
        await desk.refused("unresolvable" if addresses == ["not one"] else "forbidden_address", said)
        assert inside.connections == 0


async def test_a_name_without_an_address_is_not_reached(desk: Desk) -> None:
    _, said = await desk.called()
    desk.names[HOST] = []
    assert (await desk.refused("unresolvable", said)).status_code == 502
    desk.names[HOST] = [[]]
    await desk.refused("unresolvable", said)


# ── the store ────────────────────────────────────────────────────────────────────────────────────


class Away:
    """A store that can be away, verb by verb."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.away: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self.away:

            async def refuse(*_: Any, **__: Any) -> Any:
                raise StoreUnavailable("away")

            return refuse
        return getattr(self._store, name)


@pytest.mark.parametrize("verb", ["admit", "read_passage"])
async def test_while_the_store_is_away_nothing_is_sent(closed_desk: Desk, verb: str) -> None:
    desk = closed_desk
    _, said = await desk.called()
    store: Any = Away(desk.store)
    # No look is ever fresh enough here, so that the last one is taken by itself.
    async with desk.open(store, allow=(f"http://{HOST}:{desk.recorder.port}",), fresh_s=1e-9):
        store.away.add(verb)
        answer = await desk.refused("store_unavailable", said)
        assert (answer.status_code, answer.headers["outlast-gateway"]) == (503, "not-sent")
        assert int(answer.headers["retry-after"]) >= 1
        store.away.clear()
        assert (await desk.send(said)).status_code == 201
    assert len(await desk.recorder.log()) == 1


async def test_an_answer_is_passed_on_when_its_end_cannot_be_recorded(closed_desk: Desk) -> None:
    desk = closed_desk
    _, said = await desk.called()
    store: Any = Away(desk.store)
    looked = desk.store.admit

    async def last_look(*args: Any, **named: Any) -> Any:
        found = await looked(*args, **named)
        store.away.add("note")
        return found

    store.admit = last_look
    async with desk.open(store, allow=(f"http://{HOST}:{desk.recorder.port}",)):
        assert (await desk.send(said)).status_code == 201
    assert [note["phase"] for note in await desk.notes(said)] == ["passed"]
