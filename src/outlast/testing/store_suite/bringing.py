"""What a claim brings along of what its tasks are loaded with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outlast.store.contract import FEW_TASKS, SHORT_BYTES
from outlast.store.records import ClaimReply, Serves, Submission
from outlast.testing.store_suite.scene import SECOND, Backdoor, Scene


async def agrees(scene: Scene, reply: ClaimReply) -> list[bool]:
    """Compare what a claim brought with what is loaded; answer for each of its claims whether it was
    brought."""
    loaded = {(one.tenant, one.task): one for one in await scene.store.load(reply.claims)}
    brought = {(one.tenant, one.task): one for one in reply.loaded}
    assert len(loaded) == len(reply.claims)
    assert len(brought) == len(reply.loaded)
    assert {name: loaded[name] for name in brought} == brought
    return [(one.tenant, one.task) in brought for one in reply.claims]


class TestBroughtAlong:
    """What a claim brings along of what ``load`` answers."""

    async def claim(self, scene: Scene, *records: Submission, limit: int | None = None) -> ClaimReply:
        """Claim these, which are all there is of their agents."""
        reply = await scene.claim(
            await scene.session(),
            pools=sorted({record.pool for record in records}),
            serves=[Serves(agent=agent, version="version-5") for agent in sorted({r.agent for r in records})],
            limit=limit or len(records) + 1,
        )
        assert {claimed.task for claimed in reply.claims} == {record.task for record in records}
        return reply

    async def test_is_what_a_task_that_begins_is_loaded_with(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=977 * SECOND)
        scene.pass_time(3 * SECOND)
        reply = await self.claim(scene, record)
        assert await agrees(scene, reply) == [True]
        [brought] = reply.loaded
        assert (brought.tenant, brought.task, brought.input) == (record.tenant, record.task, record.input)
        assert (brought.user, brought.trace, brought.budget) == (record.user, record.trace, None)
        assert (brought.operations, brought.inbox, brought.issued) == ((), (), ())

    async def test_short_and_long_texts_are_loaded_together_as_they_are(self, scene: Scene) -> None:
        odd = '"\\\u0000\x7f\u2028 \U0001f600 1e999 -0'
        texts = [odd, odd * SHORT_BYTES, "x", "x" * SHORT_BYTES, 2**63 - 1, 0.1]
        records = [replace(scene.submission(), input=json.dumps(text, ensure_ascii=False)) for text in texts]
        await scene.accept(records)
        claims = (await self.claim(scene, *records)).claims
        given = {record.task: record.input for record in records}
        for asked in (claims, claims[::-1]):
            loaded = await scene.store.load(asked)
            assert [(one.task, one.input) for one in loaded] == [(one.task, given[one.task]) for one in asked]

    async def test_has_all_that_was_said_of_the_task(self, scene: Scene) -> None:
        bare = await scene.submit(user=None, trace=None)
        full = await scene.submit(budget=scene.text("budget"))
        for record in (bare, full):
            reply = await self.claim(scene, record)
            assert await agrees(scene, reply) == [True]
            assert reply.loaded[0].budget == record.budget

    async def test_counts_the_parents(self, scene: Scene) -> None:
        record = await scene.child(await scene.running())
        reply = await self.claim(scene, record)
        assert await agrees(scene, reply) == [True]
        assert reply.loaded[0].depth == 1

    async def test_is_of_each_task_its_own(self, scene: Scene) -> None:
        other = replace(scene, tenant="tenant-red", _last=90_000)
        records = [scene.submission(), other.submission(), scene.submission()]
        records.append(replace(other.submission(), task=records[0].task))
        await scene.accept(records)
        assert await agrees(scene, await self.claim(scene, *records)) == [True] * 4

    @pytest.mark.parametrize("end", ["released", "failed", "lost"])
    async def test_is_nothing_of_a_task_that_was_claimed_before(self, scene: Scene, end: str) -> None:
        record = await scene.submit()
        claimed = await scene.claim_task(record, version="version-5")
        if end == "lost":
            await scene.lose(claimed)
        elif end == "failed":
            await scene.write(claimed, scene.failure(task_state="queued", error=None))
        else:
            await scene.write(claimed, scene.release())
        assert await agrees(scene, await self.claim(scene, record)) == [False]

    async def test_is_nothing_of_a_task_that_has_a_journal(self, scene: Scene) -> None:
        record = await scene.submit()
        await scene.write(await scene.claim_task(record, version="version-5"), scene.step(), scene.release())
        reply = await self.claim(scene, record)
        assert await agrees(scene, reply) == [False]

    async def test_is_nothing_of_a_task_that_was_told_something(self, scene: Scene) -> None:
        told, untold = await scene.submit(), await scene.submit()
        await scene.post(scene.signal(told))
        reply = await self.claim(scene, told, untold)
        brought = dict(zip([one.task for one in reply.claims], await agrees(scene, reply), strict=True))
        assert brought == {told.task: False, untold.task: True}

    async def test_is_nothing_of_a_task_with_long_texts(self, scene: Scene) -> None:
        """The bound is in bytes, and of all that is said of the task."""
        budget = scene.text("budget")
        begin = scene.submission(budget=budget)
        said = sum(len(text) for text in (begin.user, begin.trace, budget) if text)
        for over in (0, 1):
            record = replace(
                scene.submission(), user=begin.user, trace=begin.trace, budget=budget,
                input=json.dumps("ü" + "x" * (SHORT_BYTES - said - 4 + over), ensure_ascii=False),
            )  # fmt: skip
            assert len(record.input.encode()) == SHORT_BYTES - said + over
            await scene.accept([record])
            assert await agrees(scene, await self.claim(scene, record)) == [not over]

    async def test_is_nothing_of_many(self, scene: Scene) -> None:
        for many in (FEW_TASKS, FEW_TASKS + 1):
            agent = f"agent-{scene.number()}"
            records = [scene.submission(agent=agent, pool="pool-x") for _ in range(many)]
            await scene.accept(records)
            brought = await agrees(scene, await self.claim(scene, *records))
            assert brought == [many <= FEW_TASKS] * many

    async def test_is_nothing_of_many_that_were_found_little_by_little(
        self, scene: Scene, backdoor: Backdoor
    ) -> None:
        """Stale entries are passed over, and the claim looks again."""
        alive = [
            scene.submission(agent="agent-x", pool="pool-x", version="version-5")
            for _ in range(FEW_TASKS + 1)
        ]
        over = await scene.submit(agent="agent-x", pool="pool-x", version="version-5")
        await scene.write(await scene.claim_task(over), scene.success())
        await scene.accept(alive[:1])
        [head] = await scene.rows("tasks", alive[0])
        for number in range(FEW_TASKS):
            names, values = "lane, tenant, task", f"{head['lane']}, '{over.tenant}', '{over.task}'"
            if backdoor.dialect == "sqlite":  # where places are given by the store
                names, values = f"seq, {names}", f"{-1 - number}, {values}"
            await backdoor.run(f"insert into queue ({names}) values ({values})")
        await scene.accept(alive[1:])
        reply = await self.claim(scene, *alive, limit=len(alive))
        assert await agrees(scene, reply) == [False] * len(alive)

    async def test_is_nothing_where_nothing_is_claimed(self, scene: Scene) -> None:
        record = await scene.submit()
        serves = [Serves(agent=record.agent, version="version-5")]
        assert (await scene.claim("ses_none", pools=[record.pool], serves=serves)).loaded == ()
        assert (await scene.claim(await scene.session(), pools=["pool-y"], serves=serves)).loaded == ()
