"""What to know before a deploy, and after it: configuration, policy, workers, versions, clocks.

Nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol

from outlast import clock, tokens
from outlast.backing import Backing
from outlast.core import values
from outlast.core.approval import check_bounds
from outlast.core.operation import changes_something
from outlast.core.record import record
from outlast.engine.alone import AGENT
from outlast.engine.registry import Registry, ToolSpec
from outlast.errors import ConfigurationError, InvalidRequest, OutlastError
from outlast.store.changing import VersionRow
from outlast.store.contract import Store
from outlast.store.records import ANY_VERSION
from outlast.store.rows import SessionRow

__all__ = ["CLOCK_S", "Finding", "check_declared", "check_stored"]

CLOCK_S: Final = 1.0
"""Seconds by which a wall clock may differ from the database's. Nothing stored is decided by it, but dates in
answers of others, and lines in logs, are read by it."""
HERE: Final = "this app"


@record
class Finding:
    """Something that was found. level: ``warning``: it works, and not as somebody may think. ``error``: it
    does not. code: stable, for programs. about: whose it is, such as a tool's name. hint: what to do."""

    level: Literal["warning", "error"]
    code: str
    about: str
    message: str
    hint: str


class App(Backing, Protocol):
    """What is looked at of an app."""

    @property
    def secret(self) -> str:
        """What callbacks and links are signed with."""
        ...

    @property
    def gateway_url(self) -> str | None:
        """Where the gateway is reached."""
        ...


def _warning(code: str, about: str, message: str, hint: str) -> Finding:
    return Finding(level="warning", code=code, about=about, message=message, hint=hint)


def _error(code: str, about: str, message: str, hint: str) -> Finding:
    return Finding(level="error", code=code, about=about, message=message, hint=hint)


# -- what the app declares ---------------------------------------------------------------------------------


def check_declared(app: App) -> Iterator[Finding]:
    """Look at what an app declares, and at what it was told; no database is needed."""
    tools = app.registry.tools.values()
    try:
        app.registry.check()
    except ConfigurationError as error:
        yield _error("undo", HERE, str(error), "no worker of this app starts")
    if app.secret and len(app.secret) < tokens.LEAST_SECRET:
        yield _error(
            "secret",
            HERE,
            f"OUTLAST_SECRET has fewer than {tokens.LEAST_SECRET} characters",
            "no callback, link or gateway token can be signed with it",
        )
    through = sorted(tool.name for tool in tools if tool.gateway)
    if through and (app.gateway_url is None or not app.secret):
        yield _error(
            "gateway",
            through[0],
            "goes through a gateway, and this process knows none, or has no secret to sign with",
            "set OUTLAST_GATEWAY_URL and OUTLAST_SECRET",
        )
    for tool in tools:
        yield from _tool(tool)


def _tool(tool: ToolSpec) -> Iterator[Finding]:
    if tool.effect == "queryable" and tool.visible_within_us is None:
        yield _warning(
            "visible_within",
            tool.name,
            "is queryable without visible_within=: that an effect is not found proves nothing",
            "say how long after its deadline an effect may take to be found; else every absence goes to"
            " a person",
        )
    if tool.effect == "keyed" and tool.find is None:
        yield _warning(
            "find",
            tool.name,
            "is keyed without find=: after its key_window nobody can say what became of a call",
            "give it a find=, or expect those calls in the reconciliation queue",
        )
    if changes_something(tool.effect) and tool.business is None:
        yield _warning(
            "business_key",
            tool.name,
            "changes something and has no business_key=: asked for twice by an agent, it acts twice",
            "name what a call is about, with lock= or once=",
        )


# -- what the database holds -------------------------------------------------------------------------------


async def check_stored(app: App, *, tenant: str, declares: bool) -> Sequence[Finding]:
    """Look at what an app's opened store holds: workers, versions, rules, unknown calls, clocks.

    tenant: whose standing rules. declares: whether the app has its agents and tools, or stands for a
    database alone; then what it does not register is not missed. Raises what the store does.
    """
    sessions = await app.store.list_sessions()
    # A block that is in a scope of the ledger serves nobody else.
    workers = [one for one in sessions if [agent for agent, _ in _says(one).get("agents", [])] != [AGENT]]
    return [
        *_clocks(sessions, await _ahead_us(app.store)),
        *_differing(app.registry if declares else None, sessions),
        *[one async for one in _rules(app, tenant, declares=declares)],
        *[one async for one in _versions(app, workers, declares=declares)],
        *[one async for one in _unknowns(app, workers)],
    ]


async def _ahead_us(store: Store) -> int:
    asked_at = clock.unix_us()
    now = (await store.health()).now
    return clock.ahead_us(asked_at, now, clock.unix_us()) if now else 0


def _clocks(sessions: Iterable[SessionRow], here_us: int) -> Iterator[Finding]:
    ahead = {"this machine": here_us}
    for session in sessions:
        ahead[f"worker {session.name}"] = int(_says(session).get("ahead_us", 0))
    for who, ahead_us in ahead.items():
        if abs(ahead_us) > CLOCK_S * 1_000_000:
            word = "ahead of" if ahead_us > 0 else "behind"
            yield _warning(
                "clock",
                who,
                f"its wall clock is {abs(ahead_us) / 1_000_000:.1f} s {word} the database's",
                "let both be set by the same time service",
            )


def _differing(registry: Registry | None, sessions: Iterable[SessionRow]) -> Iterator[Finding]:
    """Find tools that are of one effect class for one worker, and of another for another."""
    said: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for session in sessions:
        for tool, effect in _says(session).get("tools", {}).items():
            said[tool][effect].add(session.name)
    if registry is not None:
        for spec in registry.tools.values():
            said[spec.name][spec.effect].add(HERE)
    for tool, effects in sorted(said.items()):
        if len(effects) > 1:
            each = (f"{effect} for {', '.join(sorted(names))}" for effect, names in sorted(effects.items()))
            yield _warning(
                "effect_differs",
                tool,
                f"is declared differently: {'; '.join(each)}",
                "an unknown call is settled by the rules of whoever comes to it; deploy one of them",
            )


async def _rules(app: App, tenant: str, *, declares: bool) -> AsyncIterator[Finding]:
    for rule in await app.store.list_rules(tenant):
        try:
            check_bounds(values.decode(rule.bounds))
        except (InvalidRequest, ValueError) as error:
            yield _error(
                "rule",
                rule.tool,
                f"its standing rule {rule.number} cannot be read: {error}",
                "no call of the tool is made; withdraw the rule",
            )
        if declares and rule.tool not in app.registry.tools:
            yield _warning(
                "rule_without_tool",
                rule.tool,
                f"standing rule {rule.number} is about a tool that this app does not have",
                "put the rule under the tool's new name if it was renamed: now it stands for nothing",
            )


async def _versions(app: App, sessions: Sequence[SessionRow], *, declares: bool) -> AsyncIterator[Finding]:
    """Find agent versions that live tasks need, and that no living worker serves."""
    needed = [row for row in await app.store.list_versions() if row.agent != AGENT]
    if needed and not sessions:
        yield _warning(
            "no_worker",
            "workers",
            f"tasks live ({sum(map(_count, needed))}), and no worker does",
            "start one: outlast worker module:app",
        )
    for row in needed:
        has = (row.agent, row.version) in app.registry.agents or (
            row.version == ANY_VERSION and row.agent in app.registry.latest
        )
        if row.served_by or (has and not sessions):
            continue
        version = f"version {row.version}" if row.version else "any version"
        message = f"{version} is needed by live tasks ({_count(row)}) and served by no living worker"
        if has:
            hint = "this app has it: start a worker of it"
        elif declares:
            hint = "this app does not have it: keep it, or let them be taken over (versions adopt)"
        else:
            hint = "start a worker that has it, or let them be taken over (versions adopt)"
        yield _warning("version_unserved", row.agent, message, hint)


async def _unknowns(app: App, sessions: Iterable[SessionRow]) -> AsyncIterator[Finding]:
    """Find tools with unknown calls that nobody can settle but a person, since no living worker has them."""
    served = {tool for session in sessions for tool in _says(session).get("tools", {})}
    for count in await app.store.count_unknown():
        if count.tool not in served:
            yield _warning(
                "unknown_unserved",
                count.tool,
                f"calls of it are unknown ({count.unknown}), and no living worker has it to ask with",
                "start a worker that has it, or settle them: outlast operations list",
            )


def _count(row: VersionRow) -> int:
    return row.queued + row.running + row.waiting


def _says(session: SessionRow) -> dict[str, Any]:
    """Read what a worker says of itself; nothing, of one that says nothing that can be read."""
    try:
        said = values.decode(session.serves)
    except (OutlastError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
