"""The client: an app that runs elsewhere, by its HTTP API and with the methods that it has in process.

Purpose: service code, scripts and tests say the same whether the app is opened in their own process or
reached over HTTP. What comes back are the same views, and what is refused raises the same errors.

Identity: an API key says the tenant, who asks, and their roles; so no method takes any of them, but ``by``
where the service believes it: on one machine, without keys.

State: none but connections; nothing is kept between calls.

Failure by failure: the service is away, or a proxy answers for it (502, 503, 504): what may be repeated is,
with growing pauses, until the service has been away for ``patience``; then Unavailable is raised. A submit
without a key gets one, so that its repeats are one task. What must not be repeated (another round, a fork, a
rule, a verdict) is repeated only where the connection was never made. A stream that breaks goes on behind the
last number that was seen, without gap or repeat.

Not covered: registering, workers, the caller's own transaction, typed results (they come as plain values),
the ledger alone.
"""

from __future__ import annotations

from outlast.connecting.client import PATIENCE_S, Client, ClientTask

__all__ = ["PATIENCE_S", "Client", "ClientTask"]
