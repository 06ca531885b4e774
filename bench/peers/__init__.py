"""The same drills against others: what DBOS, LangGraph and nexura-runtime make of a lost answer.

Each engine runs the same small job, as its own documentation recommends, in processes of its own that are
killed and frozen. The other side is the Recorder; its log says how often a ticket was made. ``install`` gets
the engines, ``drills`` plays, ``judge`` judges, ``part`` is what every engine's process shares, and each
engine has one file. Nothing here imports Outlast where another engine's process has to load it.
"""
