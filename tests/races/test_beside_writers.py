"""What must not wait for whoever writes, and what several may begin at once, on PostgreSQL."""

from tests.races.blocking import INVOICE, ON_POSTGRES, Place, unknown
from tests.races.holding import ended, rival, start

from outlast.store.approving import ApprovalFilter
from outlast.store.contract import Store
from outlast.store.records import (
    Evidence,
    TaskRef,
)
from outlast.store.rows import (
    EventCursor,
    OperationFilter,
    TaskFilter,
)

pytestmark = ON_POSTGRES


async def test_nobody_who_only_reads_waits(place: Place) -> None:
    scene, store = place.scene, place.scene.store
    claimed, key = await unknown(scene)
    ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
    await scene.submit(announce=True)
    await scene.called(claimed, business=INVOICE)
    asked = await scene.asked(claimed, scene.ask(quorum=2))
    await scene.decide(asked)
    await scene.post(scene.signal(claimed))
    await store.put_rule(scene.rule("pay"), now=scene.now)
    async with rival(place.url) as other:
        for table in (
            "tasks",
            "inputs",
            "leases",
            "operations",
            "events",
            "sessions",
            "outbox",
            "queue",
            "unsettled",
            "business_keys",
            "pauses",
            "held_tasks",
            "audit",
            "inbox",
            "posts",
            "approvals",
            "votes",
            "rules",
        ):
            await other.run(f"select from outlast.{table} for update")
        for reading in (
            store.load([claimed]),
            store.read_tasks([ref]),
            store.list_tasks(TaskFilter(tenant=claimed.tenant)),
            store.read_events([EventCursor(tenant=claimed.tenant, task=claimed.task)]),
            store.read_ends([ref]),
            store.read_attempts(ref),
            store.list_operations(OperationFilter(tenant=claimed.tenant, task=claimed.task)),
            store.list_operations(OperationFilter(tenant=claimed.tenant, state="unknown")),
            store.read_evidence(claimed.tenant, claimed.task, key),
            store.read_open(claimed.tenant, claimed.task, key),
            store.list_pauses(claimed.tenant),
            store.read_business_key(claimed.tenant, INVOICE.tool, INVOICE.value),
            store.read_audit(claimed.tenant),
            store.read_inbox(claimed.tenant, claimed.task),
            store.read_approvals(claimed.tenant, claimed.task),
            store.read_approval(claimed.tenant, asked.id),
            store.list_approvals(ApprovalFilter(tenant=claimed.tenant)),
            store.read_votes(claimed.tenant, asked.id),
            store.read_rules(claimed.tenant, "pay"),
            store.list_rules(claimed.tenant),
            store.take_messages(9),
            store.health(),
            store.dump(),
        ):
            twin = start(reading)
            assert not await other.see_blocked(twin)
            assert await ended(twin) is not None


async def test_evidence_is_numbered_behind_whoever_writes_it_at_the_same_time(place: Place) -> None:
    scene = place.scene
    claimed, key = await unknown(scene)
    note = Evidence(tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="late", data="{}")
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twins = [start(scene.store.note([note])) for _ in range(3)]
        assert await other.see_blocked(twins[0])
        await other.commit()
        for twin in twins:
            await ended(twin)
    rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
    assert [row.number for row in rows] == [1, 2, 3]


async def test_schema_race(place: Place, bare_postgres_url: str) -> None:
    """Several processes migrate one new database at once: each migration is applied by one of them."""
    from tests.stores import new_store

    stores: list[Store] = [new_store(bare_postgres_url) for _ in range(4)]
    try:
        applied = [await ended(task) for task in [start(store.migrate()) for store in stores]]
        assert sorted(len(names) for names in applied)[:-1] == [0, 0, 0]
        assert len({name for names in applied for name in names}) == sum(len(names) for names in applied) > 0
        await stores[0].open()
        assert await stores[0].migrate() == []
    finally:
        for store in stores:
            await store.close()
