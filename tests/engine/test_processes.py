"""Steps in processes of their own: what comes back, and that they die with their attempt."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.engine.computing import Part, add, burn, fails, slow, soon, spin
from tests.engine.house import PATIENCE_S, House

from outlast import StepFailed, TaskContext, ToolCall
from outlast.errors import ConfigurationError
from outlast.testing.pids import lives
from outlast.testing.recorder import Recorder


async def begun(path: Path) -> int:
    """Wait until a process has said that it began; answer its number."""
    return await asyncio.to_thread(_begun, path)


def _begun(path: Path) -> int:
    # It has nothing but the file system to say it with.
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.01)
    raise TimeoutError(path)


async def gone(pid: int) -> None:
    """Wait until a process is gone."""
    await asyncio.to_thread(_gone, pid)


def _gone(pid: int) -> None:
    # Not a child of this process, or not any more: there is nobody to ask but the system.
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not lives(pid):
            return
        time.sleep(0.01)
    raise TimeoutError(pid)


async def test_results_come_back_as_the_types_that_json_has(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        answers = await task.gather(
            task.step(add, 1, Part(amount=Decimal("118.50"))), task.step(soon, 0.01), task.step(soon, 0.02)
        )
        again = await task.step(add, 2, Part(amount=Decimal(1)))
        return [*answers, again]

    handle = await house.submit(agent)
    worker = house.start(processes=2)
    view = await house.ended(handle)
    assert view.state == "succeeded", view.error
    first, *rest, again = view.result
    assert (first["sum"], rest, again["sum"]) == ("119.50", [0.01, 0.02], "3")
    # Not in this process, and no more of them than are allowed.
    pids = {first["pid"], again["pid"]}
    assert os.getpid() not in pids
    assert set(await house.operations(handle)) == {"adds#1", "adds#2", "soon#1", "soon#2"}
    assert len(worker.processes._idle) <= 2
    await house.stop()
    for pid in pids:
        await gone(pid)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "step_failed Odd Odd: not today"),
        ("exits", "step_failed SystemExit SystemExit: 3"),
        ("dies", "step_failed ProcessDied ProcessDied: the step's process died (signal 9)"),
        ("unstorable", "result_unstorable"),
        ("object", "result_unstorable"),
    ],
)
async def test_whatever_goes_wrong_there_is_a_failed_step_here(house: House, how: str, said: str) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.step(fails, how)
        except StepFailed as error:
            return f"{error.code} {error.reason} {error}"
        except Exception as error:
            return str(getattr(error, "code", error))
        return "not reached"

    view = await house.run(agent)
    assert view.result == said
    assert await house.violations() == []


async def test_a_process_that_takes_too_long_is_killed(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.step(slow)
        except StepFailed as error:
            return str(error)
        return "not reached"

    handle = await house.submit(agent)
    worker = house.start(processes=1)
    assert (await house.ended(handle)).result == "step slow took longer than 0.5 s"
    assert worker.processes._idle == []


async def test_functions_that_another_process_cannot_find_are_refused_where_they_are_declared(
    house: House,
) -> None:
    with pytest.raises(ConfigurationError, match="top of a module"):

        @house.app.step(executor="process")
        def here() -> None:
            return None

    with pytest.raises(ConfigurationError, match="executor"):
        house.app.step(executor="rocket")(burn)  # type: ignore[call-overload]


# -- scenario O17 --------------------------------------------------------------------------------------------


def book(house: House, recorder: Recorder) -> Any:
    @house.app.tool(effect="idempotent")
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})

    @house.app.agent
    async def agent(task: TaskContext, folder: str) -> int:
        # The second attempt comes to its end.
        await task.step(
            spin, f"{folder}/{task.attempt}", task.attempt == 1, name="spin", key=f"s{task.attempt}"
        )
        await task.call(create)
        return task.attempt

    return agent


async def test_a_cancel_kills_the_process_at_once(house: House, recorder: Recorder, tmp_path: Path) -> None:
    """Scenario O17 (a): a step that never looks up; the grace time is not waited for."""
    handle = await house.submit(book(house, recorder), folder=str(tmp_path))
    house.start(grace_s=60.0)
    pid = await begun(tmp_path / "1")
    await handle.cancel()
    view = await house.ended(handle)
    assert view.state == "cancelled"
    await gone(pid)
    assert await recorder.log() == []
    async with asyncio.timeout(5):
        await house.stop()
    assert await house.violations(recorder) == []


async def test_a_deadline_kills_the_process(house: House, recorder: Recorder, tmp_path: Path) -> None:
    agent = book(house, recorder)

    @house.app.agent
    async def warm(task: TaskContext) -> float:
        return float(await task.step(soon, 0.0))

    # Its start takes seconds on a busy machine, and does not count here.
    house.start(grace_s=60.0, processes=1)
    assert (await house.run(warm)).result == 0.0
    handle = await house.app.submit(agent, {"folder": str(tmp_path)}, deadline=3)
    pid = await begun(tmp_path / "1")
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    await gone(pid)
    assert await recorder.log() == []


async def test_a_lost_lease_kills_the_process_and_only_the_second_attempt_calls(
    house: House, recorder: Recorder, tmp_path: Path
) -> None:
    """Scenario O17 (b): the heartbeat is blocked until the lease lapses."""
    first = house.start(lease_s=1.0, name="first")
    renew, blocked = first.session.renew, asyncio.Event()
    release = asyncio.Event()

    async def heartbeat() -> bool:
        if blocked.is_set():
            await release.wait()
        return await renew()

    first.session.renew = heartbeat  # type: ignore[method-assign]
    handle = await house.submit(book(house, recorder), folder=str(tmp_path))
    pid = await begun(tmp_path / "1")
    blocked.set()
    house.start(name="second")
    second = await begun(tmp_path / "2")
    assert second != pid
    # The first worker learns of it when its heart beats again.
    release.set()
    await gone(pid)
    view = await house.ended(handle)
    assert view.result == 2
    assert [one.worker for one in await house.app.attempts(handle.id)] == ["first", "second"]
    assert len([call for call in await recorder.log() if call.method == "POST"]) == 1
    async with asyncio.timeout(10):
        await house.stop()
    assert await house.violations(recorder) == []


async def test_a_worker_that_is_killed_takes_its_processes_with_it(tmp_path: Path) -> None:
    """Nothing of the worker runs any more, and its process computes without a pause."""
    program = (
        "import asyncio\n"
        "from tests.engine.computing import spin\n"
        "from outlast.engine.processes import Processes\n"
        "async def main():\n"
        f"    await Processes(1).run(spin, ({str(tmp_path / 'pid')!r},), {{}})\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = tmp_path / "worker.py"
    script.write_text(program)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = await asyncio.create_subprocess_exec(sys.executable, str(script), env=environ)
    try:
        pid = await begun(tmp_path / "pid")
        worker.send_signal(signal.SIGKILL)
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()
    await gone(pid)
