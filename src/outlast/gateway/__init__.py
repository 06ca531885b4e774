"""The gateway: what stands between code that is not ours and the services that it calls.

Purpose. A worker looks at its lease before each send; code in a sandbox, or in another process, cannot. It is
given a token instead (``ToolCall.gateway_token``) and sends through the gateway, which looks for it, at the
moment of each request. So a sender that was frozen, taken over and thaws, is refused.

Identity. A token names tenant, task, epoch, operation, attempt, the digest of what was decided, where it may
go and until when, under the app's signature. A request has an id of its own, and a fingerprint: the SHA-256
of method, URL and body. It carries the operation's key, which is the one that was sent before where a
fork has taken the call over; see ``core.passages`` for what further requests carry.

What is checked, in one transaction under the head's lock, and again if more than ``fresh_s`` have passed
when the connection stands: the task runs under that epoch, with a lease whose session lives; no cancel
stands; the operation is running under that attempt, its deadline lies ahead and its decision is the token's;
where a decision of people was asked for, this intent consumed it; no pause switch stands. Before that:
signature and expiry, the allow list of the operator and that of the token, and the address: a name is looked
up once and connected to at that very address, which is public or in a range that the operator lists.

Clock. The database's decides on leases, deadlines and expiry. The gateway's own, which goes on while it is
stopped, decides only how old its look at the store is, and when the time that was left is over.

State. None of its own. What passed, and how it ended, is evidence of the operation (source ``gateway``):
``passed`` is on disk with the look, ``ended`` before the answer is complete. It says *happened* or *did not
happen* only where the status proves it of everything that passed.

What is fenced. Nothing is written but evidence, which needs no lease.

Failure by failure.

- The store is away: 503, and nothing is sent. It goes away after the send: the answer is passed on, its end
  is not on record, and what passed counts as open.
- The gateway dies: before the look nothing was sent. After it ``passed`` is on record without an end.
- The other side hangs: the connection is closed at the call's deadline, 504. It breaks off: 502, or an answer
  that is cut as it came.
- The client goes away: the request is finished and its end recorded.
- A name that resolves otherwise the second time: refused then. Redirects are passed on, never followed.

Not covered. The gateway itself frozen between its last look and the first byte: it stands in a place of
yours, not in the sandbox, and has one such moment a request. Code that reaches the network by another way:
give a sandbox no other. Tunnels (CONNECT) are refused, since nothing in them can be seen.
"""

from outlast.gateway.proxy import Gateway
from outlast.gateway.settings import GatewaySettings

__all__ = ["Gateway", "GatewaySettings"]
