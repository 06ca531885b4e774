"""How parts are registered: what a verb is given is made once, so that every run does the very same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.explorer.exploring import Act
from tests.explorer.scenes import Props

from outlast.store.entries import Batch, Entry, TaskWrites

Make = Callable[[Props], Act]
ACTS: dict[str, Make] = {}
"""Every part by name."""
VERBS: dict[str, str] = {}
"""The verb of the contract that each part carries out."""
ENTRIES: dict[str, type] = {}
"""The kind of journal entry that each part of ``flush`` writes."""


def acts(verb: str, name: str | None = None, **how: Any) -> Callable[[Callable[[Props], Any]], None]:
    """Register a part: what it is given is made once, so that every run does the very same."""

    def register(make: Callable[[Props], Any]) -> None:
        called = name or verb

        def made(props: Props) -> Act:
            given = make(props)
            arguments = given if isinstance(given, tuple) else (given,)

            async def play(store: Any, _times: int) -> Any:
                return await getattr(store, verb)(*arguments)

            return Act(name=called, verb=verb, play=play, **how)

        assert called not in ACTS
        ACTS[called], VERBS[called] = made, verb

    return register


def always(_: Any) -> bool:
    """Ask for doing it again, whatever was answered."""
    return True


def union(answers: list[Any]) -> dict[str, Any]:
    """Make one answer of two sweeps or deliveries: what they did, and not what is left to do."""
    found: dict[str, list[str]] = {}
    for answer in answers:
        for name, value in asdict(answer).items() if not isinstance(answer, list) else [("all", answer)]:
            if isinstance(value, list | tuple):
                found.setdefault(name, []).extend(repr(one) for one in value)
    return {name: sorted(set(values)) for name, values in found.items()}


SKIPS: dict[str, Any] = {"loose": True, "again": always, "merge": union}
"""How verbs are played that leave alone what others hold, as if they came after those: they come again."""


WRITERS = frozenset({"writers", "lock hashtextextended(p_writer, 1)"})
"""What a writer of batches has for itself."""


def writes(
    name: str, kind: type, *, parent: bool = False, loose: bool = False
) -> Callable[[Callable[[Props], Entry]], None]:
    """Register an entry that the task's worker writes, or its parent's; a deferred batch is sent again."""

    def register(make: Callable[[Props], Entry]) -> None:
        called = f"flush_{name}"

        def made(props: Props) -> Act:
            entry = make(props)
            of = props.parent if parent else props.claimed
            one = TaskWrites(tenant=of.tenant, task=of.task, epoch=of.epoch, entries=(entry,))
            assert type(entry) is kind

            async def play(store: Any, times: int) -> Any:
                return await store.flush(Batch(writer=f"wr_{called}", number=times, writes=(one,)))

            return Act(
                name=called,
                verb="flush",
                play=play,
                loose=loose,
                own=WRITERS,
                again=lambda verdicts: verdicts[0].kind == "deferred",
            )

        ACTS[called], VERBS[called], ENTRIES[called] = made, "flush", kind

    return register
