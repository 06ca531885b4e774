"""The parts of people and of the clock: facts, decisions, change, messages, schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.explorer.exploring import Act
from tests.explorer.parts import ACTS, VERBS, acts, always, union
from tests.explorer.scenes import Props

from outlast.core import ids
from outlast.store.changing import Acceptance, Adopt, Fork, OutsideEvent, Retry
from outlast.store.posting import Cancel, Heard
from outlast.store.reconciling import Pause
from outlast.store.records import (
    TaskRef,
)
from outlast.store.rows import Publication
from outlast.store.scheduling import DueRequest, PutSchedule, SetSchedule
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.scene import SECOND

# ── facts and people ────────────────────────────────────────────────────────────────────────────────


@acts("post")
def _post(props: Props) -> Any:
    return [props.scene.signal(props.claimed, "go", key="key-1")]


@acts("post", "post_family")
def _post_family(props: Props) -> Any:
    return [props.scene.signal(one, "go") for one in (props.parent, props.claimed, props.kid)]


@acts("post", "post_up")
def _post_up(props: Props) -> Any:
    return [props.scene.signal(one, "go") for one in (props.parent, props.claimed)]


@acts("post", "post_down")
def _post_down(props: Props) -> Any:
    return [props.scene.signal(one, "go") for one in (props.claimed, props.kid)]


@acts("post", "post_around")
def _post_around(props: Props) -> Any:
    return [props.scene.signal(one, "go") for one in (props.kid, props.parent)]


@acts("cancel")
def _cancel(props: Props) -> Any:
    return [Cancel(**props.of, by="person:eve", reason="enough")]


@acts("cancel", "cancel_undo")
def _cancel_undo(props: Props) -> Any:
    return [Cancel(**props.of, by="person:eve", reason="undo", undo=True)]


@acts("cancel", "cancel_family")
def _cancel_family(props: Props) -> Any:
    return [
        Cancel(tenant=one.tenant, task=one.task, by="person:eve", reason="all")
        for one in (props.kid, props.claimed, props.parent)
    ]


@acts("news", loose=True, again=always)
def _news(props: Props) -> Any:
    return props.session, [Heard(**props.of, facts=props.facts)]


def _deliver(props: Props) -> Act:
    """Deliver; and when it is done again, as long as there is something."""

    async def play(store: Any, times: int) -> Any:
        delivered = [await store.deliver(100)]
        while times > 1 and (delivered[-1].told or delivered[-1].cancelled or delivered[-1].more):
            delivered.append(await store.deliver(100))
        return delivered

    return Act(
        name="deliver",
        verb="deliver",
        play=play,
        loose=True,
        again=always,
        merge=lambda answers: union([one for answer in answers for one in answer]),
    )


ACTS["deliver"], VERBS["deliver"] = _deliver, "deliver"


@acts("decide", "decide_approve")
def _approve(props: Props) -> Any:
    return [props.scene.decision(props.asked, "approve")]


@acts("decide", "decide_reject")
def _reject(props: Props) -> Any:
    return [props.scene.decision(props.asked, "reject")]


# What flush_ask asks: before that there is nothing to decide, also for whoever has looked before.
@acts("decide", "decide_next", loose=True)
def _next(props: Props) -> Any:
    asked = replace(props.asked, id=f"{props.claimed.task}:asked~2", fingerprint="fingerprint-2")
    return [props.scene.decision(asked, "approve")]


@acts("put_rule")
def _put_rule(props: Props) -> Any:
    return props.scene.rule("pay", "deny")


@acts("withdraw_rule")
def _withdraw_rule(props: Props) -> Any:
    return props.claimed.tenant, 1, "person:ann", "no more"


def _switch(props: Props) -> Pause:
    return Pause(tenant=props.claimed.tenant, scope="tool:pay", reason="audit", by="person:ann")


# A batch that has looked for switches is not held up by one that comes now.
@acts("pause", loose=True)
def _pause(props: Props) -> Any:
    return _switch(props)


@acts("resume", loose=True)
def _resume(props: Props) -> Any:
    return _switch(props)


# ── change ──────────────────────────────────────────────────────────────────────────────────────────


@acts("retry")
def _retry(props: Props) -> Any:
    return [
        Retry(
            **props.of,
            by="person:ann",
            reason="again",
            reopen=("open",),
        )
    ]


@acts("fork")
def _fork(props: Props) -> Any:
    return [
        Fork(
            **props.of,
            new=ids.new_id(ids.TASK, 1_700_000_900_004, 4),
            before="open",
            by="person:ann",
            reason="another way",
        )
    ]


@acts("adopt", views=("read_lanes",))
def _adopt(props: Props) -> Any:
    return [
        Adopt(
            **props.of,
            version="v2",
            seen_version=props.task.version,
            seen_epoch=props.task.epoch,
            seen_event=props.task.last_event,
            by="person:ann",
            reason="a new version",
        )
    ]


@acts("wake")
def _wake(props: Props) -> Any:
    return TaskRef(**props.of), "person:ann", "try again"


@acts("accept")
def _accept(props: Props) -> Any:
    return [
        Acceptance(
            **props.of,
            verdict="accepted",
            by="person:ann",
            reason="good",
        )
    ]


@acts("post_outside")
def _post_outside(props: Props) -> Any:
    return [
        OutsideEvent(
            tenant=props.claimed.tenant,
            provider="provider-1",
            session="session-1",
            run="",
            event="event-1",
            data='{"said":1}',
            digest="digest-event",
        )
    ]


# ── messages, schedules, the clock ──────────────────────────────────────────────────────────────────


@acts("confirm_messages")
def _confirm_messages(props: Props) -> Any:
    return [Publication(**props.of, number=1)]


@acts("put_schedule")
def _put_schedule(props: Props) -> Any:
    made = replace(props.schedule.schedule, input='{"changed":1}')
    return PutSchedule(schedule=made, next_at=props.scene.now, by="ann", revision=props.schedule.revision)


@acts("set_schedule")
def _set_schedule(props: Props) -> Any:
    held = props.schedule.schedule
    return SetSchedule(tenant=held.tenant, id=held.id, command="pause", by="ann", reason="holiday")


@acts(
    "due_schedules",
    loose=True,
    views=("load_schedules",),
    again=always,
    merge=lambda replies: sorted(repr(row.schedule) for one in replies for row in one.rows),
)
def _due_schedules(props: Props) -> Any:
    return DueRequest(limit=5, lease_us=30 * SECOND)


@acts("fire_schedules")
def _fire_schedules(props: Props) -> Any:
    return [scheduling.firing(props.scene, props.schedule)]


def _minute(props: Props) -> Act:
    return Act(name="a_minute_passes", verb="time", play=None, us=61 * SECOND, loose=True)


ACTS["a_minute_passes"], VERBS["a_minute_passes"] = _minute, "time"
