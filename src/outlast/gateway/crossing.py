"""One request on its way through: what is known of it, what it carries, and what its end proves."""

from __future__ import annotations

from typing import Any, Final

from outlast import clock
from outlast.core import ids, passages, values
from outlast.core.outcome import Failed
from outlast.errors import InvalidKey
from outlast.gateway.asking import Asked, RawHeaders, end_to_end
from outlast.gateway.refusals import Refused
from outlast.store.passing import Passage
from outlast.tools.classify import classify_response
from outlast.tools.passing import Pass

__all__ = ["Crossing", "says_of", "sent_headers"]

# Made here, of what the store says; what the client says of them goes no further.
_OURS: Final = frozenset(
    {
        b"host", b"content-length", b"expect", b"idempotency-key", b"traceparent", b"via", b"outlast-token",
        b"outlast-task", b"outlast-epoch", b"outlast-deadline", b"outlast-gateway",
    }
)  # fmt: skip
# A twin may be under way there, so a conflict proves nothing.
_PROVES_NOTHING: Final = frozenset({"conflict"})


class Crossing:
    """One request on its way through.

    key, quoted: what the client itself named as its key, and how. noted: that it passed is on record.
    looked_at, ends_at: when the store was last asked, and when the call's time is over, by the monotonic
    clock. answering: its client has got a status. ended: its end was recorded.
    """

    __slots__ = (
        "answering", "asked", "began_at", "bytes", "client_gone", "ended", "ends_at", "fingerprint", "found",
        "id", "key", "looked_at", "noted", "quoted", "said", "status", "token",
    )  # fmt: skip

    def __init__(self, *, asked: Asked, token: str, said: Pass) -> None:
        self.asked = asked
        self.token = token
        self.said = said
        self.id = clock.new_id("req")
        self.began_at = clock.monotonic()
        self.fingerprint = ""
        self.key: str | None = None
        self.found: Passage | None = None
        self.looked_at = self.ends_at = 0.0
        self.status: int | None = None
        self.bytes = 0
        self.quoted = self.noted = self.answering = self.ended = self.client_gone = False

    @property
    def what(self) -> str:
        """Name the request in a text: method, host and path."""
        return f"{self.asked.method} {self.asked.to.authority}{self.asked.to.path}"

    @property
    def notes(self) -> list[passages.Noted]:
        """What the store holds of the operation's requests, as it was last looked at."""
        rows = () if self.found is None else self.found.notes
        return [passages.Noted(attempt=row.attempt, data=values.decode(row.data)) for row in rows]

    @property
    def alone(self) -> bool:
        """Whether no other request of the operation that may act has passed, as far as was seen."""
        return all(
            note.get("request") == self.id
            for note in self.notes
            if note.get("phase") == "passed" and note.get("acts")
        )

    def read_key(self) -> None:
        """Read the key that the client named, where it could be the operation's or a part of it.

        It is kept with the note, as nothing else is that a client says in a header. Whether it is the
        operation's, the store's row says: one of another task's is that of a call which a fork took over, or
        of no account.
        """
        bare, self.quoted = _bare_key(self.asked)
        task, _, key = bare.partition(":")
        try:
            ids.parse_id(task, prefix=ids.TASK)
            ids.check_key(bare, "Idempotency-Key")
        except InvalidKey:
            return
        if passages.part_of(self.said.key, key):
            self.key = bare


def _bare_key(asked: Asked) -> tuple[str, bool]:
    """Answer the key that a request names, empty for none or several, and whether it was quoted."""
    given = [value.decode("latin-1") for name, value in asked.headers if name.lower() == b"idempotency-key"]
    if len(given) != 1:
        return "", False
    bare = given[0].strip()
    if bare.startswith('"') and bare.endswith('"') and len(bare) > 1:
        # RFC 9651 section 3.3.3. A key with what would be escaped there is no key of ours.
        return bare[1:-1], True
    return bare, False


def sent_headers(crossing: Crossing, seconds: float) -> RawHeaders:
    """Make the headers of the request as it is sent."""
    asked, said, found = crossing.asked, crossing.said, crossing.found
    assert found is not None
    operation = ids.sent_key(said.task, said.key, found.idempotency_key)
    key = crossing.key or ""
    if not passages.part_of(operation, key):
        key = passages.keys_of(operation, crossing.notes).get(crossing.fingerprint, operation)
    elif crossing.quoted:
        key = f'"{key}"'
    left_ms = int(seconds * 1000)
    for name, value in asked.headers:
        if name.lower() == b"outlast-deadline" and value.isdigit():
            left_ms = min(left_ms, int(value))
    ours = {
        "Idempotency-Key": key,
        "Outlast-Task": said.task,
        "Outlast-Epoch": str(said.epoch),
        "Outlast-Deadline": str(left_ms),
        "Via": "1.1 outlast",
        **({} if found.trace is None else {"traceparent": found.trace}),
    }
    return [
        *((name.encode("ascii"), value.encode("latin-1")) for name, value in ours.items()),
        *end_to_end(asked.headers, _OURS),
    ]


def says_of(crossing: Crossing, refused: Refused | None) -> Any:
    """Say what the end of a request proves: ``happened``, ``did_not_happen``, or nothing (None)."""
    if refused is not None:
        return None if refused.verdict == "unknown" else "did_not_happen"
    assert crossing.status is not None
    said = classify_response(crossing.status, {}, 0.0)
    if said is None:
        return "happened"
    if isinstance(said, Failed) and said.kind not in _PROVES_NOTHING:
        return "did_not_happen"
    return None
