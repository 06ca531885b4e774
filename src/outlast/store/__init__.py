"""Where everything durable lives: one contract of verbs, two stores that keep it.

Purpose: every verb takes a batch and answers a verdict per item. PostgreSQL and SQLite agree in verbs and
verdicts, not in SQL.

Identity: every row belongs to a tenant and every key begins with it. Instants are whole microseconds since
the epoch, UTC, read from the database's clock (``at`` columns); a verb that judges by time takes ``now``,
which is None in production and set by simulations.

What is fenced: ``flush`` compares task and epoch under the head's lock, entry by entry. ``settle`` compares
(operation, attempt, turn, state) under the same lock. ``sweep`` raises epochs under the same lock.

Lock order: writer row, session row, head rows by (tenant, task), then everything else. Nothing is locked
across a call to the outside.
"""
