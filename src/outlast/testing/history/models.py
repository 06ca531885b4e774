"""What may be asked of each kind of register, and what its answers say; and of streams, which are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from outlast.testing.checkers.seen import Violation
from outlast.testing.history.search import UNKNOWN, Model, Operation, Register, State, stuck_at

__all__ = ["MODELS", "decision", "judge", "judge_streams", "lease", "life"]


def judge(
    operations: Iterable[Operation], models: Mapping[str, tuple[Model, State]] | None = None
) -> list[Violation]:
    """Judge histories register by register; answer those that cannot have happened.

    models: by the kind of a register, with the state that it begins in; ``MODELS`` by default. Raises
    KeyError for a kind that none is for.
    """
    models = MODELS if models is None else models
    registers: dict[Register, list[Operation]] = defaultdict(list)
    for one in operations:
        registers[one.register].append(one)
    violations = []
    for (kind, name), history in registers.items():
        model, initial = models[kind]
        stuck = stuck_at(history, model, initial)
        if stuck:
            told = "; ".join(str(one) for one in stuck[:4])
            text = f"{name}: {len(history)} operations are in no order that explains {told}"
            violations.append(Violation(promise=f"histories_of_{kind}", text=text))
    return violations


# -- models --------------------------------------------------------------------------------------------------


def lease(state: State, asked: tuple[Any, ...], answer: Hashable) -> Iterable[State]:
    """The lease of one task: epochs rise strictly, and one that has been passed or ended writes no more.

    Asked: ``("claim",)``, answered with the epoch; ``("write", epoch)``, answered ``written``, ``ended`` (the
    lease with it) or ``stale``. A state is (epoch, whether its lease is over). A sweep is not seen: it shows
    in a stale write, or in the next claim.
    """
    assert isinstance(state, tuple)
    epoch, over = state
    if asked[0] == "claim":
        return [(answer, False)] if isinstance(answer, int) and answer > epoch else []
    mine = asked[1]
    live = mine == epoch and not over
    if answer == "written":
        return [state] if live else []
    if answer == "ended":
        return [(epoch, True)] if live else []
    if answer == "stale":
        return [(epoch, over or mine == epoch)] if mine <= epoch else []
    # Without an answer it may have ended the lease or not; to leave it out is for the search.
    return [(epoch, True)] if live else []


def life(state: State, asked: tuple[Any, ...], answer: Hashable) -> Iterable[State]:
    """The task of one idempotency key: accepted once, live, then ended as one thing until a retry.

    Asked: ``("submit",)``, answered (id, whether it was there); ``("read", id)``, answered (round, ``live``
    or a final state), or ``missing``; ``("retry", id)``, answered with the round that it opened, or
    ``refused``.
    A state is (id, round, ``live`` or its end). Workers are not seen: what is live may end at any time.
    """
    assert isinstance(state, tuple)
    task, round_, stands = state
    if asked[0] == "submit":
        return _submitted(state, answer)
    if answer == "missing":
        return [state] if task is None else []
    if task is None:
        return []
    # It may have been accepted by a submit that nobody was answered.
    name = asked[1] if task == SOME else task
    if name != asked[1]:
        return []
    if asked[0] == "retry":
        return _retried((name, round_, stands), answer)
    if not isinstance(answer, tuple):
        return []
    return [(name, *answer)] if _goes_on(round_, stands, *answer) else []


SOME: Final = "some"
"""The id of a task that was accepted without anybody being told its name."""


def _submitted(state: tuple[Any, ...], answer: Hashable) -> list[State]:
    task, round_, stands = state
    if answer is UNKNOWN:
        return [(SOME, 1, "live")] if task is None else []
    assert isinstance(answer, tuple)
    name, replayed = answer
    if task is None:
        return [] if replayed else [(name, 1, "live")]
    return [(name, round_, stands)] if replayed and task in (name, SOME) else []


def _retried(state: tuple[Any, ...], answer: Hashable) -> list[State]:
    name, round_, stands = state
    if answer == "refused":
        # It was live, or whatever had ended cannot be tried again.
        return [state]
    opened = round_ + 1
    # What has succeeded is never opened again, whether anybody was told or not.
    return [(name, opened, "live")] if answer in (opened, UNKNOWN) and stands != "succeeded" else []


def _goes_on(round_: int, stands: str, now_round: int, now: str) -> bool:
    """Whether a task that stood so can be seen so: in its round what has ended stays as it is."""
    return now_round == round_ and (stands in ("live", now))


def decision(state: State, asked: tuple[Any, ...], answer: Hashable) -> Iterable[State]:
    """The one answer to a question: what was decided stands, whoever says otherwise later.

    Asked: ``("decide", verdict, who)``, answered ``taken``, or with what stands instead; ``("read",)``,
    answered with what stands. A state is what stands: None, (verdict, who), or ``void`` (its time or its task
    is over), which comes unseen, also to an agreement that was not used.
    """
    if asked[0] == "decide":
        mine = (asked[1], asked[2])
        if answer is UNKNOWN:
            return [mine] if state is None else []
        if answer == "taken":
            return [mine] if state in (None, mine) else []
    if answer in ("void", None):
        over = state is None or state == "void" or state[0] == "approve"  # type: ignore[index]
        fits = state is None if answer is None else over
        return [answer] if fits else []
    # Told what stands by its verdict alone.
    return [state] if isinstance(state, tuple) and state[0] == answer else []


MODELS: Final[Mapping[str, tuple[Model, State]]] = {
    "lease": (lease, (0, True)),
    "life": (life, (None, 1, "live")),
    "decision": (decision, None),
}
"""The models by the kind of register, with what each begins with."""


# -- streams -------------------------------------------------------------------------------------------------


def judge_streams(
    told: Mapping[str, Iterable[Sequence[tuple[int, str]]]], kept: Mapping[str, Sequence[tuple[int, str]]]
) -> list[Violation]:
    """Judge what readers were told of streams: each a prefix without a gap of what is kept.

    told: for each task, what every reader of it was told over all its connections, as (number, kind). kept:
    the events of each task in the end.
    """
    violations = []
    for task, readers in told.items():
        whole = list(kept.get(task, ()))
        for reader, events in enumerate(readers, 1):
            for place, event in enumerate(events):
                expected = whole[place] if place < len(whole) else None
                if tuple(event) != expected:
                    text = f"{task}: reader {reader} was told {tuple(event)} where {expected} stands"
                    violations.append(Violation(promise="streams_are_gapless_prefixes", text=text))
                    break
    return violations
