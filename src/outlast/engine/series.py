"""Where an operation stands in its retry policy; kept with the record of each attempt, so that it outlives
the run."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.core import values
from outlast.store.records import OperationRow


@dataclass(slots=True)
class Series:
    """Attempts made, and when the next may be.

    tries: sends so far. began_at: the first of them. again_at: when the next may be made, None when there may
    be none. Instants are the database's, in microseconds.
    """

    tries: int = 0
    began_at: int = 0
    again_at: int | None = 0

    @classmethod
    def of(cls, row: OperationRow | None) -> Series:
        """Read what the last attempt left on record; a new series where it left nothing."""
        if row is None or row.error is None or row.state not in ("planned", "unknown"):
            return cls()
        kept = values.decode(row.error).get("series")
        return cls() if kept is None else cls(tries=kept[0], began_at=kept[1], again_at=kept[2])

    def kept(self) -> list[int | None]:
        """Answer it as it is stored."""
        return [self.tries, self.began_at, self.again_at]
