"""The drill of change: undoing, trying again, forking and deploying, against faults that come meanwhile.

Purpose: show that what was done is undone once and in order or is somebody's to see to; that a retry and a
fork do not act twice; that a deploy never lets a task go on under code that its journal does not fit; and
that an instant fires once: while workers die, answers are lost, and old and new code serve side by side.

Rooms: ``table`` is the written table of what is right, a row for each fault with its reason; ``agents`` are
the drill's tools and agents in three generations of code, ``worker`` the process that serves one, ``served``
what an API process serves; ``scene`` is what a fault is played with; ``undoing``, ``rounds``, ``forking``,
``deploying``, ``rolling``, ``migrating``, ``instants`` and ``conversing`` play the faults; ``judge`` compares
with the table, ``playing`` sets the stage and plays all, ``report`` tells it.

One ticket service runs; it honours idempotency keys, so that a repeat under the same key is harmless and one
under another key is there twice. Its log is the judge, and in the end every checker looks at the store.
Workers are processes; a crash is SIGKILL, a freeze is SIGSTOP.

Not covered: code that asks for the same operations as before and does something else between them.
"""
