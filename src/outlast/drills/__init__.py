"""Drills: faults done on purpose to real processes, a real database and a real tool service.

Purpose: show, and keep showing, that a task survives the death of whatever carried it. Nothing is simulated
here: workers are processes, a crash is SIGKILL, a freeze is SIGSTOP.

Rooms: ``fleet`` starts and ends processes; ``serving`` is what runs inside them; ``timeline`` merges what
everybody wrote down; ``demo_app``, ``demo_worker`` and ``demo_client`` are the worked example; and
``reimbursement`` tells it, window by window. ``storm`` lets everything happen at once.

The judge is the log of the service on the other side, never our own database.
"""
