"""The storm: everything goes wrong at once, under load, for as long as is asked for; and then it is judged.

Purpose: the other drills do one thing to one task and know what is right. Here processes are killed and
frozen, networks lose what they like, databases go down and come back, disks are full and versions roll, at
moments that a seed draws, while clients submit, decide, signal, cancel, try again, settle and read.

Identity: a campaign is one world of its own: a store, two ticket services, two API processes, workers and a
settler, each behind its relays; a time of storm, then of quiet. A run is as many of them as are asked for.
Every tenth has the timers that are shipped; in the others they are short, so that more fits in.

Rooms: ``world`` is what a campaign stands on, ``posts`` who works in it, ``load`` what clients do to it, and
``misfortunes`` what happens to it; ``campaign`` plays one, ``judge`` judges it, ``report`` tells.

The judges: every checker over a dump at the end, with the logs of the ticket services and all that was
acknowledged; and the histories of leases, of keys, of decisions and of streams, as clients were told them.

A full disk is one that is the store's own: an SQLite file that may not grow, or one of the two small file
systems in memory of a PostgreSQL server, for its tables and for its log. Where a machine lets nobody have
such, the report says that this was not played, and why; no disk that others use is ever filled.

Not covered: power that fails and disks that lie, since no database is killed together with its machine.
"""
