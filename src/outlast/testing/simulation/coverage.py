"""What a schedule has shown: which moves of the transition tables, and which faults, it came through.

Purpose: a run that proves nothing must not look like one that does. What the world promises to reach is
listed here by name; a run that misses any of it is void.

Identity: a move is a machine's (state, command), a fault its kind.

State: read once, from the dump at the end of a schedule: events in their order, the attempts, the ledger and
the questions. Nothing is told by the code under test beyond what it stores.

Not covered: moves that the world does not make yet; ``UNREACHED`` names each with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import orjson

from outlast.core.transitions import APPROVAL, ATTEMPT, MACHINES, OPERATION, TASK, Machine
from outlast.testing.simulation.relay import BROKER_FAULTS
from outlast.testing.simulation.weather import Kind, StoreFault, ToolFault, WaitForm

__all__ = ["FAULTS", "PROMISED", "UNREACHED", "Coverage", "Move", "moves_of"]

Move = tuple[str, str, str]
"""(machine, state, command)."""
Row = Mapping[str, Any]
CALLS: Final = ("tool", "compensation")

_TRUTHFUL: Final = "the operator settles truthfully, and only what is not under way any more"
UNREACHED: Final[dict[Move, str]] = {
    ("operation", "succeeded", "contradict"): _TRUTHFUL,
    ("operation", "failed", "contradict"): _TRUTHFUL,
    ("operation", "planned", "contradict"): _TRUTHFUL,
    ("operation", "approved", "contradict"): _TRUTHFUL,
    ("message", "parked", "unpark"): "no verb of the store does it yet",
}
"""Moves that the world does not make, and why."""

PROMISED: Final[frozenset[Move]] = frozenset(
    (machine.name, *pair) for machine in MACHINES for pair in machine.moves
) - set(UNREACHED)
"""Moves that a run over the world's own mixture of schedules has to come through."""

FAULTS: Final[frozenset[str]] = frozenset(
    [f"store {kind}" for kind in get_args(StoreFault) if kind != "none"]
    + [f"tool {kind}" for kind in get_args(ToolFault) if kind != "none"]
    + [f"wait {form}" for form in get_args(WaitForm)]
    + ["hint lost", "intent at the brink"]
    + [f"worker {kind}" for kind in get_args(Kind)]
    + [f"broker {kind}" for kind in BROKER_FAULTS]
    + ["relay crash", "relay freeze", "policy away"]
)
"""Faults that such a run has to play."""


@dataclass(slots=True)
class Coverage:
    """What the schedules of a run have shown together."""

    moves: set[Move] = field(default_factory=set)
    faults: set[str] = field(default_factory=set)

    def add(self, moves: Iterable[Move], faults: Iterable[str]) -> None:
        """Count a schedule in."""
        self.moves.update(moves)
        self.faults.update(faults)

    @property
    def missing(self) -> list[str]:
        """What was promised and not shown, in words."""
        moves = [" ".join(move) for move in sorted(PROMISED - self.moves)]
        return moves + sorted(FAULTS - self.faults)


def moves_of(dump: Mapping[str, Sequence[Row]]) -> frozenset[Move]:
    """Read from a dump which moves its tasks have made."""
    found = _Moves()
    for row in dump["attempts"]:
        found.add(ATTEMPT, "running", _command(ATTEMPT, "running", row["end"]))
    ledger: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in dump["operations"]:
        ledger[row["task"]][row["key"]] = row
    questions = {row["id"]: row for row in dump["approvals"]}
    streams: dict[str, list[Row]] = defaultdict(list)
    for row in dump["events"]:
        streams[row["task"]].append(row)
    for task, rows in streams.items():
        rows.sort(key=lambda row: int(row["number"]))
        said = [(str(row["kind"]), orjson.loads(row["data"])) for row in rows]
        _task(found, said)
        _operations(found, said, ledger[task], questions)
        _questions(found, said)
    for row in questions.values():
        if row["used_at"] is not None:
            found.add(APPROVAL, "approved", "use")
    return frozenset(found.seen)


class _Moves:
    def __init__(self) -> None:
        self.seen: set[Move] = set()

    def add(self, machine: Machine, state: str, command: str) -> str:
        """Note a move if the table has it; answer the state after it."""
        if (state, command) in machine.moves:
            self.seen.add((machine.name, state, command))
            return machine.moves[state, command]
        return state


def _command(machine: Machine, state: str, target: str) -> str:
    return next(name for (source, name), to in machine.moves.items() if (source, to) == (state, target))


Said = Sequence[tuple[str, dict[str, Any]]]


def _task(found: _Moves, said: Said) -> None:
    state, ended = "queued", ""
    for kind, data in said:
        word = kind.partition(".")[2]
        command = ""
        if kind == "attempt.started":
            command = "claim"
        elif kind.startswith("attempt."):
            ended = word
        elif kind == "task.queued":
            command = {"released": "release", "lost": "lose"}.get(ended, "suspend")
        elif kind == "task.waiting":
            command = "suspend"
        elif kind in ("task.woken", "task.retried"):
            command = {"woken": "wake", "retried": "retry"}[word]
        elif kind == "task.cancel_requested":
            command = "undo" if data.get("undo") else "cancel"
        elif kind == "task.adopted":
            command = "adopt"
        elif kind == "task.succeeded":
            command = "succeed"
        elif kind == "task.cancelled":
            command = "end_cancelled" if state == "running" else "cancel"
        elif kind == "task.failed":
            command = {"deadline_exceeded": "expire", "crash_loop": "park"}.get(str(data.get("code")), "fail")
        if command:
            state = found.add(TASK, state, command)
        if kind == "task.queued":
            # A suspension whose wait was over at once is in the queue again.
            state = found.add(TASK, state, "wake") if state == "waiting" else "queued"


def _operations(found: _Moves, said: Said, ledger: Mapping[str, Row], questions: Mapping[str, Row]) -> None:
    states: dict[str, str] = {}

    def move(key: str, command: str) -> None:
        states[key] = found.add(OPERATION, states.get(key, "planned"), command)

    for kind, data in said:
        if kind in ("approval.requested", "approval.approved"):
            row = questions.get(data["approval"])
            if row is not None and row["subject"] == "call":
                if kind == "approval.approved":
                    move(row["key"], "approve")
                elif states.get(row["key"]) == "approved":
                    states[row["key"]] = "planned"
            continue
        key = str(data.get("operation"))
        if not kind.startswith("operation.") or key not in ledger or ledger[key]["kind"] not in CALLS:
            continue
        _call(move, states, kind, key, data)
    for key, row in ledger.items():
        # What happens to the calls of a task that has ended stands in the ledger alone.
        if row["kind"] in CALLS and states.get(key) in ("running", "unknown"):
            if states[key] == "running" and row["state"] != "running":
                move(key, "lose")
            if row["state"] in ("succeeded", "failed"):
                move(key, "settle_happened" if row["state"] == "succeeded" else "settle_did_not_happen")


def _call(move: Any, states: dict[str, str], kind: str, key: str, data: dict[str, Any]) -> None:
    state = states.get(key, "planned")
    match kind.partition(".")[2]:
        case "started":
            if state == "failed":
                move(key, "reopen")
            move(key, "resend" if state == "unknown" else "start")
        case "succeeded":
            move(key, "succeed")
        case "failed":
            move(key, "fail" if state == "running" else "refuse")
        case "unknown":
            move(key, "lose")
            states[key] = "unknown"
        case "retrying" if not str(data.get("reason", "")).startswith("unknown;"):
            move(key, "back_off")
        case "settled" if data.get("verdict") in ("happened", "did_not_happen"):
            move(key, f"settle_{data['verdict']}")
        case "settled" if data.get("verdict") == "send_again":
            move(key, "send_again")
        case "contradicted":
            move(key, "contradict")


def _questions(found: _Moves, said: Said) -> None:
    states: dict[str, str] = {}
    commands = {"approved": "approve", "rejected": "reject", "expired": "expire", "withdrawn": "withdraw"}
    for kind, data in said:
        if not kind.startswith("approval."):
            continue
        word, name = kind.partition(".")[2], data["approval"]
        if word in commands:
            states[name] = found.add(APPROVAL, states.get(name, "pending"), commands[word])
