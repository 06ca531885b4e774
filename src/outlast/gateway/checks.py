"""Whether a request may leave: what its token says against what the store says. Pure."""

from __future__ import annotations

from outlast.gateway.refusals import Refused
from outlast.store.passing import PASSED_BOUND, Passage
from outlast.tools.passing import Pass

__all__ = ["check"]

_UNDECIDED = ("pending", "approved", "rejected", "expired")


def check(said: Pass, found: Passage | None) -> None:
    """Raise Refused with the first reason why a request may not leave; return when it may."""
    if found is None:
        raise Refused("not_running", "there is no such operation")
    if found.now >= said.expires_at:
        raise Refused("token_expired", "the token was for a call whose time is over")
    if found.task_epoch != said.epoch or found.epoch != said.epoch or found.lease_epoch != said.epoch:
        raise Refused("stale_epoch", f"epoch {said.epoch} of the task is over")
    if found.task_state != "running" or found.lease_until is None or found.lease_until <= found.now:
        raise Refused("lease_over", "the worker that holds the task has not been heard of in time")
    # What is undone, is undone because of the cancel.
    if found.cancelling and found.kind != "compensation":
        raise Refused("cancelled", "a cancel of the task stands")
    if found.state != "running" or found.attempt != said.attempt:
        raise Refused("not_running", f"attempt {said.attempt} at the operation is over")
    if found.deadline_at is None or found.deadline_at <= found.now:
        raise Refused("deadline_over", "the time of the operation is over")
    if found.decision != said.decision:
        raise Refused("other_decision", "the operation on record is not the one that the token is for")
    _check_approval(said, found)
    if found.paused:
        raise Refused("paused", "a switch stands for the tool, the tenant or everything", retry_after=5)
    if len(found.notes) >= PASSED_BOUND:
        raise Refused("too_many_requests", "name further work as operations of its own")


def _check_approval(said: Pass, found: Passage) -> None:
    mine = found.approval_fingerprint == said.decision
    if said.approval is not None:
        used = found.approval_state == "used" and not found.approval_spent
        if not (mine and used and found.approval == said.approval):
            raise Refused("no_approval", "the decision that the call was made under does not stand")
    elif mine and found.approval_state in _UNDECIDED:
        # Policy let the call by itself, it says, and yet people were asked about this very call.
        raise Refused("no_approval", f"people were asked about this call, and it is {found.approval_state}")
