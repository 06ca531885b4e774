"""The frozen records of facts that reach a task from outside: signals, its children's ends, a cancel, the end
of a switch.

A fact is posted under the task's head: it raises the head's ``facts``, wakes a task that waits, and is told
to the worker of one that runs. Units and payloads are those of ``outlast.store.records``.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.record import record
from outlast.store.records import TaskRef

MAX_INBOX = 10_000
"""Signals that may lie before a task without being taken; more are refused as ``full``."""


@record
class Signal:
    """A message for a task, in the order in which it was accepted.

    name: what a wait asks for. key: deduplicates within (task, name), for as long as the task is kept; None
    never does. digest: of the data, which tells a repeat from another message under the same key. operation:
    the one wait that it can answer; without it nothing is answered any more.
    """

    tenant: str
    task: str
    name: str
    data: str
    digest: str
    key: str | None = None
    operation: str | None = None


@record
class Posted:
    """The verdict on one signal, by the first that applies.

    kind ``not_found``: no such task. ``replayed``: the key was used for the same data, whatever became of the
    task since. ``conflict``: the key was used for other data. ``ended``: the task is over; ``state`` says
    how. ``over``: the wait that it would answer has ended, or its time has, by the database's clock;
    ``state`` is that of the wait. ``full``: MAX_INBOX signals lie there already. ``accepted``: stored now.
    number: its place in the task's inbox; with ``replayed`` and ``conflict`` that of the one that has the
    key.
    """

    kind: Literal["accepted", "replayed", "conflict", "not_found", "ended", "over", "full"]
    number: int = 0
    state: str = ""


@record
class Cancel:
    """Ask that a task end as cancelled. by: ``person:<who>`` or ``parent``.

    undo: a task that has begun undoes what it has done first: it is marked, goes back to a worker (queued, if
    it waited), and releases, losses and waits follow the usual table until it ends, as cancelled.
    """

    tenant: str
    task: str
    by: str
    reason: str = ""
    undo: bool = False


@record
class CancelReply:
    """The answer to a cancel, decided on the task's head.

    kind ``cancelled``: it was queued or waiting and has ended now. ``requested``: it runs, or is to undo
    what it has done; the mark is on disk, no new intent but that of an undo starts, and it ends as cancelled
    and as nothing else. ``already``: it had been cancelled before. ``ended``: it ended otherwise; ``state``
    says how. ``not_found``. state: that of the task now. A repeat while the mark stands is ``requested``
    again and changes nothing: the first reason stays.
    """

    kind: Literal["cancelled", "requested", "already", "ended", "not_found"]
    state: str = ""


@record
class Heard:
    """What a worker has heard of a task: everything up to ``facts``."""

    tenant: str
    task: str
    facts: int


@record
class News:
    """Something was posted for a task that runs. cancelling: a cancel stands. undoing: what it has done is to
    be undone before it ends."""

    tenant: str
    task: str
    facts: int
    cancelling: bool
    undoing: bool = False


@record
class Delivered:
    """What one delivery did: tasks that were told (parents of their children's ends, others that no switch
    holds them back any more), children that were cancelled (or marked, where they run) since their parent had
    ended. What is left for a task that has ended is gone
    without a word. more: there is more to deliver."""

    told: tuple[TaskRef, ...] = ()
    cancelled: tuple[TaskRef, ...] = ()
    more: bool = False
