"""Deploys: code that does not fit the journal stops, the old one goes on, and a new one adopts what fits."""

from __future__ import annotations

from typing import Final

from outlast.drills.change.agents import CARELESS, SIDE_BY_SIDE
from outlast.drills.change.scene import Played, Scene, filed, invoice_of
from outlast.drills.stage import Check
from outlast.errors import VersionInUse

__all__ = ["deploy"]

_POOL: Final = "deploy"
_CHANGED: Final = ("renamed", "inserted", "swapped", "removed")
_DIFFERS: Final = {
    "renamed": " (",
    **dict.fromkeys(_CHANGED[1:], ", and the code asks for it with other arguments"),
}
_RUNNING, _FITS, _WITH_DIFFERENCES = "adopt_running", "adopt_fits", "adopt_differs"


async def deploy(scene: Scene, _: str) -> list[Played]:
    """Let tasks wait, deploy code that does not fit them, and go back."""
    old = await scene.worker("deploy-old", _POOL)
    await scene.hold(_RUNNING)
    runs = await _begun(scene, _RUNNING, "none")
    await scene.held(_RUNNING)
    refused = await _adopted(scene, runs, "2")
    await scene.recorder.release(_RUNNING)
    tasks = {cell: await _begun(scene, cell, cell) for cell in _CHANGED}
    tasks |= {cell: await _begun(scene, cell, "none") for cell in (_FITS, _WITH_DIFFERENCES)}
    for task in (runs, *tasks.values()):
        await scene.suspended(task, "signal")
    await old.stop()

    careless = await scene.worker("deploy-careless", _POOL, generation=CARELESS)
    details = {}
    for cell in _CHANGED:
        await scene.app.signal(tasks[cell], "go")
        details[cell] = (await scene.suspended(tasks[cell], "operator")).detail or ""
    calls = {cell: len(await scene.posts(cell)) for cell in _CHANGED}
    await careless.stop()

    fits = await _adopted(scene, tasks[_FITS], "2")
    differs = await _adopted(scene, tasks[_WITH_DIFFERENCES], "differs")
    bound = (await scene.app.get(tasks[_WITH_DIFFERENCES])).version
    await scene.worker("deploy-side-by-side", _POOL, generation=SIDE_BY_SIDE)
    for cell in _CHANGED:
        await scene.app.wake(tasks[cell], reason="the old version is back", by="drill")
    for task in (runs, tasks[_FITS], tasks[_WITH_DIFFERENCES]):
        await scene.app.signal(task, "go")
    for task in (runs, *tasks.values()):
        await scene.end(task)

    played = [
        await _ended(
            scene,
            cell,
            tasks[cell],
            "1",
            Check(
                what="whether it is said what differs",
                expected=True,
                seen=f"operation call-1: the journal holds tool file{_DIFFERS[cell]}" in details[cell],
            ),
            Check(what="calls while it did not fit", expected=2, seen=calls[cell]),
        )
        for cell in _CHANGED
    ]
    return [
        *played,
        await _ended(
            scene, _RUNNING, runs, "1", Check(what="the answer", expected="version_in_use", seen=refused)
        ),
        await _ended(
            scene, _FITS, tasks[_FITS], "2", Check(what="the answer", expected="fits, 0 differ", seen=fits)
        ),
        await _ended(
            scene,
            _WITH_DIFFERENCES,
            tasks[_WITH_DIFFERENCES],
            "1",
            Check(what="the answer", expected="does not fit, 1 differ", seen=differs),
            Check(what="its version after that", expected="1", seen=bound),
        ),
    ]


async def _begun(scene: Scene, cell: str, change: str) -> str:
    input = {"invoice": invoice_of(cell), "deploy": change}
    return await scene.submit("journey", input, pool=_POOL, version="1")


async def _adopted(scene: Scene, task: str, version: str) -> str:
    try:
        found = await scene.app.versions.adopt(task, version=version, reason="deployed", by="drill")
    except VersionInUse as error:
        return error.code
    return f"{'fits' if found.fits else 'does not fit'}, {len(found.differences)} differ"


async def _ended(scene: Scene, cell: str, task: str, version: str, *more: Check) -> Played:
    view = await scene.app.get(task)
    amounts = ["1", "2", "3", "4"] if version == "2" else ["1", "2", "3"]
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            *more,
            Check(what="filed", expected=amounts, seen=filed(await scene.posts(cell))),
            Check(what="its version", expected=version, seen=view.version),
            Check(
                what="attempts lost",
                expected=[],
                seen=[end for end in await scene.attempts(task) if end == "lost"],
            ),
        ),
    )
