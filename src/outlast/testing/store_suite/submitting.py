"""Submit: accepted means stored, once per tenant and key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outlast.store.records import Submission, Submitted, TaskRef
from outlast.testing.store_suite.scene import HOUR, ROUND, SECOND, Backdoor, Dump, Scene, changed, refused

WHITE_SPACE = " \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Every character with Unicode's property White_Space that is no control character."""
BAD_KEYS = {
    "empty": "",
    "a space": " ",
    "no-break spaces": "\u00a0\u00a0",
    "every white space": WHITE_SPACE,
    "a tab": "\t",
    "256 characters": "k" * 256,
    "a line feed inside": "key\nkey",
    "an escape inside": "key\x1bkey",
    "a unit separator at the end": "key\x1f",
    "DEL": "key\x7f",
    "a C1 control": "key\x85key",
}
"""Keys that no entrance may let through (see ``outlast.core.ids.check_key``)."""
NO_WHITE_SPACE = ("\u180e", "\u200b", "\u2060", "\ufeff", f"{WHITE_SPACE}k")
"""Keys that look like nothing, or begin so, and are let through: these characters are no white space."""


FAR = 4_000_000_000 * SECOND
"""An instant that lies ahead."""


def stored_since(before: Dump, after: Dump) -> dict[str, object]:
    """Answer what differs; a lane holds no promise of a task, so one may be there ahead of its tasks."""
    return changed(before, after, ignoring=("writers", "lanes"))


async def stored_as(scene: Scene, record: Submission) -> None:
    """Check that a task, its lane, its timers, its first event and its message say what was submitted."""
    task = await scene.task(record)
    said = (task.agent, task.version, task.pool, task.priority, task.key, task.user, task.input, task.budget)
    assert said == (
        *(record.agent, record.version, record.pool, record.priority),
        *(record.key, record.user, record.input, record.budget),
    )
    [row] = await scene.rows("inputs", record)
    digest, trace, announce = row["request_digest"], row["trace"], bool(row["announce"])
    assert (digest, trace, announce) == (record.request_digest, record.trace, record.announce)
    deadline_at = None if record.deadline_us is None else task.submitted_at + record.deadline_us
    assert (task.deadline_at, task.state) == (deadline_at, "queued" if record.run_at is None else "waiting")
    timers = {row["kind"]: row["due_at"] for row in await scene.rows("timers", record)}
    due = {"wake": record.run_at, "deadline": deadline_at}
    assert timers == {kind: at for kind, at in due.items() if at is not None}
    [event] = await scene.events(record)
    origin = json.loads(record.origin or "{}")
    assert json.loads(event.data) == {"agent": record.agent, "pool": record.pool, **origin}
    assert [row["data"] for row in await scene.rows("outbox", record)] == [event.data] * record.announce


class TestSubmit:
    """The verb ``submit``."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        record = await scene.submit(
            deadline_us=977 * SECOND, announce=True, version="version-5", budget=scene.text("budget")
        )
        task = await scene.task(record)
        [head] = await scene.rows("tasks", record)
        [inputs] = await scene.rows("inputs", record)
        assert task.deadline_at == task.submitted_at + 977 * SECOND
        assert 0 <= task.submitted_at - scene.now < 60 * SECOND
        assert inputs == {
            "tenant": record.tenant,
            "task": record.task,
            "key": record.key,
            "request_digest": record.request_digest,
            "agent": record.agent,
            "version_asked": "version-5",
            "pool": record.pool,
            "priority": record.priority,
            "input": record.input,
            "user_name": record.user,
            "trace": record.trace,
            "announce": inputs["announce"],
            "submitted_at": task.submitted_at,
            "parent": None,
            "parent_key": None,
            "detached": False,
            "depth": 0,
            "budget": record.budget,
            "forked_from": None,
        }
        assert bool(inputs["announce"])
        assert (head["state"], head["reason"], head["epoch"], head["round"]) == ("queued", None, 0, ROUND)
        assert (head["facts"], head["last_event"], head["deadline_at"]) == (0, 1, task.deadline_at)
        assert (task.tenant, task.task, task.agent, task.version) == (
            record.tenant,
            record.task,
            record.agent,
            "version-5",
        )
        assert (task.pool, task.priority, task.key, task.user) == (
            record.pool,
            record.priority,
            record.key,
            record.user,
        )
        assert (task.input, task.result, task.error, task.ended_at) == (record.input, None, None, None)
        assert (task.state, task.reason, task.epoch, task.round, task.last_event) == (
            "queued",
            None,
            0,
            ROUND,
            1,
        )
        assert (task.attempts, task.effects_open) == (0, 0)
        assert (task.budget, task.forked_from, task.accepted) == (record.budget, None, None)

    async def test_writes_the_first_event(self, scene: Scene) -> None:
        record = await scene.submit()
        [event] = await scene.events(record)
        assert (event.tenant, event.task, event.number) == (record.tenant, record.task, 1)
        assert (event.kind, event.epoch) == ("task.submitted", 0)
        assert json.loads(event.data) == {"agent": record.agent, "pool": record.pool}
        assert event.at == (await scene.task(record)).submitted_at

    async def test_puts_a_task_into_its_lane(self, scene: Scene) -> None:
        record = await scene.submit(priority=17, version="version-5")
        [head] = await scene.rows("tasks", record)
        [entry] = await scene.rows("queue", record)
        [lane] = [lane for lane in (await scene.store.dump())["lanes"] if lane["id"] == entry["lane"]]
        assert head["lane"] == entry["lane"]
        assert (lane["pool"], lane["agent"], lane["version"]) == (record.pool, record.agent, "version-5")
        assert (lane["tenant"], lane["priority"], lane["weight"]) == (record.tenant, 17, 1)

    async def test_writes_a_deadline_timer(self, scene: Scene) -> None:
        record = await scene.submit(deadline_us=977 * SECOND)
        [timer] = await scene.rows("timers", record)
        assert (timer["kind"], timer["due_at"]) == ("deadline", (await scene.task(record)).deadline_at)

    async def test_without_a_deadline_writes_no_timer(self, scene: Scene) -> None:
        record = await scene.submit()
        assert await scene.rows("timers", record) == []
        assert (await scene.task(record)).deadline_at is None

    async def test_waits_for_an_instant_that_lies_ahead(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now + HOUR)
        task = await scene.task(record)
        [timer] = await scene.rows("timers", record)
        assert (task.state, task.reason) == ("waiting", "timer")
        assert (timer["kind"], timer["due_at"]) == ("wake", scene.now + HOUR)
        assert await scene.rows("queue", record) == []

    async def test_queues_at_once_for_an_instant_that_has_passed(self, scene: Scene) -> None:
        record = await scene.submit(run_at=scene.now - HOUR)
        assert (await scene.task(record)).state == "queued"
        assert await scene.rows("timers", record) == []
        assert len(await scene.rows("queue", record)) == 1

    async def test_announces_in_the_same_transaction(self, scene: Scene) -> None:
        record = await scene.submit(announce=True)
        [message] = await scene.rows("outbox", record)
        assert (message["topic"], message["parked"]) == ("task.submitted", None)
        assert isinstance(json.loads(message["data"]), dict)
        assert message["created_at"] == (await scene.task(record)).submitted_at

    async def test_is_silent_unless_asked_to_announce(self, scene: Scene) -> None:
        record = await scene.submit(announce=False)
        assert await scene.rows("outbox", record) == []

    async def test_the_very_same_record_is_accepted_again_and_changes_nothing(self, scene: Scene) -> None:
        record = await scene.submit(announce=True, deadline_us=977 * SECOND)
        before = await scene.store.dump()
        assert await scene.store.submit([record]) == [Submitted(kind="accepted", task=record.task)]
        assert stored_since(before, await scene.store.dump()) == {}

    async def test_the_very_same_record_without_a_key_is_accepted_again(self, scene: Scene) -> None:
        record = await scene.submit(key=None)
        before = await scene.store.dump()
        assert await scene.store.submit([record]) == [Submitted(kind="accepted", task=record.task)]
        assert stored_since(before, await scene.store.dump()) == {}

    async def test_a_key_used_for_the_same_request_replays_the_first_task(self, scene: Scene) -> None:
        first = await scene.submit()
        before = await scene.store.dump()
        twin = scene.submission(key=first.key, request_digest=first.request_digest)
        assert await scene.store.submit([twin]) == [Submitted(kind="replayed", task=first.task)]
        assert stored_since(before, await scene.store.dump()) == {}
        assert await scene.store.read_tasks([TaskRef(tenant=twin.tenant, task=twin.task)]) == []

    async def test_a_key_used_for_another_request_is_a_conflict(self, scene: Scene) -> None:
        first = await scene.submit()
        before = await scene.store.dump()
        other = scene.submission(key=first.key)
        assert await scene.store.submit([other]) == [Submitted(kind="conflict", task=first.task)]
        assert stored_since(before, await scene.store.dump()) == {}

    async def test_a_key_is_replayed_after_its_task_has_ended(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.write(claimed, scene.success())
        task = await scene.task(claimed)
        [inputs] = await scene.rows("inputs", claimed)
        twin = scene.submission(key=task.key, request_digest=inputs["request_digest"])
        assert await scene.store.submit([twin]) == [Submitted(kind="replayed", task=claimed.task)]

    async def test_keys_differ_when_their_characters_do(self, scene: Scene) -> None:
        """Keys are never trimmed, folded or normalised."""
        keys = ["Straße", "straße", "STRASSE", "é", "e\u0301", "a", " a", "a ", "a%", "a_", "A"]
        records = [scene.submission(key=key) for key in keys]
        assert [verdict.kind for verdict in await scene.store.submit(records)] == ["accepted"] * len(keys)

    async def test_one_key_in_two_tenants_is_two_keys(self, scene: Scene) -> None:
        first = await scene.submit(tenant="tenant-blue")
        second = replace(scene.submission(tenant="tenant-red"), key=first.key)
        assert await scene.store.submit([second]) == [Submitted(kind="accepted", task=second.task)]

    async def test_tasks_without_a_key_are_never_twins(self, scene: Scene) -> None:
        first = scene.submission(key=None)
        second = scene.submission(key=None, request_digest=first.request_digest)
        assert [v.kind for v in await scene.store.submit([first, second])] == ["accepted", "accepted"]

    async def test_a_batch_answers_in_order_one_verdict_each(self, scene: Scene) -> None:
        """A refusal of one submission does not undo its neighbours."""
        held = await scene.submit()
        fresh, last = scene.submission(), scene.submission(key=None)
        twin = scene.submission(key=held.key, request_digest=held.request_digest)
        other = scene.submission(key=held.key)
        assert await scene.store.submit([other, fresh, held, twin, last]) == [
            Submitted(kind="conflict", task=held.task),
            Submitted(kind="accepted", task=fresh.task),
            Submitted(kind="accepted", task=held.task),
            Submitted(kind="replayed", task=held.task),
            Submitted(kind="accepted", task=last.task),
        ]
        assert len((await scene.store.dump())["tasks"]) == 3

    async def test_twins_within_one_batch_are_one_task(self, scene: Scene) -> None:
        """The first of them in the order of the batch has the key."""
        first = scene.submission()
        twin = scene.submission(key=first.key, request_digest=first.request_digest)
        other = scene.submission(key=first.key)
        assert await scene.store.submit([first, twin, other]) == [
            Submitted(kind="accepted", task=first.task),
            Submitted(kind="replayed", task=first.task),
            Submitted(kind="conflict", task=first.task),
        ]
        assert [row["id"] for row in (await scene.store.dump())["tasks"]] == [first.task]

    async def test_one_record_twice_in_a_batch_is_one_task(self, scene: Scene) -> None:
        record = scene.submission()
        assert (
            await scene.store.submit([record, record]) == [Submitted(kind="accepted", task=record.task)] * 2
        )
        assert len(await scene.events(record)) == 1

    async def test_a_large_batch_is_accepted_whole(self, scene: Scene) -> None:
        records = [scene.submission(agent="agent-crowd", pool="pool-crowd") for _ in range(1000)]
        verdicts = await scene.store.submit(records)
        assert verdicts == [Submitted(kind="accepted", task=record.task) for record in records]
        dump = await scene.store.dump()
        assert len(dump["tasks"]) == len(dump["queue"]) == len(dump["events"]) == 1000
        assert len(dump["lanes"]) == 1

    @pytest.mark.parametrize("odd", [0, 5, 11])
    async def test_what_most_of_a_batch_share_is_stored_with_what_one_has_alone(
        self, scene: Scene, odd: int
    ) -> None:
        """In each value, and in all of them at once, one of the batch differs from the others."""
        like = scene.submission(key=None)
        alone: list[dict[str, object]] = [
            {"tenant": "tenant-odd"}, {"key": "key-odd"}, {"request_digest": "digest-odd"},
            {"agent": "agent-odd"}, {"version": "version-odd"}, {"pool": "pool-odd"}, {"priority": -3},
            {"input": '{"odd":1}'}, {"user": None}, {"deadline_us": 977 * SECOND}, {"run_at": FAR},
            {"trace": None}, {"announce": True}, {"budget": '{"depth":1}'}, {"origin": '{"odd":1}'}, {},
        ]  # fmt: skip
        alone.append({name: value for one in alone for name, value in one.items() if name != "tenant"})
        for number, differs in enumerate(alone):
            shared = {"key": None, "agent": f"agent-{number}", "pool": like.pool, "user": like.user}
            shared |= {"trace": like.trace, "input": like.input, "request_digest": like.request_digest}
            if "key" in differs:
                differs = {**differs, "key": f"key-odd-{number}"}
            batch = [
                scene.submission(**shared) if place != odd else scene.submission(**{**shared, **differs})
                for place in range(12)
            ]
            await scene.accept(batch)
            for record in batch:
                await stored_as(scene, record)

    @pytest.mark.parametrize("place", [0, 7, 15])
    async def test_a_large_batch_with_rivals_stores_what_has_none(self, scene: Scene, place: int) -> None:
        """Wherever in it they stand: those of earlier batches, and those of its own."""
        held = await scene.submit()
        batch = [scene.submission() for _ in range(16)]
        batch[place] = scene.submission(key=held.key)
        batch[(place + 5) % 16] = held
        batch[(place + 9) % 16] = scene.submission(key=held.key, request_digest=held.request_digest)
        first, second = sorted([(place + 2) % 16, (place + 3) % 16])
        batch[second] = replace(scene.submission(), key=batch[first].key)
        expected = [Submitted(kind="accepted", task=record.task) for record in batch]
        expected[place] = Submitted(kind="conflict", task=held.task)
        expected[(place + 9) % 16] = Submitted(kind="replayed", task=held.task)
        expected[second] = Submitted(kind="conflict", task=batch[first].task)
        assert await scene.store.submit(batch) == expected
        dump = await scene.store.dump()
        assert len(dump["tasks"]) == len(dump["inputs"]) == len(dump["events"]) == 13
        assert await scene.store.submit(batch) == expected
        assert await scene.store.dump() == dump

    async def test_an_empty_batch_is_no_error(self, scene: Scene) -> None:
        assert await scene.store.submit([]) == []

    @pytest.mark.parametrize("key", [*BAD_KEYS.values(), "key\x00key"], ids=[*BAD_KEYS.keys(), "NUL"])
    async def test_a_key_that_breaks_the_rules_is_refused_with_its_whole_batch(
        self, scene: Scene, key: str
    ) -> None:
        before = await scene.store.dump()
        async with refused(f"key {key!r}"):
            await scene.store.submit([scene.submission(), scene.submission(key=key)])
        assert stored_since(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize(
        "key", ["k", "k" * 255, "é" * 255, "\U0001f511" * 255, "a b", "'", '"', "%s", *NO_WHITE_SPACE]
    )
    async def test_keys_up_to_the_bound_are_accepted(self, scene: Scene, key: str) -> None:
        """The bound counts characters, not bytes."""
        record = await scene.submit(key=key)
        assert (await scene.task(record)).key == key

    async def test_text_comes_back_as_it_was_sent(self, scene: Scene) -> None:
        """The store never looks inside payloads, and does not normalise them either."""
        text = '{"b": 1.0, "a":  "\\u0000 é e\u0301 \U0001f511 \' "}'
        record = await scene.submit(input=text)
        assert (await scene.task(record)).input == text


class TestSubmitInsideTheCallersTransaction:
    """``submit`` with ``connection``."""

    async def test_lives_with_the_callers_transaction(self, scene: Scene, backdoor: Backdoor) -> None:
        record = scene.submission(announce=True)
        async with backdoor.transaction() as connection:
            verdicts = await scene.store.submit([record], connection=connection)
        assert verdicts == [Submitted(kind="accepted", task=record.task)]
        assert (await scene.task(record)).state == "queued"
        assert len(await scene.rows("queue", record)) == len(await scene.rows("outbox", record)) == 1

    async def test_dies_with_the_callers_transaction(self, scene: Scene, backdoor: Backdoor) -> None:
        before = await scene.store.dump()
        async with refused("what the caller does next"), backdoor.transaction() as connection:
            [verdict] = await scene.store.submit([scene.submission(announce=True)], connection=connection)
            assert verdict.kind == "accepted"
            raise KeyError("the caller's own fault")
        assert stored_since(before, await scene.store.dump()) == {}

    async def test_a_key_held_already_is_answered_the_same_there(
        self, scene: Scene, backdoor: Backdoor
    ) -> None:
        held = await scene.submit()
        fresh: Submission = scene.submission()
        twin = scene.submission(key=held.key, request_digest=held.request_digest)
        async with backdoor.transaction() as connection:
            verdicts = await scene.store.submit(
                [twin, scene.submission(key=held.key), fresh], connection=connection
            )
        assert [(v.kind, v.task) for v in verdicts] == [
            ("replayed", held.task),
            ("conflict", held.task),
            ("accepted", fresh.task),
        ]

    async def test_a_refused_key_leaves_nothing_behind(self, scene: Scene, backdoor: Backdoor) -> None:
        before = await scene.store.dump()
        async with refused("an empty key in the caller's transaction"):
            async with backdoor.transaction() as connection:
                await scene.store.submit(
                    [scene.submission(), scene.submission(key="")], connection=connection
                )
        assert stored_since(before, await scene.store.dump()) == {}

    async def test_such_a_task_is_claimed_like_any_other(self, scene: Scene, backdoor: Backdoor) -> None:
        record = scene.submission()
        async with backdoor.transaction() as connection:
            await scene.store.submit([record], connection=connection)
        scene.remember(record)
        assert (await scene.claim_task(record)).epoch == 1
