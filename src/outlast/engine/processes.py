"""Steps in processes of their own, which can be killed.

Purpose: code that computes without a pause blocks neither the event loop nor a cancel: when its attempt is
cut, by a cancel, a deadline, a time limit or a lost lease, its process gets SIGKILL.

Identity: a process serves one step at a time; idle ones are kept for the next. There are never more of them
than the worker allows.

Processes are spawned, not forked, so that they share no thread, lock or connection with the worker. The
function goes there by its name, its arguments pickled; what comes back is JSON text, or an error's class name
and text. They import the module that the function is in, as multiprocessing does it.

Failure by failure: the step raises: its class name and text come back, and it fails as any step does. The
process dies (out of memory, a crash of an extension): the step fails by that name, and may be tried again.
The worker dies: the kernel ends its processes with it (Linux), and everywhere a thread of theirs that notices
the closed pipe.

Not covered: what a killed step left behind outside. Where the kernel offers nothing, code that never lets
Python run another thread outlives its worker until it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn

from outlast.core import values
from outlast.engine.wording import words_of
from outlast.errors import ConfigurationError, InvalidRequest

_LENGTH: Final = struct.Struct("!Q")
_PR_SET_PDEATHSIG: Final = 1
_DONE, _RAISED, _UNSTORABLE = b"d", b"r", b"u"


class StepRaised(Exception):
    """A step raised in its process. name: of the exception's class."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def check_importable(function: Callable[..., Any]) -> None:
    """Refuse a function that another process could not find by its name. Raises ConfigurationError."""
    name = getattr(function, "__qualname__", repr(function))
    if "<locals>" in name or "<lambda>" in name:
        raise ConfigurationError(
            f"{name} cannot run in a process of its own: define it at the top of a module, so that it can be"
            " imported there"
        )


# -- in the worker -----------------------------------------------------------------------------------------


class _Process:
    """One child process and the way to it."""

    def __init__(
        self, process: BaseProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(process.sentinel, self._reap)

    @classmethod
    async def start(cls) -> _Process:
        ours, theirs = socket.socketpair()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, os.getpid()), name="outlast-step", daemon=True
        )
        try:
            process.start()
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            if process.pid is not None:
                process.kill()
            raise
        finally:
            theirs.close()
        return cls(process, reader, writer)

    @property
    def alive(self) -> bool:
        return not self._ended.done() and not self._reader.at_eof()

    async def call(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request and wait for its answer. Raises EOFError when the process died."""
        try:
            self._writer.write(_LENGTH.pack(len(request)) + request)
            await self._writer.drain()
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            answer = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError from error
        return answer[:1], answer[1:]

    def kill(self) -> asyncio.Future[str]:
        """End it now; the future tells how it ended, once it has."""
        self._writer.close()
        if not self._ended.done():
            self._process.kill()
        return self._ended

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode or 0
        self._process.close()
        if not self._ended.done():
            self._ended.set_result(f"signal {-code}" if code < 0 else f"exit code {code}")


class Processes:
    """The child processes of a worker."""

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> str:
        """Call a function in a process and answer its result as JSON text; cancelled, it kills the process.

        Raises StepRaised, and InvalidRequest for a result that has no JSON form.
        """
        request = _request(function, args, named)
        async with self._places:
            process = await self._take()
            self._busy.add(process)
            answered = False
            try:
                kind, answer = await process.call(request)
                answered = True
            except EOFError:
                how = await process.kill()
                raise StepRaised("ProcessDied", f"the step's process died ({how})") from None
            finally:
                self._busy.discard(process)
                if answered:
                    self._idle.append(process)
                else:
                    process.kill()
        if kind == _DONE:
            return answer.decode()
        name, text = json.loads(answer)
        if kind == _UNSTORABLE:
            raise InvalidRequest(text)
        raise StepRaised(name, text)

    async def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            process.kill()
        return await _Process.start()

    async def close(self) -> None:
        """Kill every process, whatever it does."""
        ends = [process.kill() for process in [*self._idle, *self._busy]]
        self._idle.clear()
        if ends:
            await asyncio.wait(ends, timeout=1.0)


def _request(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps((function.__module__, function.__qualname__, args, named))
    # Arguments are of the user's classes, whose pickling may raise anything.
    except Exception as error:
        raise StepRaised(
            type(error).__name__, f"its arguments cannot be sent to a process: {words_of(error)}"
        ) from error


# -- in the child ------------------------------------------------------------------------------------------


def _serve(connection: socket.socket, parent: int) -> None:
    """Serve steps until the worker is gone."""
    # Ctrl-C reaches the whole group of processes; when to end is the worker's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    calls, requests = os.pipe()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    with os.fdopen(calls, "rb") as stream:
        while True:
            (length,) = _LENGTH.unpack(_exactly(stream.read, _LENGTH.size))
            answer = _answer(_exactly(stream.read, length))
            connection.sendall(_LENGTH.pack(len(answer)) + answer)


def _listen(connection: socket.socket, requests: int) -> None:
    """Pass requests on, and end this process when the worker's end of the connection is closed."""
    while True:
        data = connection.recv(1 << 16)
        if not data:
            _end()
        while data:
            data = data[os.write(requests, data) :]


def _exactly(read: Callable[[int], bytes], length: int) -> bytes:
    data = read(length)
    if len(data) < length:
        _end()
    return data


def _end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It was gone before the kernel was asked.
        _end()


def _answer(request: bytes) -> bytes:
    try:
        module, path, args, named = pickle.loads(request)
        function: Any = _find(module, path)
        result = function(*args, **named)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        try:
            text = values.encode(values.normalise(result), what=f"the result of step {path}")
        except InvalidRequest as error:
            return _UNSTORABLE + json.dumps([type(error).__name__, str(error)]).encode()
        return _DONE + text.encode()
    except KeyboardInterrupt:
        raise
    # A step may raise anything; each kind is a failure of the step.
    except BaseException as error:
        return _RAISED + json.dumps([type(error).__name__, words_of(error)]).encode()


def _find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
