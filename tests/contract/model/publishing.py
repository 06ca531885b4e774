"""The model's outbox: what is to be published of tasks that are announced."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.model.kept import Kept

from outlast.store.rows import Message, Publication


class Publishing(Kept):
    """The verbs of messages."""

    def take_messages(self, limit: int) -> list[Message]:
        """Read what is to be published; of a task nothing behind a message that is parked."""
        parked = [name for name, (_, why) in self.outbox.items() if why is not None]
        return [
            Message(tenant=tenant, task=task, number=number, topic=topic, data="", created_at=0)
            for (tenant, task, number), (topic, _) in self.outbox.items()
            if not any(other[:2] == (tenant, task) and other[2] <= number for other in parked)
        ][:limit]

    def confirm_messages(self, publications: Sequence[Publication]) -> None:
        """Forget what was published, and park the others."""
        for one in publications:
            name = (one.tenant, one.task, one.number)
            if one.parked is None:
                self.outbox.pop(name, None)
            elif name in self.outbox:
                self.outbox[name] = (self.outbox[name][0], one.parked)
