"""The engine: a worker claims tasks under a lease, runs agents, and keeps their journal.

Purpose: a task outlives its process, and what it does to the outside is done once, known, and provable.

Rooms: ``worker`` claims and drains; ``session`` keeps the right to work; ``journal`` commits in groups;
``run`` is one attempt; ``context`` is what agent code touches; ``steps`` and ``effects`` are its operations;
``settling`` deals with unknowns; ``scopes`` gives operations their identity; ``wording`` says what happened;
``housekeeping`` sweeps.
"""
