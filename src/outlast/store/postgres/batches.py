"""Turn a journal batch into the arrays that ``outlast.flush`` takes, and its short answer into verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from outlast.store.contract import BatchRejected
from outlast.store.entries import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    Batch,
    CommitIntent,
    EndAttempt,
    ExpireApproval,
    Flushed,
    NewEvent,
    Note,
    RecordOperation,
    RecordOutcome,
    TakeTurn,
)

# The order in which one wave touches an operation; an entry that comes otherwise goes into the next wave.
_RECORD, _OUTCOME, _TURN, _INTENT = range(4)

_VERDICTS = {
    "r": Flushed(kind="accepted", state="running"),
    "q": Flushed(kind="accepted", state="queued"),
    "w": Flushed(kind="accepted", state="waiting"),
    "s": Flushed(kind="accepted", state="succeeded"),
    "f": Flushed(kind="accepted", state="failed"),
    "c": Flushed(kind="accepted", state="cancelled"),
    "d": Flushed(kind="deferred"),
    "x": Flushed(kind="stale"),
}
_TAKEN = "taken "
# A capital letter is an ending of a batch that has left something to deliver.
_VERDICTS |= {letter.upper(): _VERDICTS[letter] for letter in "qwsfc"}

_COLUMNS = (
    "ttbi",  # heads
    "bitt",  # events
    "bititttttttbb",  # records
    "bitiitttt",  # outcomes
    "b",  # of those, the ones whose sender is gone
    "btb",  # waits
    "bitiit",  # turns
    "bitittttttbiitb",  # intents
    "bit",  # of those, the ones that honour waits
    "bittttbo",  # of those, the ones that want a business key
    "btitt",  # notes
    "bitttbttbo",  # ends
    "bt",  # keys to open again
)
"""The columns of each group, a letter each: text, big integer, integer, or boolean."""
_NAMES = ("tenant", "task", "key")
_TYPES = {"t": "text[]", "b": "bigint[]", "i": "integer[]", "o": "boolean[]"}


def statement() -> str:
    """Write the call of ``outlast.flush``.

    Arrays travel as their text: to write them so takes a fraction of the time that the driver needs to look
    at each element of a list, and the server reads either form alike.
    """
    kinds = "".join(_COLUMNS)
    arrays = (f"${number}::text::{_TYPES[kind]}" for number, kind in enumerate(kinds, 5))
    return f"select outlast.flush($1, $2, $3, $4, {', '.join(arrays)}, ${len(kinds) + 5}::text)"


def encode(batch: Batch, now: int | None) -> list[Any]:
    """Make the arguments of ``outlast.flush``: a row an entry, turned into columns at the end. The columns of
    a group without entries are None: an array takes its time where it is empty, too."""
    heads: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    records: list[tuple[Any, ...]] = []
    outcomes: list[tuple[Any, ...]] = []
    usages: list[str | None] = []
    visibles: list[int] = []
    gone: list[tuple[Any, ...]] = []
    waits: list[tuple[Any, ...]] = []
    turns: list[tuple[Any, ...]] = []
    intents: list[tuple[Any, ...]] = []
    honours: list[tuple[Any, ...]] = []
    wants: list[tuple[Any, ...]] = []
    notes: list[tuple[Any, ...]] = []
    ends: list[tuple[Any, ...]] = []
    keys: list[tuple[Any, ...]] = []
    takes: list[dict[str, Any]] = []
    taken: list[tuple[int, str, str, str]] = []
    heard: list[int] = []
    rare: dict[str, list[Any]] = {}
    waves = 1

    for head, writes in enumerate(batch.writes, 1):
        tenant, task = writes.tenant, writes.task
        place = (head << 20) - 1
        nth = 0
        levels: dict[str, int] = {}
        for entry in writes.entries:
            place += 1
            wave = 0
            added: tuple[NewEvent, ...] = ()
            match entry:
                case RecordOperation():
                    wave = _wave(levels, entry.key, _RECORD)
                    records.append(
                        (
                            place, wave, entry.key, entry.position, entry.kind, entry.name,
                            entry.state, entry.request, entry.arguments, entry.result, entry.error,
                            entry.due_in_us, entry.due_at,
                        )
                    )  # fmt: skip
                    if entry.lost:
                        rare.setdefault("losses", []).append(place)
                    if entry.closes:
                        rare.setdefault("closes", []).append(
                            {"place": place, "wave": wave, "tenant": tenant, "task": task, "key": entry.key}
                        )
                    takes.extend(
                        {"place": place, "key": entry.key, "number": number} for number in entry.takes
                    )
                    if entry.takes_end:
                        taken.append((place, tenant, task, entry.key))
                    added = entry.events
                case RecordOutcome():
                    wave = _wave(levels, entry.key, _OUTCOME)
                    outcomes.append(
                        (
                            place, wave, entry.key, entry.attempt, entry.turn, entry.state, entry.result,
                            entry.error, entry.settled_by,
                        )
                    )  # fmt: skip
                    usages.append(entry.usage)
                    if entry.sender_gone:
                        gone.append((place,))
                    if entry.wait is not None:
                        waits.append((place, *entry.wait))
                    added = entry.events
                case CommitIntent():
                    wave = _wave(levels, entry.key, _INTENT)
                    business = entry.business
                    intents.append(
                        (
                            place, wave, entry.key, entry.position, entry.kind, entry.name, entry.request,
                            entry.decision, entry.effect, entry.arguments, entry.timeout_us, entry.attempt,
                            entry.turn, None if business is None else business.stored(), entry.heard,
                        )
                    )  # fmt: skip
                    visibles.append(entry.visible_us)
                    if entry.resend:
                        rare.setdefault("resends", []).append(place)
                    if entry.consent is not None:
                        consent = entry.consent
                        rare.setdefault("consents", []).append(
                            {
                                "place": place, "policy": consent.policy, "rules": consent.rules,
                                "approval": consent.approval, "fingerprint": consent.fingerprint,
                            }
                        )  # fmt: skip
                    if entry.provider is not None:
                        honours.append((place, wave, entry.provider))
                    if business is not None:
                        wants.append(
                            (
                                place, wave, entry.key, business.tool, business.value, business.mode,
                                business.window_us, entry.repeat,
                            )
                        )  # fmt: skip
                    added = entry.events
                case EndAttempt():
                    if entry is not writes.entries[-1]:
                        late = place - (head << 20) + 1
                        raise BatchRejected(f"task {task}: entry {late} comes after the end of its attempt")
                    ends.append(
                        (
                            place, nth + len(entry.events), entry.attempt_end, entry.task_state,
                            entry.reason, entry.facts, entry.result, entry.error, entry.wake_in_us,
                            entry.at_latest,
                        )
                    )  # fmt: skip
                    keys.extend((place, key) for key in entry.reopen)
                    if entry.heard:
                        heard.append(head)
                    if entry.judged is not None:
                        verdict, by, reason, evidence = entry.judged
                        rare.setdefault("judged", []).append(
                            {
                                "place": place, "verdict": verdict, "who": by, "reason": reason,
                                "evidence": evidence,
                            }
                        )  # fmt: skip
                    added = entry.events
                case AskApproval():
                    wave = _wave(levels, entry.key, _RECORD)
                    rare.setdefault("asks", []).append(
                        {
                            "place": place, "wave": wave, "tenant": tenant, "task": task, "key": entry.key,
                            "position": entry.position, "kind": entry.kind, "name": entry.name,
                            "request": entry.request, "arguments": entry.arguments, "number": entry.number,
                            "subject": entry.subject, "fingerprint": entry.fingerprint, "shown": entry.shown,
                            "reason": entry.reason, "policy": entry.policy, "target": entry.target,
                            "roles": entry.roles, "quorum": entry.quorum, "four_eyes": entry.four_eyes,
                            "requester": entry.requester, "expires_in": entry.expires_in_us,
                        }
                    )  # fmt: skip
                    added = entry.events
                case ExpireApproval():
                    wave = _wave(levels, entry.key, _RECORD)
                    rare.setdefault("expiries", []).append(
                        {
                            "place": place, "wave": wave, "tenant": tenant, "task": task, "key": entry.key,
                            "number": entry.number,
                        }
                    )  # fmt: skip
                    added = entry.events
                case AdoptIssued():
                    wave = _wave(levels, entry.key, _RECORD)
                    rare.setdefault("adopts", []).append(
                        {
                            "place": place, "wave": wave, "tenant": tenant, "task": task, "key": entry.key,
                            "position": entry.position,
                        }
                    )  # fmt: skip
                    added = entry.events
                case AttachSession():
                    rare.setdefault("attaches", []).append(
                        {
                            "place": place, "tenant": tenant, "task": task, "provider": entry.provider,
                            "session": entry.session, "run": entry.run,
                        }
                    )  # fmt: skip
                    added = entry.events
                case AppendEvents():
                    added = entry.events
                case TakeTurn():
                    wave = _wave(levels, entry.key, _TURN)
                    turns.append((place, wave, entry.key, entry.attempt, entry.turn, entry.reason))
                    added = entry.events
                case Note():
                    notes.append((place, entry.key, entry.attempt, entry.source, entry.data))
            if wave >= waves:
                waves = wave + 1
            for event in added:
                nth += 1
                events.append((place, nth, event.kind, event.data))
        # What a task says before its end is counted with that.
        ended = bool(ends) and ends[-1][0] >> 20 == head
        heads.append((tenant, task, writes.epoch, 0 if ended else nth))

    if any(usages):
        rare["usages"] = usages
    if any(visibles):
        rare["visibles"] = visibles
    arguments: list[Any] = [batch.writer, batch.number, now, waves]
    groups = (
        heads, events, records, outcomes, gone, waits, turns, intents, honours, wants, notes, ends, keys,
    )  # fmt: skip
    for kinds, rows in zip(_COLUMNS, groups, strict=True):
        if rows:
            for kind, column in zip(kinds, zip(*rows, strict=True), strict=True):
                arguments.append(texts(column) if kind == "t" else _plain(column))
        else:
            arguments.extend(None for _ in kinds)
    more: dict[str, Any] = {
        name: what
        for name, what in (("takes", takes), ("ends", taken), ("heard", heard), ("rare", rare))
        if what
    }
    if taken:
        places, *names = zip(*taken, strict=True)
        more["ends"] = {"place": _plain(places), **dict(zip(_NAMES, map(texts, names), strict=True))}
    if heard:
        more["heard"] = _plain(heard)
    arguments.append(json.dumps(more, ensure_ascii=False) if more else None)
    return arguments


def _plain(column: Sequence[int | None]) -> str:
    """Write numbers, truths and nothing as the text of an array."""
    return f"{{{','.join(map(str, column))}}}".replace("None", "NULL")


def texts(column: Sequence[str | None]) -> str:
    """Write texts as the text of an array: all in quotes, in which quotes and backslashes are escaped."""
    nothing = column.count(None)
    if nothing == len(column):
        return f"{{{','.join(['NULL'] * nothing)}}}"
    if not nothing:
        text = '","'.join(column)  # type: ignore[arg-type]
        if "\\" not in text and text.count('"') == 2 * (len(column) - 1):
            return f'{{"{text}"}}'
    return f"{{{','.join(['NULL' if item is None else _quoted(item) for item in column])}}}"


def _quoted(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def decode(verdicts: str) -> list[Flushed]:
    """Read the answer of ``outlast.flush``: a letter for each head, then ``|`` and what was refused."""
    letters, _, refused = verdicts.partition("|")
    answer = [_VERDICTS[letter] for letter in letters]
    if refused:
        refusals: dict[int, list[tuple[int, str]]] = {}
        for item in refused.split(","):
            head, entry, name = item.split(":")
            if name.startswith(_TAKEN):
                # A task's name may hold whatever the rest is divided by.
                name = _TAKEN + bytes.fromhex(name.removeprefix(_TAKEN)).decode()
            refusals.setdefault(int(head) - 1, []).append((int(entry), name))
        for index, names in refusals.items():
            plain = answer[index]
            answer[index] = Flushed(kind=plain.kind, state=plain.state, refusals=tuple(names))
    return answer


def leaves_posts(verdicts: str) -> bool:
    """Answer whether the batch has left something to deliver."""
    return verdicts != verdicts.lower()


def _wave(levels: dict[str, int], key: str, rank: int) -> int:
    """Answer the first wave in which this kind may touch the operation after what touched it before."""
    last = levels.get(key, -1)
    level = ((last >> 2) + (rank <= last & 3)) * 4 + rank
    levels[key] = level
    return level >> 2
