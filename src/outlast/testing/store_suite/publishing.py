"""The outbox: found by being there, in order within a task, parked without holding up the others."""

from __future__ import annotations

from outlast.store.rows import Message, Publication
from outlast.testing.store_suite.scene import SECOND, Scene, changed


def published(message: Message) -> Publication:
    """Say that a message is out."""
    return Publication(tenant=message.tenant, task=message.task, number=message.number)


def parked(message: Message, reason: str) -> Publication:
    """Say that a message cannot be sent."""
    return Publication(tenant=message.tenant, task=message.task, number=message.number, parked=reason)


class TestOutbox:
    """The verbs ``take_messages`` and ``confirm_messages``."""

    async def test_takes_what_is_pending(self, scene: Scene) -> None:
        record = await scene.submit(announce=True)
        await scene.submit(announce=False)
        [row] = await scene.rows("outbox", record)
        assert await scene.store.take_messages(10, now=scene.now) == [
            Message(
                tenant=record.tenant,
                task=record.task,
                number=row["number"],
                topic="task.submitted",
                data=row["data"],
                created_at=row["created_at"],
            )
        ]

    async def test_taking_changes_nothing(self, scene: Scene) -> None:
        """A relay that dies after it took a message has taken nothing away."""
        await scene.submit(announce=True)
        before = await scene.store.dump()
        first = await scene.store.take_messages(10, now=scene.now)
        assert await scene.store.take_messages(10, now=scene.now + 3600 * SECOND) == first
        assert changed(before, await scene.store.dump()) == {}

    async def test_takes_the_oldest_first_up_to_the_limit(self, scene: Scene) -> None:
        records = [await scene.submit(announce=True) for _ in range(5)]
        taken = await scene.store.take_messages(3, now=scene.now)
        assert [message.task for message in taken] == [record.task for record in records[:3]]
        assert await scene.store.take_messages(0, now=scene.now) == []

    async def test_a_published_row_goes(self, scene: Scene) -> None:
        record, other = await scene.submit(announce=True), await scene.submit(announce=True)
        [message, _] = await scene.store.take_messages(10, now=scene.now)
        for _ in range(2):
            await scene.store.confirm_messages([published(message)])
            assert await scene.rows("outbox", record) == []
            taken = await scene.store.take_messages(10, now=scene.now)
            assert [one.task for one in taken] == [other.task]

    async def test_a_task_is_published_in_order(self, scene: Scene) -> None:
        claimed = await scene.running(announce=True)
        await scene.write(claimed, scene.success())
        topics = []
        for _ in range(4):
            taken = await scene.store.take_messages(10, now=scene.now)
            assert [message.number for message in taken] == sorted({message.number for message in taken})
            for message in taken:
                topics.append(message.topic)
                await scene.store.confirm_messages([published(message)])
        assert topics == ["task.submitted", "task.succeeded"]

    async def test_a_parked_row_stays_with_its_reason_and_is_not_taken(self, scene: Scene) -> None:
        record, other = await scene.submit(announce=True), await scene.submit(announce=True)
        [message, _] = await scene.store.take_messages(10, now=scene.now)
        for _ in range(2):
            await scene.store.confirm_messages([parked(message, "too large")])
            [row] = await scene.rows("outbox", record)
            assert row["parked"] == "too large"
            taken = await scene.store.take_messages(10, now=scene.now)
            assert [one.task for one in taken] == [other.task]

    async def test_a_parked_row_holds_back_later_rows_of_its_own_task_only(self, scene: Scene) -> None:
        claimed = await scene.running(announce=True)
        [first] = await scene.store.take_messages(10, now=scene.now)
        await scene.store.confirm_messages([parked(first, "too large")])
        await scene.write(claimed, scene.success())
        other = await scene.submit(announce=True)
        taken = await scene.store.take_messages(10, now=scene.now)
        assert [one.task for one in taken] == [other.task]
        assert len(await scene.rows("outbox", claimed)) == 2

    async def test_a_parked_row_holds_back_none_before_it(self, scene: Scene) -> None:
        """Whoever took both may have parked the later one, and died over the earlier."""
        claimed = await scene.running(announce=True)
        await scene.write(claimed, scene.success())
        first, last = await scene.store.take_messages(10, now=scene.now)
        await scene.store.confirm_messages([parked(last, "too large")])
        assert await scene.store.take_messages(10, now=scene.now) == [first]
        await scene.store.confirm_messages([published(first)])
        assert await scene.store.take_messages(10, now=scene.now) == []
        assert [row["number"] for row in await scene.rows("outbox", claimed)] == [last.number]

    async def test_many_parked_rows_stand_before_nobody(self, scene: Scene) -> None:
        for _ in range(20):
            await scene.submit(announce=True)
        stuck = await scene.store.take_messages(20, now=scene.now)
        await scene.store.confirm_messages([parked(message, "no route") for message in stuck])
        record = await scene.submit(announce=True)
        assert [m.task for m in await scene.store.take_messages(1, now=scene.now)] == [record.task]

    async def test_confirms_under_the_tenants_name_only(self, scene: Scene) -> None:
        record = await scene.submit(announce=True)
        [message] = await scene.store.take_messages(10, now=scene.now)
        before = await scene.store.dump()
        for reason in (None, "mine"):
            foreign = Publication(
                tenant="tenant-other", task=message.task, number=message.number, parked=reason
            )
            await scene.store.confirm_messages([foreign])
        assert changed(before, await scene.store.dump()) == {}
        assert len(await scene.rows("outbox", record)) == 1

    async def test_confirms_several_at_once(self, scene: Scene) -> None:
        for _ in range(4):
            await scene.submit(announce=True)
        one, two, three, four = await scene.store.take_messages(10, now=scene.now)
        await scene.store.confirm_messages([published(one), parked(two, "no"), published(three)])
        assert await scene.store.take_messages(10, now=scene.now) == [four]

    async def test_confirming_nothing_is_no_error(self, scene: Scene) -> None:
        await scene.store.confirm_messages([])
