"""The drill of the other side: middleware, gateway and ledger alone against the faults they are there for.

Purpose: show that a service behind the middleware works once under a key, that a gateway lets nothing pass
that may not leave any more, and that a scope of the ledger alone makes its call once: while processes die and
freeze, twins race, clients leave, bodies are cut, and the store is away.

Rooms: ``table`` is the written table of what is right, a row for each fault with its reason; ``service`` is
a ticket service behind the middleware, ``agents`` the app of all others, ``worker`` serves it, ``script`` is
a plain script in a scope and ``sandbox`` foreign code, each a process; ``scene`` is what a fault is played
with; ``twins``, ``handlers``, ``passing`` and ``scripts`` play the faults; ``judge`` compares with the table,
``playing`` sets the stage, the gateway included, and plays all, ``report`` tells it.

The services write what they do into a log of their own, and the ticket service that scopes call has its own
too: those are the judges. In the end every checker looks at the store.

Not covered: a handler that freezes in the middle of acting and does not ask ``Claim.confirm``.
"""
