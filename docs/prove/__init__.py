"""The long proof: a million schedules of the simulation, then storms on both stores, and the report of both.

``__main__`` is what ``make prove`` runs. ``schedules`` and ``storms`` each know how to go on where they were
stopped; ``kept`` is the file in which both say what was done, and by which code.
"""
