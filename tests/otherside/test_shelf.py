"""The shelf's verbs: takeovers that race, holders that lost, a handler's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
import asyncpg
import pytest
from tests.otherside.conftest import somebody_waits

from outlast.errors import ConfigurationError, LeaseLost, SchemaOutdated
from outlast.otherside import Claim, shelf_for
from outlast.store.shelf import KeyAnswer, KeyHold, KeyRequest, KeyVerdict, Shelf
from outlast.testing.servers import EmbeddedPostgres

ANSWER = KeyAnswer(status=201, headers='[["a", "b"]]', body=b"\x00\xff")
HOUR = 3_600_000_000


def hold(holder: str, key: str = "op-1") -> KeyHold:
    return KeyHold(scope="acme", key=key, holder=holder)


def wanting(holder: str, *, lease_us: int = HOUR, key: str = "op-1") -> KeyRequest:
    return KeyRequest(hold=hold(holder, key), fingerprint=b"\x01print", lease_us=lease_us, keep_us=HOUR)


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """A service's own connection in a transaction that is rolled back at the end."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(10_000)
        connection.execute("begin immediate")
        try:
            yield connection
        finally:
            connection.execute("rollback")
            connection.close()
        return
    asked = await asyncpg.connect(url)
    begun = asked.transaction()
    await begun.start()
    try:
        yield asked
    finally:
        await begun.rollback()
        await asked.close()


async def test_preparing_twice_at_once_is_one_preparing(url: str) -> None:
    shelves = [shelf_for(url) for _ in range(4)]
    await asyncio.gather(*(shelf.prepare() for shelf in shelves))
    assert (await shelves[0].claim(wanting("one"))).kind == "claimed"
    await asyncio.gather(*(shelf.prepare() for shelf in shelves))
    assert (await shelves[0].claim(wanting("other"))).kind == "in_flight"
    await asyncio.gather(*(shelf.close() for shelf in shelves))


async def test_a_key_from_claim_to_answer(shelf: Shelf) -> None:
    assert await shelf.look(hold("anybody")) is None
    assert await shelf.claim(wanting("one")) == KeyVerdict(kind="claimed")
    # Asked again because the answer was lost.
    assert await shelf.claim(wanting("one")) == KeyVerdict(kind="claimed")
    twin = await shelf.claim(wanting("other"))
    assert (twin.kind, twin.takeovers) == ("in_flight", 0)
    assert 0 < twin.wait_us <= HOUR
    assert await shelf.answer(hold("one"), ANSWER) is True
    assert await shelf.answer(hold("one"), ANSWER) is True
    assert await shelf.claim(wanting("other")) == KeyVerdict(kind="answered", answer=ANSWER)
    assert await shelf.look(hold("anybody")) == KeyVerdict(kind="answered", answer=ANSWER)
    # A second answer by the same holder is not the first one's.
    assert await shelf.answer(hold("one"), KeyAnswer(status=500, headers="[]", body=b"")) is False
    assert await shelf.give_up(hold("one")) is False


async def test_of_many_that_take_over_one_does(shelf: Shelf, url: str) -> None:
    other = shelf_for(url)
    for round in range(5):
        key = f"op-{round}"
        await shelf.claim(wanting("first", lease_us=0, key=key))
        verdicts = await asyncio.gather(
            *((shelf, other)[n % 2].claim(wanting(f"heir-{n}", key=key)) for n in range(24))
        )
        assert sorted(verdict.kind for verdict in verdicts) == ["claimed", *["in_flight"] * 23]
        assert {verdict.takeovers for verdict in verdicts if verdict.kind == "claimed"} == {1}
    await other.close()


async def test_who_was_taken_over_changes_nothing(shelf: Shelf) -> None:
    await shelf.claim(wanting("first", lease_us=0))
    assert (await shelf.claim(wanting("heir"))).takeovers == 1
    assert await shelf.renew([hold("first"), hold("heir")], HOUR) == [False, True]
    assert await shelf.answer(hold("first"), ANSWER) is False
    assert await shelf.give_up(hold("first")) is False
    found = await shelf.look(hold("first"))
    assert found is not None
    assert found.kind == "in_flight"
    assert await shelf.answer(hold("heir"), ANSWER) is True
    assert await shelf.answer(hold("first"), ANSWER) is False


async def test_a_renewal_keeps_others_away(shelf: Shelf) -> None:
    await shelf.claim(wanting("first", lease_us=0))
    await shelf.claim(wanting("second", lease_us=0, key="op-2"))
    assert await shelf.renew([hold("first"), hold("second", "op-2"), hold("x", "op-3")], HOUR) == [
        True,
        True,
        False,
    ]
    assert (await shelf.claim(wanting("heir"))).kind == "in_flight"


async def test_a_handler_can_make_sure_that_nobody_took_over(shelf: Shelf, url: str) -> None:
    await shelf.claim(wanting("first", lease_us=0))
    first = Claim(shelf, hold("first"), takeover=0, epoch=None)
    async with transaction(url) as connection:
        # Nobody has, although its lease has run out.
        await first.confirm(connection)
    await shelf.claim(wanting("heir"))
    async with transaction(url) as connection:
        with pytest.raises(LeaseLost, match="op-1"):
            await first.confirm(connection)
        await Claim(shelf, hold("heir"), takeover=1, epoch=None).confirm(connection)


async def test_nobody_takes_over_while_a_confirmed_transaction_is_open(shelf: Shelf, url: str) -> None:
    await shelf.claim(wanting("first", lease_us=0))
    await shelf.claim(wanting("bystander", key="op-2"))
    async with transaction(url) as connection:
        await Claim(shelf, hold("first"), takeover=0, epoch=None).confirm(connection)
        taking = asyncio.create_task(shelf.claim(wanting("heir")))
        if url.startswith("postgres"):
            # Renewals go past the locked row: it is held by more than a lease.
            assert await shelf.renew([hold("first"), hold("bystander", "op-2")], HOUR) == [True, True]
            await somebody_waits(url)
        assert not taking.done()
    assert (await taking).takeovers == 1


async def test_a_connection_of_another_kind_is_refused(shelf: Shelf, url: str) -> None:
    claim = Claim(shelf, hold("first"), takeover=0, epoch=None)
    with pytest.raises(ConfigurationError):
        await claim.confirm(object())
    async with transaction(url) as connection:
        if url.startswith("sqlite"):
            connection.execute("rollback")
            with pytest.raises(ConfigurationError, match="not in a transaction"):
                await claim.confirm(connection)
            connection.execute("begin")
    if url.startswith("postgres"):
        plain = await asyncpg.connect(url)
        with pytest.raises(ConfigurationError, match="not in a transaction"):
            await claim.confirm(plain)
        await plain.close()


async def test_without_tables_it_is_said_what_to_do(url: str) -> None:
    bare = shelf_for(url)
    with pytest.raises(SchemaOutdated, match="prepare"):
        await bare.claim(wanting("one"))
    await bare.close()


@pytest.mark.parametrize("url", ["mysql://x", "postgres", "sqlite://"])
def test_a_database_that_is_not_known_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        shelf_for(url)


async def test_a_connection_that_was_cut_while_idle_costs_nobody_a_request(
    bare_postgres_url: str, postgres_server: EmbeddedPostgres
) -> None:
    shelf = shelf_for(bare_postgres_url)
    await shelf.prepare()
    await shelf.claim(wanting("one", key="op-1"))
    name = bare_postgres_url.rpartition("/")[2]
    postgres_server.sql(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
    assert (await shelf.claim(wanting("two", key="op-2"))).kind == "claimed"
    await shelf.close()


# SQLite has one writer at a time.
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_twin_waits_for_a_claim_whose_commit_is_under_way(shelf: Shelf, url: str) -> None:
    """The insert of a twin that is not committed yet is waited for, not looked past."""
    mine = await asyncpg.connect(url)
    begun = mine.transaction()
    await begun.start()
    claim = "select kind from outlast_otherside.claim('acme', 'op-1', $1, $2, $3, $3, null, null, 0)"
    assert await mine.fetchval(claim, "first", b"\x01print", HOUR) == "claimed"
    twin = asyncio.create_task(shelf.claim(wanting("twin")))
    await somebody_waits(url)
    await begun.commit()
    assert (await twin).kind == "in_flight"
    await mine.close()
