"""The verbs ``renew``, ``retire``, ``claim``, ``reconcile`` and ``load``.

Turns: each tenant has a place in the taking of turns, kept on its lanes (``served``): the furthest of those
that a worker serves, whether or not they hold anything now. The tenant with the lowest place is next and
moves on by one part over its weight. A tenant that comes back after a pause starts at most one turn behind
the others, so it neither waits for old debts nor collects old rights.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from outlast.store.approving import ApprovalRow
from outlast.store.contract import FEW_TASKS, SHORT_BYTES
from outlast.store.records import (
    ANY_VERSION,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Held,
    InboxRow,
    Loaded,
    OperationRow,
    Renewed,
    SessionRenewal,
    Submission,
    Submitted,
    TaskRef,
)
from outlast.store.sqlite import approving, posting
from outlast.store.sqlite import submit as submitting
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Row, Transaction

TURN = 1_000_000
"""One turn of a tenant of weight 1."""
STALE_LIMIT = 2_000
"""How many stale queue entries one claim clears away before it answers with what it has."""


def renew(tx: Transaction, renewal: SessionRenewal, now: int | None) -> Renewed:
    """Open or renew a session; see ``Store.renew``."""
    at = tx.now(now)
    changed = tx.run(
        "renew_session", (renewal.session, renewal.name, renewal.serves, at, at + renewal.ttl_us)
    )
    if changed:
        return Renewed(alive=True, now=at, expires_at=at + renewal.ttl_us)
    row = tx.row("read_session", (renewal.session,))
    return Renewed(alive=False, now=at, expires_at=at if row is None else row[1])


def retire(tx: Transaction, session: str) -> None:
    """End a session; see ``Store.retire``. One that still holds a lease is left to the sweeper."""
    tx.run("end_session", (session,))
    if tx.row("read_session", (session,)) is None:
        tx.run("drop_writers", (session,))


@dataclass(frozen=True, slots=True)
class _Lane:
    id: int
    pool: str
    agent: str
    bound: str
    tenant: str
    priority: int
    weight: int
    served: int
    first: int
    version: str
    """The version that a task of this lane is claimed for."""


def peek(tx: Transaction, request: ClaimRequest, now: int | None) -> ClaimReply | None:
    """Answer a claim that would change nothing, without being the writer; None when there may be something.

    Workers with free slots ask often, and an answer that needs no write lock keeps them out of the writers'
    way.
    """
    if _session_name(tx, request) is None:
        return ClaimReply(now=tx.now(now), claims=(), refused=True)
    if request.limit > 0 and next(_served_lanes(tx, _Serving(request)), None) is not None:
        return None
    return ClaimReply(now=tx.now(now), claims=())


def claim(tx: Transaction, request: ClaimRequest, now: int | None) -> ClaimReply:
    """Take queued tasks; see ``Store.claim``."""
    at = tx.now(now)
    worker = _session_name(tx, request)
    if worker is None:
        return ClaimReply(now=at, claims=(), refused=True)
    claims: list[Claimed] = []
    heads: dict[tuple[str, str], Row] = {}
    leases: list[Row] = []
    gone: list[Row] = []
    served: dict[int, int] = {}
    serving = _Serving(request)
    tenants = _Turns(tx, serving, list(_served_lanes(tx, serving)) if request.limit > 0 else [])
    # About what each tenant will give, so that many tenants do not each show as much as one would.
    chunk = request.limit // max(1, len(tenants)) + 2
    while len(claims) < request.limit and len(gone) - len(claims) < STALE_LIMIT:
        tenant = tenants.next()
        if tenant is None:
            break
        taken = tenant.take(tx, chunk)
        if taken is None:
            continue
        lane, (seq, task, read, round_, facts, last_event, deadline_at, undoing) = taken
        gone.append((lane.id, seq))
        if read is None or (lane.tenant, task) in heads:
            # A stale entry: the task was taken, ended or moved on another way.
            tenants.back(tenant)
            continue
        to, epoch, last_event = lane.id, read + 1, last_event + 1
        if lane.bound != lane.version:
            to = tx.lane((lane.pool, lane.agent, lane.version, lane.tenant, lane.priority))
        heads[lane.tenant, task] = (to, lane.tenant, task, lane.id)
        claims.append(
            Claimed(
                tenant=lane.tenant,
                task=task,
                epoch=epoch,
                round=round_,
                agent=lane.agent,
                version=lane.version,
                facts=facts,
                deadline_at=deadline_at,
                cancelling=bool(undoing),
            )
        )
        leases.append((lane.tenant, task, epoch, round_, request.session, lane.version, request.config, at))
        data = json_text({"worker": worker, "version": lane.version})
        tx.append_event((lane.tenant, task, last_event, "attempt.started", epoch, data, at))
        served[lane.id] = tenants.served(tenant)
    claimed = tx.run_many("claim_heads", list(heads.values()))
    assert claimed == len(heads), "a head changed inside its own transaction"
    tx.run_many("drop_entries", gone)
    tx.run_many("make_leases", leases)
    tx.run_many("mark_served", [(place, lane) for lane, place in served.items()])
    tx.write_events()
    few = claims if len(claims) <= FEW_TASKS else ()
    begun = _load_beginning(tx, [one for one in few if one.epoch == 1])
    return ClaimReply(now=at, claims=tuple(claims), loaded=tuple(begun))


def submit_and_claim(
    tx: Transaction, batch: Sequence[Submission], request: ClaimRequest, now: int | None
) -> tuple[list[Submitted], ClaimReply]:
    """Accept tasks, then claim; see ``Store.submit_and_claim``."""
    hinted = "queue" in tx.hints
    verdicts = submitting.submit(tx, batch)
    reply = claim(tx, request, now)
    taken = {claimed.task for claimed in reply.claims}
    if not hinted and all(one.task in taken for one in verdicts if one.kind == "accepted"):
        # Nobody else has to look for them.
        tx.hints.discard("queue")
    return verdicts, reply


def _session_name(tx: Transaction, request: ClaimRequest) -> str | None:
    """Read the name of a session that may claim: one that lives, and has not given up on this claim."""
    row = tx.row("read_session", (request.session,))
    return None if row is None or row[2] is not None or row[3] > request.fence else row[0]


class _Serving:
    """Which lanes a request serves; worked out when the first lane is there, which mostly there is not."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request

    @cached_property
    def _versions(self) -> set[tuple[str, str]]:
        return {(one.agent, one.version) for one in self._request.serves}

    @cached_property
    def _default(self) -> dict[str, str]:
        default: dict[str, str] = {}
        for one in self._request.serves:
            if one.default:
                default.setdefault(one.agent, one.version)
        return default

    def version(self, pool: str, agent: str, bound: str) -> str | None:
        """Answer the version that tasks of a lane are claimed for, None for a lane that is not served."""
        if pool not in self._request.pools:
            return None
        if bound == ANY_VERSION:
            return self._default.get(agent)
        return bound if (agent, bound) in self._versions else None


def _served_lanes(tx: Transaction, serving: _Serving) -> Iterator[_Lane]:
    """Yield the lanes that hold something and that the request serves, one by one."""
    for row in tx.each("busy_lanes"):
        id_, pool, agent, bound, tenant, priority, weight, served, first = row
        version = serving.version(pool, agent, bound)
        if version is not None:
            yield _Lane(id_, pool, agent, bound, tenant, priority, weight, served, first, version)


class _Tenant:
    """One tenant's lanes, of which the highest priority and then the oldest entry comes first."""

    def __init__(self) -> None:
        self.place = 0
        self.weight = 1
        self._lanes: list[tuple[int, int, int, _Lane, deque[Row]]] = []

    def add(self, lane: _Lane) -> None:
        self.place = max(self.place, lane.served)
        self.weight = max(self.weight, lane.weight)
        heapq.heappush(self._lanes, (-lane.priority, lane.first, lane.id, lane, deque()))

    @property
    def oldest(self) -> int:
        return self._lanes[0][1] if self._lanes else 0

    def take(self, tx: Transaction, chunk: int) -> tuple[_Lane, Row] | None:
        """Take this tenant's next queue entry, as it was read: place, task and head; None when there is
        none."""
        if not self._lanes:
            return None
        order, seq, id_, lane, entries = heapq.heappop(self._lanes)
        if not entries:
            entries.extend(tx.rows("read_entries", (lane.id, seq - 1, chunk)))
        entry = entries.popleft()
        if not entries:
            entries.extend(tx.rows("read_entries", (lane.id, seq, chunk)))
        if entries:
            heapq.heappush(self._lanes, (order, entries[0][0], id_, lane, entries))
        return lane, entry


class _Turns:
    """Whose turn it is: the tenant with the lowest place, then the one with the oldest entry."""

    def __init__(self, tx: Transaction, serving: _Serving, lanes: Sequence[_Lane]) -> None:
        tenants: dict[str, _Tenant] = {}
        for lane in lanes:
            tenants.setdefault(lane.tenant, _Tenant()).add(lane)
        if len(tenants) > 1:
            # Lanes that are empty now count as well: a tenant with a task in each of many would else be new
            # at every claim.
            for name, tenant in tenants.items():
                for pool, agent, bound, served in tx.rows("tenant_lanes", (name,)):
                    if served > tenant.place and serving.version(pool, agent, bound) is not None:
                        tenant.place = served
        floor = max((tenant.place for tenant in tenants.values()), default=0) - TURN
        self._order: list[tuple[int, int, int, _Tenant]] = []
        for number, tenant in enumerate(tenants.values()):
            tenant.place = max(tenant.place, floor)
            self._order.append((tenant.place, tenant.oldest, number, tenant))
        heapq.heapify(self._order)
        self._count = len(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def next(self) -> _Tenant | None:
        return heapq.heappop(self._order)[3] if self._order else None

    def served(self, tenant: _Tenant) -> int:
        """Let a tenant's turn be over; answer its new place."""
        tenant.place += TURN // tenant.weight
        self.back(tenant)
        return tenant.place

    def back(self, tenant: _Tenant) -> None:
        self._count += 1
        heapq.heappush(self._order, (tenant.place, tenant.oldest, self._count, tenant))


def reconcile(
    tx: Transaction, session: str, held: Sequence[Held], fence: int, now: int | None
) -> list[TaskRef]:
    """Give back the leases that a session's worker does not know of; see ``Store.reconcile``."""
    at = tx.now(now)
    if not tx.run("raise_fence", {"session": session, "fence": fence}):
        # It comes late, and knows nothing of what was claimed since.
        return []
    known = {(one.tenant, one.task, one.epoch) for one in held}
    given: list[TaskRef] = []
    for tenant, task, leased in tx.rows("session_leases", (session,)):
        if (tenant, task, leased) in known:
            continue
        head = Head.read(tx, tenant, task, at)
        assert head is not None, "a lease has a head"
        epoch, end = head.epoch, "cancelled" if head.cut else "released"
        head.end_attempt(end)
        # Raised, so that nothing that was begun under the lost answer is accepted.
        head.epoch += 1
        head.append(f"attempt.{end}", epoch=epoch)
        if head.cut:
            head.end_cancelled(epoch=epoch)
        else:
            head.enqueue()
            head.append("task.queued", epoch=epoch)
        head.save()
        given.append(TaskRef(tenant=tenant, task=task))
    tx.write_events()
    return given


def load(tx: Transaction, tasks: Sequence[Claimed]) -> list[Loaded]:
    """Read inputs and journals; see ``Store.load``. A task that is not there is left out."""
    loaded = []
    asked = tx.row("any_asked") is not None
    for one, row in _all_inputs(tx, tasks):
        *_, forked, begun, lies = row
        operations = tx.rows("load_operations", (one.tenant, one.task)) if begun else []
        loaded.append(
            _loaded(
                one,
                row,
                operations=[operation_row(found) for found in sorted(operations, key=itemgetter(3, 2))],
                inbox=posting.read_inbox(tx, one.tenant, one.task) if lies else (),
                approvals=approving.read_approvals(tx, one.tenant, one.task) if asked else (),
                issued=_read_issued(tx, one) if forked else (),
            )
        )
    return loaded


def _load_beginning(tx: Transaction, tasks: Sequence[Claimed]) -> list[Loaded]:
    """Load tasks that begin with a short input, and nothing else to begin with."""
    return [_loaded(one, row) for one, row in _inputs(tx, tasks, SHORT_BYTES) if not any(row[-3:])]


def _all_inputs(tx: Transaction, tasks: Sequence[Claimed]) -> Iterator[tuple[Claimed, Row]]:
    """Read the inputs of tasks, in their order: the short ones together, each long one by itself."""
    short = {(one.tenant, one.task): row for one, row in _inputs(tx, tasks, SHORT_BYTES)}
    for one in tasks:
        row = short.get((one.tenant, one.task))
        yield from _inputs(tx, [one], None) if row is None else [(one, row)]


def _inputs(tx: Transaction, tasks: Sequence[Claimed], most: int | None) -> list[tuple[Claimed, Row]]:
    """Read the inputs of tasks, in their order; not of those that have more bytes of text than ``most``."""
    asked = [(one.tenant, one.task, one.round, most) for one in tasks]
    found = {place: tuple(row) for place, *row in tx.rows_of("load_inputs", asked)}
    return [(one, found[place]) for place, one in enumerate(tasks) if place in found]


def _loaded(
    one: Claimed,
    row: Row,
    operations: Sequence[OperationRow] = (),
    inbox: Sequence[InboxRow] = (),
    approvals: Sequence[ApprovalRow] = (),
    issued: Sequence[OperationRow] = (),
) -> Loaded:
    """Make what a task is loaded with from the row of its input and what else there is."""
    input_, user, trace, submitted_at, failures, attempts, budget, depth, *_ = row
    return Loaded(
        tenant=one.tenant,
        task=one.task,
        input=input_,
        user=user,
        trace=trace,
        submitted_at=submitted_at,
        failures=failures,
        attempts=attempts,
        operations=tuple(operations),
        inbox=tuple(inbox),
        approvals=tuple(approvals),
        budget=budget,
        depth=depth,
        issued=tuple(issued),
    )


def _read_issued(tx: Transaction, one: Claimed) -> tuple[OperationRow, ...]:
    """Read the calls that were made behind a fork, the first made first."""
    return tuple(operation_row(row) for row in tx.rows("read_issued", (one.tenant, one.task)))


def operation_row(row: Row) -> OperationRow:
    """Make the record of an operation from its columns in the order of the table."""
    return OperationRow(
        tenant=row[0],
        task=row[1],
        key=row[2],
        position=row[3],
        kind=row[4],
        name=row[5],
        state=row[6],
        request=row[7],
        decision=row[8],
        effect=row[9],
        attempt=row[10],
        turn=row[11],
        epoch=row[12],
        arguments=row[13],
        result=row[14],
        error=row[15],
        created_at=row[16],
        intent_at=row[17],
        first_intent_at=row[18],
        deadline_at=row[19],
        due_at=row[20],
        ended_at=row[21],
        settled_by=row[22],
        business_key=row[23],
        idempotency_key=row[24],
        usage=row[25],
        visible_at=row[26],
    )
