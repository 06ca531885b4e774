"""Small file systems of one's own, which can be filled without filling one that others use.

Purpose: ``cramped`` runs a PostgreSQL on them.

Identity: two file systems in memory, one for a server's data and one for its write-ahead log. They are
mounted in a mount namespace that only the server's processes are in, and are gone with the last of them,
whatever ends it. As root a mount namespace is enough; anybody else needs a user namespace around it. A system
may allow neither: ``why_not`` says so beforehand.

Not covered: other systems than Linux.

This file is also a script, which enters the namespace and becomes the server's supervisor. As such it imports
the standard library only, as ``servers`` does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

__all__ = ["Room", "entering", "home_of", "room_of", "why_not"]

Room = Literal["data", "log"]
"""A disk: the one of the tables and of all else, or the one of the write-ahead log."""
SIZES_MB: Final[dict[Room, int]] = {"data": 192, "log": 96}
_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _ALL_BELOW = 1 << 18, 1 << 14
_NO_SUID_NO_DEV: Final = 2 | 4
_TRY: Final = "try"


def why_not() -> str:
    """Answer why no file system of one's own can be had here; an empty text where it can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no mount namespaces"
    command = [sys.executable, "-I", "-S", __file__, _TRY]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    said = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return "" if tried.returncode == 0 else said[-1]


def room_of(folder: Path, room: Room) -> Path:
    """Answer where a disk is mounted, in a server's folder."""
    return folder / f"small-{room}"


def home_of(folder: Path) -> Path:
    """Answer where the server's data are on their disk."""
    return room_of(folder, "data") / "data"


def entering(folder: Path, made: Path, owner: tuple[int, int], command: list[str]) -> list[str]:
    """Answer the command that becomes another one with small disks.

    folder: of the server; removed when all that was begun here has ended. made: the data to put on the disks.
    owner: of them, as user and group.
    """
    words = [str(folder), str(made), *map(str, owner), *command]
    return [sys.executable, "-I", "-S", __file__, *words]


# -- as a script ---------------------------------------------------------------------------------------------


def _enter() -> None:
    """Enter a mount namespace of one's own, within a user namespace unless root."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _NEW_NAMESPACE | (_NEW_USER if uid else 0))
    if uid:
        # PostgreSQL does not run as root, so everybody stays who he is.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _call("mount", b"none", b"/", None, _ALL_BELOW | _PRIVATE, None)


def _mount(place: Path, megabytes: int, owner: str) -> None:
    place.mkdir(exist_ok=True)
    options = f"size={megabytes}m,mode=0700,{owner}".encode()
    _call("mount", b"outlast", str(place).encode(), b"tmpfs", _NO_SUID_NO_DEV, options)


def _call(name: str, *arguments: int | bytes | None) -> None:
    """Call the C library. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prepare(folder: Path, made: Path, owner: str) -> None:
    """Mount the disks, and put on them what was made."""
    for room, megabytes in SIZES_MB.items():
        _mount(room_of(folder, room), megabytes, owner)
    home, log = home_of(folder), room_of(folder, "log") / "log"
    for source, target in ((made, home), (made / "pg_wal", log)):
        subprocess.run(["cp", "-a", source, target], check=True)
    shutil.rmtree(home / "pg_wal")
    (home / "pg_wal").symlink_to(log)


def _sweep_after(folder: Path) -> None:
    """Leave somebody behind, outside the namespace, who removes the folder if nobody else will: from inside,
    what is mounted cannot be removed, and whoever made the server may be gone."""
    maker = os.getppid()
    ends, held = os.pipe()
    if os.fork():
        os.close(ends)
        os.set_inheritable(held, True)
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(null, each)
    os.close(held)
    os.read(ends, 1)
    while _lives(maker) and folder.exists():
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        told = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] not in "ZX"


def _main(arguments: list[str]) -> None:
    if arguments == [_TRY]:
        try:
            _enter()
            _mount(Path("/tmp"), 1, f"uid={os.getuid()},gid={os.getgid()}")
        except OSError as error:
            sys.exit(f"no file system of one's own can be had: {error.strerror}")
        return
    folder, made, uid, gid, *supervisor = arguments
    _sweep_after(Path(folder))
    _enter()
    _prepare(Path(folder), Path(made), f"uid={uid},gid={gid}")
    # A server that stops by itself would leave its memory where there is no room for it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execv(supervisor[0], supervisor)


if __name__ == "__main__":
    _main(sys.argv[1:])
