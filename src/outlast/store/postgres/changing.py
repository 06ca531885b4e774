"""What becomes of tasks whose work or code is changed: retries, forks, adoption, verdicts, outside sessions.

Each verb is one call of one function, as those of ``people``. Where a task may stand in a lane for the first
time, that lane is made before, in a transaction of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from outlast.store.changing import (
    Acceptance,
    AcceptanceRow,
    Accepted,
    Adopt,
    Adopted,
    Fork,
    Forked,
    OutsideEvent,
    OutsidePosted,
    OutsideRow,
    Retried,
    Retry,
    VersionRow,
)
from outlast.store.postgres.people import People
from outlast.store.posting import MAX_INBOX
from outlast.store.reconciling import COUNT_BOUND, UnknownCount
from outlast.store.records import TaskRef
from outlast.store.rows import SessionRow


class Changing(People):
    """Open tasks again, copy, rebind and judge them; and read what is needed for it."""

    async def retry(self, requests: Sequence[Retry], *, now: int | None = None) -> list[Retried]:
        """Open the next round of failed or cancelled tasks under the heads' locks; atomic."""
        if not requests:
            return []
        columns = zip(
            *(
                (r.tenant, r.task, r.by, r.reason, json.dumps(r.reopen, ensure_ascii=False), r.deadline_us)
                for r in requests
            ),
            strict=True,
        )
        rows = await self._rows(self._people_line, "retry", *columns, now)
        self._hint("queue", "events")
        return [Retried(**dict(row)) for row in rows]

    async def fork(self, requests: Sequence[Fork], *, now: int | None = None) -> list[Forked]:
        """Make tasks from prefixes of journals, each whole or not at all; idempotent by the new id."""
        if not requests:
            return []
        lanes = await self._lanes_of([(r.tenant, r.task, r.version) for r in requests])
        columns = zip(
            *(
                (
                    r.tenant, r.task, r.new, r.before, r.by, r.reason, r.input, lane, r.deadline_us, r.key,
                    r.digest,
                )
                for r, lane in zip(requests, lanes, strict=True)
            ),
            strict=True,
        )  # fmt: skip
        rows = await self._rows(self._people_line, "fork", *columns, now)
        self._hint("queue", "events")
        return [Forked(kind=kind, keys=tuple(keys), task=task or "") for kind, keys, task in rows]

    async def adopt(self, requests: Sequence[Adopt], *, now: int | None = None) -> list[Adopted]:
        """Bind tasks to another version by compare-and-set under the heads' locks; atomic."""
        if not requests:
            return []
        lanes = await self._lanes_of([(r.tenant, r.task, r.version) for r in requests])
        columns = zip(
            *(
                (
                    r.tenant, r.task, r.version, lane, r.seen_version, r.seen_epoch, r.seen_event, r.by,
                    r.reason,
                )
                for r, lane in zip(requests, lanes, strict=True)
            ),
            strict=True,
        )  # fmt: skip
        rows = await self._rows(self._people_line, "adopt", *columns, now)
        self._hint("queue", "events")
        return [Adopted(**dict(row)) for row in rows]

    async def wake(self, ref: TaskRef, by: str, reason: str, *, now: int | None = None) -> bool:
        """Let a task that waits for an operator try again; answers whether it did wait so."""
        woken = bool((await self._row(self._people_line, "wake", ref.tenant, ref.task, by, reason, now))[0])
        if woken:
            self._hint("queue", "events")
        return woken

    async def accept(self, verdicts: Sequence[Acceptance], *, now: int | None = None) -> list[Accepted]:
        """Record verdicts by compare-and-set on how many there are, under the heads' locks; atomic."""
        if not verdicts:
            return []
        columns = zip(
            *((v.tenant, v.task, v.verdict, v.by, v.reason, v.evidence, v.seen) for v in verdicts),
            strict=True,
        )
        rows = await self._rows(self._people_line, "accept", *columns, now)
        self._hint("events")
        return [Accepted(**dict(row)) for row in rows]

    async def post_outside(
        self, events: Sequence[OutsideEvent], *, now: int | None = None
    ) -> list[OutsidePosted]:
        """Bring events to the tasks that hold their sessions; atomic, idempotent by the event's id."""
        if not events:
            return []
        columns = zip(
            *((e.tenant, e.provider, e.session, e.run, e.event, e.data, e.digest) for e in events),
            strict=True,
        )
        rows = await self._rows(self._people_line, "post_outside", *columns, MAX_INBOX, now)
        self._hint_posted(woken=rows[0]["woken"], told=rows[0]["told"])
        return [
            OutsidePosted(
                kind=row["kind"],
                task=None if row["task"] is None else TaskRef(tenant=event.tenant, task=row["task"]),
            )
            for event, row in zip(events, rows, strict=True)
        ]

    # Views: read committed, no locks.

    async def list_versions(self, tenant: str | None = None) -> list[VersionRow]:
        """Count live tasks by the version that they need."""
        return [VersionRow(**dict(row)) for row in await self._view("list_versions", tenant)]

    async def list_sessions(self) -> list[SessionRow]:
        """List the sessions that live, the oldest first."""
        return [SessionRow(**dict(row)) for row in await self._view("list_sessions")]

    async def count_unknown(self) -> list[UnknownCount]:
        """Count the unknown calls of all tenants by tool, up to a bound."""
        return [UnknownCount(**dict(row)) for row in await self._view("count_unknown", COUNT_BOUND)]

    async def read_acceptances(self, tenant: str, task: str) -> list[AcceptanceRow]:
        """Read the verdicts on a task's work, oldest first."""
        return [AcceptanceRow(**dict(row)) for row in await self._view("read_acceptances", tenant, task)]

    async def read_outside(self, tenant: str, task: str) -> list[OutsideRow]:
        """Read the outside sessions that a task holds."""
        return [OutsideRow(**dict(row)) for row in await self._view("read_outside", tenant, task)]

    async def _lanes_of(self, asked: Sequence[tuple[str, str, str | None]]) -> list[int | None]:
        """Answer the lanes of tasks, as (tenant, task), for versions; made where they do not exist.

        None for a task that is not there, and for one that is to stay in its version.
        """
        lanes: list[int | None] = [None] * len(asked)
        bound = [place for place, (_, _, version) in enumerate(asked) if version is not None]
        if not bound:
            return lanes
        found = await self._rows(
            self._people_line,
            "read_lanes",
            [asked[place][0] for place in bound],
            [asked[place][1] for place in bound],
        )
        places = [bound[row["item"] - 1] for row in found]
        names = [
            (row["pool"], row["agent"], asked[place][2], row["tenant"], row["priority"])
            for place, row in zip(places, found, strict=True)
        ]
        if names:
            for item, lane in await self._rows(self._people_line, "ensure_lanes", *zip(*names, strict=True)):
                lanes[places[item - 1]] = lane
        return lanes
