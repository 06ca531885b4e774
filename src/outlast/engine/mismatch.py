"""When the agent's code asks for another operation than its journal holds.

Purpose: a task never goes on under code that its journal does not fit; whoever looks at it sees what differs.

Identity: the operation's key; what is compared is its request (kind, name, arguments).

State: the attempt ends, the task waits for an operator. It looks again by itself, with growing pauses, since
the old version may be back by then; ``wake`` lets it look now, ``adopt`` gives it to other code, a fork goes
another way.

Failure by failure: the code is still the same: the task waits again, and longer. Something of it moved on
since: the pauses begin anew.

Not covered: code that asks for the same operations and does other things between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from outlast.core import values
from outlast.engine.wording import event
from outlast.store.contract import Store
from outlast.store.entries import NewEvent
from outlast.store.records import OperationRow, TaskRef
from outlast.store.rows import EventCursor, EventRow

PAUSES_S: Final = (30.0, 60.0, 120.0, 240.0, 480.0, 600.0)
"""How long it waits until it looks again; the last one from then on."""
RECENT: Final = 100
"""Events that tell how often it has looked in vain."""
MAX_PART: Final = 120
MAX_DIFFERENCES: Final = 4


def difference(row: OperationRow, kind: str, name: str, asked: Any = None) -> str:
    """Say what the journal holds against what the code asks for. asked: plain arguments, where at hand."""
    stored = None if row.arguments is None else values.decode(row.arguments)
    text = f"operation {row.key}: the journal holds {row.kind} {row.name}"
    if (row.kind, row.name) != (kind, name):
        text += f" ({_short(stored)})" if stored is not None else ""
        text += f", the code asks for {kind} {name}"
        text += f" ({_short(asked)})" if asked is not None else ""
    elif stored is not None and asked is not None:
        text += f", and the code asks for it with other arguments: {_differing(stored, asked)}"
    else:
        text += ", and the code asks for it with other arguments"
    return f"{text}; the agent's code changed, or it is not repeatable"


def _differing(stored: Any, asked: Any) -> str:
    if not (isinstance(stored, dict) and isinstance(asked, dict)):
        return f"{_short(stored)} in the journal, {_short(asked)} asked for"
    names = [
        name
        for name in {**stored, **asked}
        if (name in stored) != (name in asked) or stored.get(name) != asked.get(name)
    ]
    if not names:
        # What is stored is what was sent: an approver may have changed it.
        return _short(asked)
    said = [
        f"{_short(name)} is {_of(stored, name)} in the journal, {_of(asked, name)} asked for"
        for name in names[:MAX_DIFFERENCES]
    ]
    if len(names) > MAX_DIFFERENCES:
        said.append(f"and {len(names) - MAX_DIFFERENCES} more")
    return "; ".join(said)


def _of(arguments: dict[str, Any], name: str) -> str:
    return _short(arguments[name]) if name in arguments else "nothing"


def _short(value: Any) -> str:
    text = values.encode(value, limit=4 * values.MAX_VALUE_BYTES)
    return text if len(text) <= MAX_PART else text[:MAX_PART] + "…"


def noted(difference: str) -> NewEvent:
    """Make the event by which people, and the next look, see it."""
    return event("log", level="error", message=difference, mismatch=True)


async def pause_s(store: Store, ref: TaskRef) -> float:
    """Answer how long the task waits until it looks again. Raises StoreUnavailable."""
    rows = await store.read_tasks([ref])
    after = max(0, (rows[0].last_event if rows else 0) - RECENT)
    events = await store.read_events([EventCursor(tenant=ref.tenant, task=ref.task, after=after)], RECENT)
    return PAUSES_S[min(looked(events), len(PAUSES_S) - 1)]


def looked(events: Sequence[EventRow]) -> int:
    """Count the times that it has looked in vain since anything of it moved on."""
    count = 0
    for row in reversed(events):
        if row.kind.partition(".")[0] in ("operation", "approval", "signal", "progress", "artifact"):
            break
        if row.kind == "task.adopted":
            break
        if row.kind == "log" and orjson.loads(row.data).get("mismatch"):
            count += 1
    return count
