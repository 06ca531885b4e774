"""The drill of effects: every effect class against every fault that can come between a call and its outcome.

Purpose: show that no tool acts twice where acting twice matters, and that nothing is guessed. What cannot be
known waits for a person, who in this drill looks into the ticket service's own book and says what is true.

Rooms: ``matrix`` is the written table of what is right, a row for each fault with its reason; ``agents`` are
the drill's tools and its agent, ``worker`` the process that serves them; ``scene`` is what a fault is played
with, ``clerk`` the person at the reconciliation queue; ``answers``, ``repeats``, ``crashes`` and ``frozen``
play a family of faults each; ``judge`` compares with the table, ``playing`` sets the stage and plays them
all, ``report`` tells it.

Two ticket services run, one that honours idempotency keys (for ``keyed``) and one that ignores them (for all
others). Their logs are the judges; each cell has an invoice of its own, so that many can be played at once.
Workers are processes; a crash is SIGKILL, a freeze is SIGSTOP.

Not covered: a service that forgets a key before its window is over, or shows an effect later than it
declares.
"""
