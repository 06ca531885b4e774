"""The drill of people: whatever a task waits for from outside, against faults that come meanwhile.

Purpose: show that a decision is for exactly what was shown and counts once, that nothing that reaches a task
is lost, and that a cancel is final: while every process dies, workers freeze and thaw, decisions race, clocks
are wrong, and people click twice.

Rooms: ``table`` is the written table of what is right, a row for each fault with its reason; ``agents`` are
the drill's tools and agents, ``worker`` the process that serves them, ``served`` what an API process serves;
``scene`` is what a fault is played with, ``restart`` the moment in which every worker dies; ``asking``,
``deciding``, ``ruling``, ``racing``, ``waiting``, ``cancelling``, ``freezing`` and ``clocks`` play the
faults; ``judge`` compares with the table, ``playing`` sets the stage and plays all, ``report`` tells it.

One ticket service runs; it ignores idempotency keys, and every tool is declared ``manual``, so that whatever
is sent twice is there twice. Its log is the judge, and in the end every checker looks at the store. Workers
are processes; a crash is SIGKILL, a freeze is SIGSTOP.

Not covered: whether people decide wisely.
"""
