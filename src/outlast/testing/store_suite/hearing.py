"""Ends of children that their parent's worker has heard of by itself, since it runs the children too."""

from __future__ import annotations

import json

import pytest

from outlast.store.changing import Retry
from outlast.store.posting import Delivered
from outlast.store.records import Claimed
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.posting import head, inbox, quiet
from outlast.testing.store_suite.scene import Scene, changed

__all__ = ["TestHeardEnds"]

KEY = "kid"
RESULT = '{"of":"a child"}'


async def with_a_child(scene: Scene) -> tuple[Claimed, Claimed]:
    """Have a parent and its child run."""
    parent = await scene.running()
    return parent, await scene.claim_task(await scene.child(parent, KEY))


class TestHeardEnds:
    """``EndAttempt.heard`` and ``RecordOperation.takes_end``."""

    @pytest.mark.parametrize("end", ["succeeded", "failed"])
    async def test_lies_there_until_the_parent_has_it_on_record(self, scene: Scene, end: str) -> None:
        parent, kid = await with_a_child(scene)
        before = await head(scene, parent)
        ending = scene.success(heard=True, result=RESULT) if end == "succeeded" else scene.failure(heard=True)
        verdict = await scene.write(kid, ending)
        assert verdict.state == end
        [post] = (await scene.store.dump())["posts"]
        assert (post["task"], post["kind"], post["name"]) == (parent.task, "child", KEY)
        assert json.loads(post["data"]) == {"task": kid.task, "state": end}
        assert check_all(await scene.store.dump()) == []
        await scene.write(parent, scene.step(KEY, kind="child", result=RESULT, state=end, takes_end=True))
        dump = await scene.store.dump()
        assert (dump["posts"], await scene.rows("inbox", parent)) == ([], [])
        assert (await scene.operation(parent, KEY)).state == end
        # Nobody tells a worker what it knows.
        assert await head(scene, parent) == before
        assert await scene.store.deliver(9, now=scene.now) == Delivered()
        assert check_all(await scene.store.dump()) == []

    async def test_nobody_is_hinted_to_deliver_it(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        grandchild = await scene.child(kid, "below")
        other = await scene.claim_task(await scene.child(parent, "other"))
        await quiet(scene, "posts")
        await scene.write(other, scene.success(heard=True, result=RESULT))
        assert not await scene.store.wakes.wait("posts", 0.3)
        # What it has left for its own children is another matter.
        await scene.write(kid, scene.success(heard=True, result=RESULT))
        assert await scene.store.wakes.wait("posts", 20)
        await scene.deliver_all()
        assert (await scene.task(grandchild)).state == "cancelled"
        assert sorted(row.name for row in await inbox(scene, parent)) == [KEY, "other"]

    async def test_is_taken_from_the_inbox_where_it_was_delivered_first(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        other = await scene.claim_task(await scene.child(parent, "other"))
        for one in (kid, other):
            await scene.write(one, scene.success(heard=True, result=RESULT))
        await scene.deliver_all()
        await scene.write(parent, scene.step(KEY, kind="child", result=RESULT, takes_end=True))
        assert [row.name for row in await inbox(scene, parent)] == ["other"]
        taken = {row["name"]: row["taken_by"] for row in await scene.rows("inbox", parent)}
        assert taken == {KEY: KEY, "other": None}
        assert check_all(await scene.store.dump()) == []

    async def test_what_is_on_record_is_not_delivered(self, scene: Scene) -> None:
        """Such as the end of one that people have tried again since."""
        parent, kid = await with_a_child(scene)
        other = await scene.claim_task(await scene.child(parent, "other"))
        await scene.write(kid, scene.failure(heard=True))
        await scene.write(
            parent, scene.step(KEY, kind="child", result=RESULT, state="failed", takes_end=True)
        )
        again = Retry(tenant=kid.tenant, task=kid.task, by="person:ann", reason="once more")
        assert [one.kind for one in await scene.store.retry([again], now=scene.now)] == ["retried"]
        await scene.write(await scene.claim_task(kid), scene.success())
        before = await scene.store.dump()
        assert await scene.store.deliver(9, now=scene.now) == Delivered()
        assert set(changed(before, await scene.store.dump())) == {"posts"}
        # Nobody else is held back.
        await scene.write(other, scene.success())
        assert [one.task for one in (await scene.store.deliver(9, now=scene.now)).told] == [parent.task]
        assert [(row.number, row.name) for row in await inbox(scene, parent)] == [(1, "other")]
        assert check_all(await scene.store.dump()) == []

    async def test_takes_no_other_end(self, scene: Scene) -> None:
        parents = [await scene.running() for _ in range(2)]
        for parent in parents:
            for key in (KEY, "other"):
                kid = await scene.claim_task(await scene.child(parent, key))
                await scene.write(kid, scene.success(heard=True, result=RESULT))
        await scene.write(parents[0], scene.step(KEY, kind="child", result=RESULT, takes_end=True))
        left = {(row["task"], row["name"]) for row in (await scene.store.dump())["posts"]}
        assert left == {(parents[0].task, "other"), (parents[1].task, KEY), (parents[1].task, "other")}

    async def test_nothing_lies_there(self, scene: Scene) -> None:
        parent, _ = await with_a_child(scene)
        await scene.write(parent, scene.step(KEY, kind="child", result=RESULT, takes_end=True))
        assert (await scene.operation(parent, KEY)).state == "succeeded"

    async def test_many_at_once(self, scene: Scene) -> None:
        parent = await scene.running()
        kids = [await scene.claim_task(await scene.child(parent, f"kid-{n}")) for n in range(5)]
        for kid in kids[:2]:
            await scene.write(kid, scene.success(heard=True, result=RESULT))
        await scene.deliver_all()
        writes = [scene.writes(kid, scene.success(heard=True, result=RESULT)) for kid in kids[2:]]
        await scene.store.flush(scene.batch(*writes), now=scene.now)
        records = [scene.step(f"kid-{n}", kind="child", result=RESULT, takes_end=True) for n in (4, 0, 2)]
        await scene.write(parent, *records)
        assert {row["name"] for row in (await scene.store.dump())["posts"]} == {"kid-3"}
        assert [row.name for row in await inbox(scene, parent)] == ["kid-1"]
        assert check_all(await scene.store.dump()) == []

    async def test_a_stale_parent_takes_nothing(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        await scene.write(kid, scene.success(heard=True, result=RESULT))
        await scene.write(parent, scene.release())
        again = await scene.claim_task(parent)
        before = await scene.store.dump()
        verdict = await scene.flush(parent, scene.step(KEY, kind="child", result=RESULT, takes_end=True))
        assert verdict.kind == "stale"
        assert changed(before, await scene.store.dump()) == {}
        await scene.deliver_all()
        assert [row.name for row in await inbox(scene, parent)] == [KEY]
        await scene.write(again, scene.step(KEY, kind="child", result=RESULT, takes=(1,)))
        assert check_all(await scene.store.dump()) == []

    async def test_a_parent_that_suspends_instead_is_woken_for_it(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        await scene.write(kid, scene.success(heard=True, result=RESULT))
        await scene.write(parent, scene.suspension("child"))
        await scene.deliver_all()
        assert (await scene.task(parent)).state == "queued"

    async def test_what_a_cancel_makes_of_it_lies_there_too(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        await scene.cancel(kid)
        verdict = await scene.write(kid, scene.success(heard=True, result=RESULT))
        assert verdict.state == "cancelled"
        await scene.deliver_all()
        [row] = await inbox(scene, parent)
        assert json.loads(row.data) == {"task": kid.task, "state": "cancelled"}

    async def test_a_repeated_batch_takes_once(self, scene: Scene) -> None:
        parent, kid = await with_a_child(scene)
        await scene.write(kid, scene.failure(heard=True))
        record = scene.step(KEY, kind="child", result=RESULT, state="failed", takes_end=True)
        batch = scene.batch(scene.writes(parent, record), writer="wr_parent")
        verdicts = await scene.store.flush(batch, now=scene.now)
        again = Retry(tenant=kid.tenant, task=kid.task, by="person:ann", reason="once more")
        await scene.store.retry([again], now=scene.now)
        await scene.write(await scene.claim_task(kid), scene.success(heard=True, result=RESULT))
        before = await scene.store.dump()
        assert await scene.store.flush(batch, now=scene.now) == verdicts
        assert changed(before, await scene.store.dump()) == {}
