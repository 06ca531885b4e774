"""The other side of a tool: for the services that tool calls reach, and for consumers of events.

Purpose. A caller that lost an answer sends again, under the same key. ``IdempotencyMiddleware`` makes
that harmless for any ASGI service: under one key the handler works once, and every repeat gets the first
answer. ``inbox.once`` does the same for a consumer of messages, in the consumer's own transaction.

Identity. A key is (scope, ``Idempotency-Key``); the scope says whose key it is. It stands for one
request: its fingerprint is the SHA-256 of method, path and query, content type and body. A fencing epoch
belongs to (scope, ``Outlast-Task``), or to the key where no task is named.

State. A key is *working* (claimed by an insert under its primary key, with a lease), *answered*, or *not
kept* (answered, and too large or streamed, so that only its status is known). It is forgotten after its
retention, counted from its claim: a request that comes later is a new one.

Clock. The database's. The middleware's own clock decides only how long it waits.

What is fenced. Each claim has a holder that is never used again. An answer is kept only while its holder
has the key, so one that was frozen, was taken over and thaws changes nothing, and answers what its
successor did. ``Claim.confirm`` lets a handler ask for the same inside its own transaction. A request
with a lower epoch than one seen is refused before the key is looked at.

Failure by failure.

- The handler raises, hangs past ``timeout``, or answers 5xx: that is the answer, and it is kept, since
  the handler may have acted. A repeat gets it again, as with Stripe. Statuses in ``release_on`` (425,
  429, 503) say that nothing was processed: they give the key back.
- The process dies: its lease runs out, and the next request works in its place, told so by ``takeover``.
- The client goes away: the handler is finished and its answer kept, for the repeat.
- A twin while the first works: 409 with ``Retry-After``, or the first answer if it comes within ``wait``.
- The database is away before the claim: 503 with ``Retry-After``; nothing is done. Away after the
  handler: the answer is tried to be kept for one lease, and then given to the client without being kept.

Not covered. A handler that acts and dies before its answer is kept: the successor is told, and has to
look. A handler frozen in the middle that does not ``confirm``. Clients whose credentials change between
two sends have two scopes unless ``scope_of`` says otherwise. Answers are kept as they are, in the
service's database.
"""

from outlast.opening import shelf_for
from outlast.otherside import inbox
from outlast.otherside.holding import Claim
from outlast.otherside.middleware import IdempotencyMiddleware

__all__ = ["Claim", "IdempotencyMiddleware", "inbox", "shelf_for"]
