"""Simulation: whole schedules of several workers in one thread, in virtual time, drawn from a seed.

Purpose. What can go wrong between processes goes wrong in some order of events. Here every order is drawn
from a seed, a crash can fall on any await, and hours pass in milliseconds; the code that runs is the
product's own: app, engine, SQLite store, nothing of it replaced but clocks, chance, threads and the network.

    report = run_schedule(4711, faults=Faults.one_crash())
    assert not report.violations, report

Identity. A schedule is its seed and the arguments of ``run_schedule``; the same code does the same things in
the same order, in every process (``Report.digest``). A report that holds violations names the command that
runs the schedule again and shows its trace.

State. See ``schedule`` (stormy, healed, quiet), ``loop`` (whose handle is next) and ``weather`` (what may go
wrong).

Judgement. The checkers of ``outlast.testing.checkers`` over a dump of the store, the tool service's log, and
what people were told (``people``). A run that misses a move or a fault that the world promises (``coverage``)
proves nothing, and says so.

Not covered. What can only go wrong inside PostgreSQL, in real sockets, and between real processes: those have
suites of their own.
"""

from outlast.testing.simulation.loop import Node, SimulationLoop, Stuck, current_node
from outlast.testing.simulation.mixture import crowded, narrow, varied
from outlast.testing.simulation.schedule import Report, run_schedule
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import World, current_world

__all__ = [
    "Faults",
    "Node",
    "Report",
    "SimulationLoop",
    "Stuck",
    "World",
    "crowded",
    "current_node",
    "current_world",
    "narrow",
    "run_schedule",
    "varied",
]
