"""A witness between a worker and its store: writes down what is claimed, and what is written under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import Batch, Flushed, TaskWrites
from outlast.store.records import Claimed, ClaimReply, ClaimRequest, Submission, Submitted
from outlast.testing.history.writing import Writing

__all__ = ["Witness"]

_KIND: Final = "lease"


class Witness:
    """A store whose claims and flushes are written down; all else is the store's own.

    Which tasks a claim is about is known by its answer alone; one without an answer leaves a gap in the
    epochs. A batch that is sent again is the same operation, whoever may have taken over meanwhile. client:
    who asks. writing: where it is written.
    """

    def __init__(self, store: Store, writing: Writing, client: str) -> None:
        self._store = store
        self._writing = writing
        self._client = client
        self._open: dict[tuple[str, int], list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> ClaimReply:
        """See ``Store.claim``."""
        began = self._writing.now()
        reply = await self._store.claim(request, now=now)
        self._claimed(reply, began)
        return reply

    async def submit_and_claim(
        self, batch: Sequence[Submission], request: ClaimRequest, *, now: int | None = None
    ) -> tuple[list[Submitted], ClaimReply] | None:
        """See ``Store.submit_and_claim``."""
        began = self._writing.now()
        answer = await self._store.submit_and_claim(batch, request, now=now)
        if answer is not None:
            self._claimed(answer[1], began)
        return answer

    def _claimed(self, reply: ClaimReply, began: float) -> None:
        for claimed in reply.claims:
            self._writing.answered(self._invoke(claimed, "claim", at=began), claimed.epoch)

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """See ``Store.flush``."""
        name = (batch.writer, batch.number)
        if name not in self._open:
            self._open[name] = [self._invoke(writes, "write", writes.epoch) for writes in batch.writes]
        try:
            verdicts = await self._store.flush(batch, now=now)
        except BatchRejected:
            # Nothing was written, and its number is the next batch's; those asked stay without an answer.
            del self._open[name]
            raise
        for number, verdict in zip(self._open.pop(name), verdicts, strict=True):
            if verdict.kind == "accepted":
                self._writing.answered(number, "written" if verdict.state == "running" else "ended")
            elif verdict.kind == "stale":
                self._writing.answered(number, "stale")
        return verdicts

    def _invoke(self, of: Claimed | TaskWrites, *asked: Any, at: float | None = None) -> int:
        return self._writing.invoke(self._client, (_KIND, f"{of.tenant}/{of.task}"), *asked, at=at)
