"""Sessions at a provider that a task holds: conversations and runs whose events are brought to it.

Purpose: whatever happens in an outside session reaches the one task that holds it, whichever way it comes
(callback, webhook, poll), each event once.

Identity: (provider, session, run), held by one live task of a tenant; an event by the provider's own id.

State: attached by a recorded operation; held until the task ends. Events are signals named
``outside:<provider>``, taken by waits like any other.

What is fenced: attaching is a gate under the task's epoch.

Failure by failure: killed between the gate and the record: attached again, which changes nothing. Another
live task holds it: SessionTaken, now as on every replay. An event comes before the wait: it is found.

Not covered: events that come before the session is attached; the provider sends them again, or is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from outlast.core import canonical, ids
from outlast.core.record import record
from outlast.engine import waits
from outlast.engine.run import Run
from outlast.engine.steps import known, recorded, under_way
from outlast.engine.wording import event, failure
from outlast.errors import LeaseLost, SessionTaken
from outlast.store.contract import BatchRejected
from outlast.store.entries import AttachSession, RecordOperation

NAME: Final = "attach"
OUTSIDE: Final = "outside:"
"""What the names of the signals begin with that bring events of outside sessions."""


@record
class SessionEvent:
    """What happened in an outside session. run: '' for the session as a whole. id: the provider's."""

    provider: str
    session: str
    run: str
    id: str
    data: Any


def checked(provider: str, session: str, run: str | None) -> tuple[str, str, str]:
    """Check the name of an outside session. Raises InvalidKey."""
    return (
        ids.check_name(provider, "provider"),
        ids.check_key(session, "session"),
        "" if run is None else ids.check_key(run, "run"),
    )


async def attach(run: Run, key: str, provider: str, session: str, part: str) -> None:
    """Hold an outside session, or answer from the journal whether this task does."""
    run.check()
    asked = {"provider": provider, "session": session, "run": part}
    request = canonical.fingerprint("value", NAME, asked)
    row = known(run, key, "value", NAME, request, asked)
    if row is not None:
        recorded(run, row)
        return
    if key in run.works.stepping:
        raise under_way(key)
    run.works.stepping.add(key)
    run.active += 1
    try:
        refused = await run.commit(AttachSession(provider=provider, session=session, run=part))
        run.check()
        _record(run, key, request, asked, refused)
    except LeaseLost:
        run.interrupt("lost", "another worker holds the task")
        raise asyncio.CancelledError from None
    except BatchRejected as error:
        run.unstorable(error)
        raise asyncio.CancelledError from None
    finally:
        run.works.stepping.discard(key)
        run.active -= 1
        run.quiet()
    recorded(run, run.known.rows[key])


def _record(run: Run, key: str, request: str, asked: dict[str, str], refused: str | None) -> None:
    error, state = None, "succeeded"
    if refused is not None:
        _, _, holder = refused.partition(" ")
        what = f"{asked['provider']} session {asked['session']}" + (
            f", run {asked['run']}" if asked["run"] else ""
        )
        message = f"{what} is held by another task" + (f", {holder}" if holder else "")
        error, state = failure(SessionTaken.code, message, retryable=False), "failed"
    position = run.known.next_position()
    run.append(
        RecordOperation(
            key=key,
            position=position,
            kind="value",
            name=NAME,
            state="succeeded" if error is None else "failed",
            request=request,
            error=error,
            events=(event(f"operation.{state}", operation=key, kind="value", name=NAME),),
        )
    )
    run.known.remember(
        key, position, "value", NAME, "succeeded" if error is None else "failed", request, None, error
    )


async def next_event(run: Run, key: str, provider: str, timeout_us: int | None) -> SessionEvent:
    """Wait for the next event of a provider's sessions that this task holds."""
    said = await waits.wait(run, key, OUTSIDE + provider, timeout_us)
    return SessionEvent(
        provider=provider, session=said["session"], run=said["run"], id=said["event"], data=said["data"]
    )
