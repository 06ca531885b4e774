"""Checkers of what people decide: one decision, one effect, of the very parameters that were seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlast.core import ids
from outlast.core.transitions import TASK
from outlast.testing.checkers.seen import Evidence, Row, operation_of, where

OPEN = ("pending", "approved")


def a_decision_authorises_one_effect(seen: Evidence) -> Iterator[str]:
    """A decision authorises at most one effect, of its own fingerprint, in its own time; and nothing is sent
    while people are still asked, or under what they said and nobody has used."""
    ledger = {operation_of(row): row for row in seen.rows("operations")}
    for name, asked in _by_operation(seen).items():
        operation = ledger.get(name)
        if operation is None:
            yield f"{where(name)}: people were asked about it, and it is not in the ledger"
            continue
        used = [row for row in asked if row["state"] == "used"]
        for row in asked:
            yield from _one(row)
        if len(used) > operation["attempt"]:
            yield f"{where(name)}: {len(used)} decisions were used for {operation['attempt']} attempts"
        for row in used:
            if operation["intent_at"] is not None and row["used_at"] > operation["intent_at"]:
                yield f"{where(name)}: question {row['number']} was used after the last intent"
        for row in used:
            if row["used_at"] == operation["intent_at"] and row["fingerprint"] != operation["decision"]:
                yield (
                    f"{where(name)}: was sent as {operation['decision']},"
                    f" and what was decided is {row['fingerprint']}"
                )
        last = max((row["number"] for row in used), default=0)
        for row in asked:
            # A refusal is spent once a person has settled the call since, as to be sent again too.
            refused = row["state"] == "rejected" and not row["spent"]
            over = refused and row["number"] > last and operation["intent_at"] is not None
            if over and operation["intent_at"] > row["decided_at"]:
                yield f"{where(name)}: was sent after question {row['number']} was rejected"
            asks = row["state"] in OPEN and operation["intent_at"] is not None
            if asks and operation["intent_at"] > row["created_at"]:
                yield f"{where(name)}: was sent while question {row['number']} was open"
        yield from _outside(seen, name, operation, used)


def _one(row: Row) -> Iterator[str]:
    """Look at one question by itself."""
    what = f"{where(row)}: question {row['number']}"
    if row["id"] != f"{row['task']}:{row['key']}~{row['number']}":
        yield f"{what} has the id {row['id']}"
    if (row["state"] == "used") != (row["used_at"] is not None):
        yield f"{what} is {row['state']} and was used at {row['used_at']}"
    decided = row["state"] in ("approved", "rejected", "used")
    if decided and (row["decided_at"] is None or row["decided_by"] is None):
        yield f"{what} is {row['state']} by nobody"
    if row["state"] == "pending" and row["decided_at"] is not None:
        yield f"{what} is pending and was decided at {row['decided_at']}"
    for moment in ("decided_at", "used_at"):
        if None not in (row[moment], row["expires_at"]) and row[moment] >= row["expires_at"]:
            yield f"{what}: its {moment} is not before its time was over"
    if row["state"] == "used" and row["decided_at"] is not None and row["used_at"] < row["decided_at"]:
        yield f"{what} was used before it was decided"
    # A no is spent as a yes is: whoever settles an unknown as to be sent again has people asked again.
    if row["spent"] and row["state"] not in ("used", "rejected", "expired"):
        yield f"{what} is spent and {row['state']}"


def _outside(seen: Evidence, name: tuple[str, str, str], operation: Row, used: list[Row]) -> Iterator[str]:
    """Compare with the other side's log: every effect of a call that began under a decision has one."""
    if seen.calls is None or not used:
        return
    if operation["first_intent_at"] != min(row["used_at"] for row in used):
        return
    _, task, key = name
    sent = ids.sent_key(task, key, operation["idempotency_key"])
    effects = {call.effect_id for call in seen.calls if call.key == sent and call.effect_id}
    if len(effects) > len(used):
        yield f"{where(name)}: has {len(effects)} effects outside under {len(used)} decisions"


def questions_end_with_their_tasks(seen: Evidence) -> Iterator[str]:
    """At most one question about an operation is open, and none of a task that has ended.

    An answered question stays as it was answered.
    """
    for name, asked in _by_operation(seen).items():
        waiting = [row for row in asked if row["state"] in OPEN]
        if len(waiting) > 1:
            yield f"{where(name)}: {len(waiting)} questions about it are open"
        head = seen.heads.get(name[:2])
        for row in waiting:
            answered = row["subject"] == "question" and row["state"] == "approved"
            if head is not None and head["state"] in TASK.final and not answered:
                yield f"{where(name)}: question {row['number']} is {row['state']} in a task that has ended"


def decisions_are_their_voters(seen: Evidence) -> Iterator[str]:
    """What is approved was agreed to by as many as have to, and nobody counts twice or for themselves."""
    votes: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in seen.rows("votes"):
        votes[row["tenant"], row["approval"]].append(row)
    questions = {(row["tenant"], row["id"]): row for row in seen.rows("approvals")}
    for (tenant, approval), cast in votes.items():
        if (tenant, approval) not in questions:
            yield f"tenant {tenant}: {len(cast)} votes on {approval}, which nobody asked"
        numbers = sorted(row["number"] for row in cast)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"tenant {tenant}: the votes on {approval} are {numbers}"
    for name, row in questions.items():
        what = f"{where(row)}: question {row['number']}"
        # Those who agreed since it was last changed are the last ones.
        words = sorted(votes[name], key=lambda vote: -int(vote["number"]))
        standing = [vote for vote in words if vote["verdict"] == "approve"][: row["votes"]]
        agreed = {vote["who"] for vote in standing if vote["fingerprint"] == row["fingerprint"]}
        if row["votes"] != len(agreed):
            yield f"{what} counts {row['votes']} votes, and {len(agreed)} people agreed to what it asks"
        if row["state"] in ("approved", "used") and len(agreed) < row["quorum"]:
            yield f"{what} is {row['state']} by {len(agreed)} of {row['quorum']}"
        rejected = any(vote["verdict"] == "reject" for vote in votes[name])
        if rejected != (row["state"] == "rejected"):
            yield f"{what} is {row['state']}, and somebody {'did' if rejected else 'did not'} reject it"
        if row["four_eyes"] and row["requester"] in {vote["who"] for vote in votes[name]}:
            yield f"{what} was decided by whoever asked"


def _by_operation(seen: Evidence) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in seen.rows("approvals"):
        found[operation_of(row)].append(row)
    return found
