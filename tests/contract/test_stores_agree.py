"""Both stores, given the same things in the same order, answer the same and hold the same.

The contract leaves places open; callers must not find out by changing the database. Random programs of verbs,
valid and invalid, are carried out on both; every answer and the final dumps are compared.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from tests.contract.change_programs import ChangeProgram
from tests.contract.people_programs import PeopleProgram
from tests.contract.programs import Program, comparable
from tests.stores import MEMORY, new_store

from outlast.store.contract import Store
from outlast.testing.checkers import check_all

SEEDS = range(int(os.environ.get("OUTLAST_TEST_PROGRAMS", "24")))
STEPS = 90
UNTOLD = {
    # Nobody decides there to undo, nor in which order.
    "change": frozenset({"undos_are_decided_first", "undos_go_backwards"}),
    # Parents make up what they have heard.
    "people": frozenset({"ends_are_told_as_they_are"}),
}
"""What programs of a kind do not keep to, since it is an engine's part."""
PROGRAMS = {"tasks": Program, "people": PeopleProgram, "change": ChangeProgram}


@pytest.fixture
async def both(emptied_postgres_url: str) -> AsyncIterator[tuple[Store, Store]]:
    stores = (new_store(MEMORY), new_store(emptied_postgres_url))
    try:
        for store in stores:
            await store.migrate()
            await store.open()
        yield stores
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", PROGRAMS)
async def test_a_random_program_comes_to_the_same(both: tuple[Store, Store], kind: str, seed: int) -> None:
    program = PROGRAMS[kind](seed, both, (await both[1].health()).now)
    await program.renew()
    for _ in range(STEPS):
        await program.step()
    dumps = [await store.dump() for store in both]
    first, second = (comparable(dump) for dump in dumps)
    assert first.keys() == second.keys()
    for table in first:
        gone = [row for row in first[table] if row not in second[table]]
        come = [row for row in second[table] if row not in first[table]]
        assert first[table] == second[table], f"{table}: {gone}\n is not\n{come}\n{program.told()}"
    for dump in dumps:
        assert [one for one in check_all(dump) if one.promise not in UNTOLD.get(kind, ())] == []


async def everywhere(kind: str) -> tuple[set[str], set[str]]:
    """Carry out every program on one store; answer the verdicts and the events that came up."""
    seen: set[str] = set()
    kinds: set[str] = set()
    for seed in SEEDS:
        store = new_store(MEMORY)
        try:
            await store.migrate()
            await store.open()
            program = PROGRAMS[kind](seed, (store,), (await store.health()).now)
            await program.renew()
            for _ in range(STEPS):
                await program.step()
            seen |= program.seen
            kinds |= {row["kind"] for row in (await store.dump())["events"]}
        finally:
            await store.close()
    return seen, kinds


async def test_random_programs_go_everywhere() -> None:
    """A comparison is worth what it compares: every verdict and every event comes up in these programs."""
    seen, kinds = await everywhere("tasks")
    missing = {
        *(f"Submitted {kind}" for kind in ("accepted", "replayed", "conflict")),
        *(f"Flushed {kind}" for kind in ("accepted", "stale")),
        *(f"Settled {kind}" for kind in ("settled", "not_found", "conflict", "too_early")),
        *(f"refused {name}" for name in ("not_planned", "turn_passed", "deadline")),
        *(f"Swept {part} True" for part in ("lost", "parked", "woken", "expired")),
        *(f"SchedulePut {kind}" for kind in ("created", "replaced", "unchanged", "conflict")),
        *(f"ScheduleSet {kind}" for kind in ("done", "unchanged", "not_found", "conflict")),
        *(f"Fired {kind}" for kind in ("fired", "moved", "skipped", "passed", "early")),
        *("ClaimReply claims True", "ClaimReply refused True", "Renewed alive False"),
        *(f"ClaimReply loaded {some}" for some in (True, False)),
    } - seen
    assert missing == set()
    ends = ("succeeded", "failed", "cancelled")
    assert {
        *(f"task.{kind}" for kind in ("submitted", "queued", "waiting", "woken", *ends)),
        *(f"attempt.{kind}" for kind in ("started", "suspended", "released", "lost", *ends)),
        *("operation.settled", "progress", "log"),
    } == kinds


async def test_people_go_everywhere() -> None:
    seen, kinds = await everywhere("people")
    missing = {
        *(f"Submitted {kind}" for kind in ("accepted", "stale")),
        *(f"Posted {kind}" for kind in ("accepted", "replayed", "conflict", "not_found", "ended")),
        *(f"CancelReply {kind}" for kind in ("cancelled", "requested", "already", "ended", "not_found")),
        *(f"Decided {kind}" for kind in ("decided", "counted", "repeated", "conflict", "expired")),
        *(f"Decided {kind}" for kind in ("fingerprint", "forbidden", "not_found")),
        *(f"refused {name}" for name in ("cancelled", "not_expired", "rules_changed", "no_approval")),
        *("Delivered told True", "Delivered cancelled True", "withdrawn True", "withdrawn False"),
        *("refused paused", "resumed True", "resumed False"),
    } - seen
    assert missing == set()
    states = ("requested", "voted", "approved", "rejected", "expired", "withdrawn")
    assert {*(f"approval.{state}" for state in states), "signal.received", "task.cancel_requested"} <= kinds


async def test_changes_go_everywhere() -> None:
    seen, kinds = await everywhere("change")
    missing = {
        *(f"Retried {kind}" for kind in ("retried", "not_ended", "undone", "not_found")),
        *(f"Forked {kind}" for kind in ("forked", "unsettled", "no_operation", "not_found")),
        *(f"Adopted {kind}" for kind in ("adopted", "running", "moved", "ended", "not_found")),
        *(f"Accepted {kind}" for kind in ("recorded", "conflict", "not_ended", "not_found")),
        *(f"OutsidePosted {kind}" for kind in ("accepted", "replayed", "conflict", "not_found", "ended")),
        "refused cancelled",
    } - seen
    assert missing == set()
    assert any(name.startswith("refused taken ") for name in seen)
    names = ("retried", "adopted", "woken", "accepted", "rejected", "cancel_requested")
    assert {f"task.{name}" for name in names} <= kinds
