"""The frozen records of change: retry, fork, adoption by another version, acceptance, outside sessions.

Units and payloads are those of ``outlast.store.records``.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.record import record
from outlast.store.records import TaskRef

# -- trying again ------------------------------------------------------------------------------------------


@record
class Retry:
    """Open the next round of a task that failed or was cancelled. by: ``person:<who>``.

    reopen: keys of its failed operations that are to be made again, under the same id and key. deadline_us:
    how long from now the new round may take, None for no bound.
    """

    tenant: str
    task: str
    by: str
    reason: str
    reopen: tuple[str, ...] = ()
    deadline_us: int | None = None


@record
class Retried:
    """kind ``retried``: it is queued in its next round. ``not_ended``: it lives, or has succeeded; ``state``
    says so. ``undone``: effects of it were undone, so that its journal no longer says what is outside.
    ``not_found``."""

    kind: Literal["retried", "not_ended", "undone", "not_found"]
    state: str = ""
    round: int = 0


@record
class Fork:
    """Make a new task from a prefix of another's journal.

    task: whose journal. new: the new task's id, made by the caller. before: key of the operation from which
    on the fork goes its own way; None copies everything that has ended. input: JSON text that replaces the
    input, or None. version: ANY_VERSION, the version asked for, or None for that of the task. key: the
    caller's idempotency key, among those of submissions; digest: what was asked for under it.
    """

    tenant: str
    task: str
    new: str
    before: str | None
    by: str
    reason: str
    input: str | None = None
    version: str | None = None
    deadline_us: int | None = None
    key: str | None = None
    digest: str = ""


@record
class Forked:
    """kind ``forked``: stored now, or by an earlier execution of this very record. ``replayed``: the key
    stands for this request, and ``task`` for what it made; ``conflict``: for another one. ``unsettled``:
    operations of the prefix have not ended; ``keys`` names them. ``no_operation``: there is no ``before`` in
    the journal. ``not_found``."""

    kind: Literal["forked", "replayed", "conflict", "unsettled", "no_operation", "not_found"]
    keys: tuple[str, ...] = ()
    task: str = ""


# -- versions ----------------------------------------------------------------------------------------------


@record
class VersionRow:
    """How many live tasks need an agent version. version: ANY_VERSION for those not bound yet. served_by:
    living sessions that serve it."""

    agent: str
    version: str
    queued: int
    running: int
    waiting: int
    served_by: int


@record
class Adopt:
    """Bind a task to another version of its agent.

    Compare-and-set on what the rehearsal saw: version, epoch, last_event. by: ``person:<who>``.
    """

    tenant: str
    task: str
    version: str
    seen_version: str
    seen_epoch: int
    seen_event: int
    by: str
    reason: str


@record
class Adopted:
    """kind ``adopted``: it is queued in the lane of the new version. ``running``: a worker holds it.
    ``moved``:
    something happened since it was seen. ``ended``; ``not_found``."""

    kind: Literal["adopted", "running", "moved", "ended", "not_found"]
    state: str = ""


# -- acceptance --------------------------------------------------------------------------------------------


@record
class Acceptance:
    """What a person or a checker says of a finished task's work. by: ``person:<who>`` or ``checker:<name>``.

    seen: how many verdicts on this round were seen, so that two people cannot overwrite each other.
    """

    tenant: str
    task: str
    verdict: Literal["accepted", "rejected"]
    by: str
    reason: str
    evidence: str = "{}"
    seen: int = 0


@record
class Accepted:
    """kind ``recorded``; ``conflict``: more verdicts than were seen, or one that says the same already;
    ``not_ended``: only a task that has succeeded can be judged; ``not_found``. number: verdicts there are."""

    kind: Literal["recorded", "conflict", "not_ended", "not_found"]
    number: int = 0
    state: str = ""


@record
class AcceptanceRow:
    """One verdict; the one with the highest number stands."""

    round: int
    number: int
    verdict: str
    by: str
    reason: str
    evidence: str
    at: int


# -- outside sessions --------------------------------------------------------------------------------------


@record
class OutsideRow:
    """A conversation or run at a provider that a task holds. run: '' for the session as a whole. last_event:
    the last of its events that reached the task."""

    tenant: str
    provider: str
    session: str
    run: str
    task: str
    attached_at: int
    last_event: str | None = None
    last_event_at: int | None = None


@record
class OutsideEvent:
    """Something that happened in an outside session: a callback, a webhook, an answer to a poll.

    event: its id at the provider; the same one is taken once, whichever way it came. digest: of the data.
    """

    tenant: str
    provider: str
    session: str
    run: str
    event: str
    data: str
    digest: str


@record
class OutsidePosted:
    """Where it went. kind ``accepted``, ``replayed``, ``conflict`` (same id, other data), ``not_found`` (no
    task holds that session), ``ended``, ``full``. task: whose it is."""

    kind: Literal["accepted", "replayed", "conflict", "not_found", "ended", "full"]
    task: TaskRef | None = None
