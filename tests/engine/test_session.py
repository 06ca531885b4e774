"""A worker's session: what its renewals are told, also when several are under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import clock
from outlast.engine.session import Session
from outlast.engine.settings import WorkerSettings
from outlast.store.records import Renewed, SessionRenewal


class _Asked:
    """A store that answers renewals when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, asyncio.Future[Renewed]]] = []

    async def renew(self, renewal: SessionRenewal, **_: Any) -> Renewed:
        future: asyncio.Future[Renewed] = asyncio.get_running_loop().create_future()
        self.asked.append((renewal.session, future))
        return await future


async def _asks(store: _Asked, session: Session) -> tuple[asyncio.Task[bool], asyncio.Future[Renewed]]:
    """Begin a renewal; answer it, and what decides its answer, as soon as the store has been asked."""
    renewal = asyncio.create_task(session.renew())
    await asyncio.sleep(0)
    return renewal, store.asked[-1][1]


async def test_a_session_that_is_gone_is_replaced_once_whoever_is_told() -> None:
    """A worker that thaws renews and claims at once, and both are told that its session is gone."""
    store: Any = _Asked()
    lost: list[str] = []
    session = Session(store, WorkerSettings(), lost.append)
    first = session.id
    kept, kept_answer = await _asks(store, session)
    opened, opened_answer = await _asks(store, session)
    kept_answer.set_result(Renewed(alive=False, now=1, expires_at=9))
    assert not await kept
    second = session.id
    again, again_answer = await _asks(store, session)
    again_answer.set_result(Renewed(alive=True, now=2, expires_at=9))
    assert await again
    opened_answer.set_result(Renewed(alive=False, now=3, expires_at=9))
    assert not await opened
    assert [name for name, _ in store.asked] == [first, first, second]
    assert session.id == second
    assert lost == [first]
    assert session.trusted()


async def test_trust_in_a_session_is_not_what_was_said_of_the_one_before() -> None:
    store: Any = _Asked()
    session = Session(store, WorkerSettings(), lambda _: None)
    late, late_answer = await _asks(store, session)
    gone, gone_answer = await _asks(store, session)
    gone_answer.set_result(Renewed(alive=False, now=1, expires_at=9))
    assert not await gone
    late_answer.set_result(Renewed(alive=True, now=2, expires_at=9))
    assert not await late
    assert not session.trusted()


async def test_trust_is_counted_from_before_the_renewal_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the answer takes, it is believed no longer than the database counts."""
    at = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: at)
    store: Any = _Asked()
    session = Session(store, WorkerSettings(lease_s=5.0, renew_s=1.0), lambda _: None)
    renewal, answer = await _asks(store, session)
    at = 104.0
    answer.set_result(Renewed(alive=True, now=1, expires_at=5_000_001))
    assert await renewal
    assert session.trusted()
    at = 104.999
    assert session.trusted()
    at = 105.0
    assert not session.trusted()
    renewal, answer = await _asks(store, session)
    at = 110.0
    answer.set_result(Renewed(alive=True, now=1, expires_at=5_000_001))
    assert await renewal
    assert not session.trusted()
