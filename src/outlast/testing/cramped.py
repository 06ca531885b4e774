"""A PostgreSQL whose disks are small, its own, and can be filled.

Purpose: what happens when a disk is full can be seen without filling one that others use.

Failure by failure: the disk of the data is full: a statement that needs room fails (SQLSTATE 53100), all
others go on. The disk of the log is full: the server stops by itself (PANIC), and its restart fails until
there is room; as a service manager would, its supervisor starts it again and again. Now and then PostgreSQL
18 does not even stop after that failure, but hangs: one that has room and takes no statement for
``HANGS_AFTER_S`` is killed and started, as a watchdog would.

Not covered: disks that are slow, or lie.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Final, get_args

from outlast.testing.servers import EmbeddedPostgres, ServerError
from outlast.testing.small_disks import Room, entering, home_of, room_of

__all__ = ["CrampedPostgres"]

_BALLAST: Final = "ballast"
_PATIENCE_S: Final = 60.0
HANGS_AFTER_S: Final = 15.0
"""Longer than a server with so little in it recovers for on a loaded machine."""
_CHUNK: Final = 1 << 24
_PAGE: Final = 4096


class CrampedPostgres(EmbeddedPostgres):
    """An ``EmbeddedPostgres`` on two small disks of its own, which ``fill`` fills and ``empty`` empties.

    Args:
        follows: see ``EmbeddedPostgres``; the standby has disks of its own.

    Raises:
        ServerError: as ``EmbeddedPostgres``; and where there can be no such disks, see ``why_not``.
    """

    # A segment of the log is small, so that one is used up, and its successor missed, within moments.
    _initdb = ("--wal-segsize=1",)

    def __init__(self, *, follows: EmbeddedPostgres | None = None) -> None:
        settings = {
            "max_wal_size": "16MB",
            "min_wal_size": "2MB",
            # A standby is copied while others write, and has to find what came meanwhile.
            "wal_keep_size": "24MB",
            # What is not needed is given back to the disk, and has to be had from it again.
            "wal_recycle": "off",
            "wal_init_zero": "on",
        }
        super().__init__(settings=settings, follows=follows)
        self._tell(b"tireless\n")

    def fill(self, room: Room) -> None:
        """Leave no room on a disk; done again, take what was given back meanwhile."""
        with open(self._inside(room_of(self._folder, room)) / _BALLAST, "ab") as ballast:
            step, size = _CHUNK, ballast.tell()
            while step >= _PAGE:
                try:
                    os.posix_fallocate(ballast.fileno(), size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
                else:
                    size += step

    def empty(self) -> None:
        """Give all room back, and return when the server takes statements. Raises ServerError."""
        for room in get_args(Room):
            (self._inside(room_of(self._folder, room)) / _BALLAST).unlink(missing_ok=True)
        began = last = time.monotonic()
        while True:
            try:
                self.sql("select pg_current_xact_id()")
            except ServerError:
                now = time.monotonic()
                if now > began + _PATIENCE_S:
                    raise
                # One that is down is about to be started anyway.
                if now > last + HANGS_AFTER_S and self._status():
                    self.crash("kill")
                    self.recover()
                    last = now
                time.sleep(0.05)
            else:
                return

    @property
    def _home(self) -> Path:
        return home_of(self._folder)

    @property
    def _status_file(self) -> Path:
        return self._inside(super()._status_file)

    def _inside(self, path: Path) -> Path:
        """Answer where we, who are not in its namespace, find a file of the server."""
        return path if self._supervisor is None else Path(f"/proc/{self._supervisor.pid}/root{path}")

    def _supervising(self, supervisor: list[str]) -> list[str]:
        user = self._user
        owner = (os.getuid(), os.getgid()) if user is None else (user.pw_uid, user.pw_gid)
        return entering(self._folder, self._data, owner, supervisor)
