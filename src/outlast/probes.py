"""Named points at every durable boundary, where a test can stop, freeze or kill the process.

In production ``reach`` is one comparison with None. A test installs a hook (``outlast.testing.probes``);
the catalogue below is complete, so that a crash suite can visit every point and a point that nobody
visits fails a test.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS: dict[str, str] = {
    "worker.claimed": "leases taken, no agent code started",
    "worker.loaded": "input and journal read, the agent about to run",
    "journal.before_flush": "a batch is collected, nothing of it sent to the store",
    "journal.after_flush": "a batch is committed, nobody told yet",
    "effects.before_intent": "the call is planned, its intent not yet on disk",
    "effects.after_intent": "the intent is on disk, the call not yet started",
    "http.before_send": "the trust check passed, the request about to leave",
    "http.after_answer": "the answer has come, the tool body not yet told",
    "effects.before_outcome": "the tool body has ended, its outcome not yet on disk",
    "effects.after_outcome": "the outcome is on disk, the agent not yet told",
    "settle.before_find": "the turn is taken, the other side not yet asked",
    "settle.after_find": "the other side has answered, the evidence not yet on disk",
    "worker.before_end": "the agent has returned, the ending not yet on disk",
    "worker.after_end": "the ending is on disk, the worker not yet told",
    "worker.before_suspend": "the task is about to give back its lease",
    "worker.after_suspend": "the lease is given back",
    "session.before_renew": "the session is about to be renewed",
    "sweeper.before_sweep": "the sweeper is about to look",
    "sweeper.after_sweep": "the sweep is committed",
    "schedules.before_fire": "schedules are taken as due, nothing of their firings stored",
    "schedules.after_fire": "their tasks are stored and their next instants set, nobody told yet",
    "submit.before_commit": "the request is checked, nothing of it stored",
    "submit.after_commit": "the task is stored, the caller not yet told",
    "children.before_submit": "a child is neither accepted as a task nor on its parent's record",
    "children.after_submit": "a child is accepted and on its parent's record, its parent not yet told",
    "approvals.before_ask": "policy wants a decision, the question not yet on disk",
    "approvals.after_ask": "the question is on disk, the call waits",
    "waits.before_take": "a signal or a child's end has been read, not yet taken on record",
    "undo.before_decision": "the task ends badly and is to undo, nothing of that on disk yet",
    "undo.after_decision": "the decision to undo is on disk, nothing undone yet",
    "fork.after_commit": "the fork is stored, the caller not yet told",
    "deliver.before": "a task's end has left something for another task, not yet delivered",
    "deliver.after": "what was left is delivered",
    "gateway.after_note": "a request is on record and may leave, its connection not yet made",
    "gateway.after_check": "its connection stands, the last look not yet taken, nothing sent",
    "gateway.after_answer": "the other side has answered the gateway, the end not yet on record",
}
"""Every point and what is true there."""

Hook = Callable[[str], None]
_hook: Hook | None = None


def install(hook: Hook | None) -> None:
    """Put a hook into force for this process; None takes it away."""
    global _hook
    _hook = hook


def reach(point: str) -> None:
    """Pass a named point."""
    if _hook is not None:
        _hook(point)
