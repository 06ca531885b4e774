"""What a caller holds of a task that it has submitted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from outlast import clock
from outlast.core.durations import Duration
from outlast.store.posting import CancelReply, Posted
from outlast.streams.tail import NEW_S
from outlast.views import EventView, TaskView

if TYPE_CHECKING:
    from outlast.app import Outlast

__all__ = ["TaskHandle"]


class TaskHandle:
    """A submitted task."""

    def __init__(self, app: Outlast, tenant: str, task: str, *, replayed: bool) -> None:
        self._app = app
        self.tenant = tenant
        self.id = task
        self.replayed = replayed
        """Whether this is an earlier task of the same key and request."""
        self._accepted = clock.monotonic()

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r}, tenant={self.tenant!r})"

    async def get(self) -> TaskView:
        """Read the task as it stands."""
        return await self._app.get(self.id, tenant=self.tenant)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the task's end; see ``Outlast.result``."""
        new = not self.replayed and clock.monotonic() - self._accepted < NEW_S
        return await self._app._result(self.id, self.tenant, timeout, new=new)

    async def signal(self, name: str, data: Any = None, *, key: str | None = None) -> Posted:
        """Send the task a signal; see ``Outlast.signal``."""
        return await self._app.signal(self.id, name, data, key=key, tenant=self.tenant)

    async def cancel(self, reason: str = "", *, by: str = "app", undo: bool = False) -> CancelReply:
        """Cancel the task; see ``Outlast.cancel``."""
        return await self._app.cancel(self.id, reason=reason, by=by, undo=undo, tenant=self.tenant)

    def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Follow the task's stream; see ``Outlast.events``."""
        return self._app.events(self.id, tenant=self.tenant, after=after)
