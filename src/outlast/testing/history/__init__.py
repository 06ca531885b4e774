"""Histories: what concurrent clients asked and were told, and whether it can have happened at all.

Purpose: a dump shows what is there in the end. What clients were told on the way may still have been wrong: a
stale read, two holders of one lease, a stream with a hole. A history is what they asked and were answered,
with the times of both, and it is judged by whether *some* order explains it in which each operation takes
effect at one instant between its invocation and its answer (Herlihy and Wing, Linearizability, 1990).

Identity: a register, as (kind, id): the lease of a task, the life of a key's task, a decision. Each is judged
by itself, since a history is linearizable if each of its registers is.

Clock: one that all clients share, in seconds; on one machine ``time.monotonic`` of any process.

Unknown answers stay open: such an operation may take effect at any time after its invocation, or never.

How: the search of Wing and Gong with the memory of Lowe (Testing for linearizability, 2017): operations that
may come next are tried one after the other, and no pair of (operations that have been, state) twice.

Not covered: what nobody wrote down. Where something unseen may move a register (a sweep, a worker), its model
says how.
"""

from outlast.testing.history.models import MODELS, decision, judge, judge_streams, lease, life
from outlast.testing.history.search import UNKNOWN, Model, Operation, Register, Unknown, stuck_at
from outlast.testing.history.witness import Witness
from outlast.testing.history.writing import History, HistoryFile, Writing, read

__all__ = [
    "MODELS",
    "UNKNOWN",
    "History",
    "HistoryFile",
    "Model",
    "Operation",
    "Register",
    "Unknown",
    "Witness",
    "Writing",
    "decision",
    "judge",
    "judge_streams",
    "lease",
    "life",
    "read",
    "stuck_at",
]
