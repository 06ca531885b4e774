"""Logs: what telemetry emits, one line each, as JSON where nobody watches and coloured text on a terminal.

Standard library logging (Uvicorn, drivers) goes through the same renderer, so that a process writes one kind
of line. Lines carry what the records carry: ids, names, counts and durations, never arguments or results.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

from outlast import telemetry
from outlast.core.masking import mask_passwords

QUIET: Final = frozenset({telemetry.BatchFlushed, telemetry.GatewayPassed, telemetry.TasksClaimed})
"""Records that come many times a second; logged at level debug."""
WARNINGS: Final = frozenset({telemetry.StoreAway, telemetry.SessionLost, telemetry.Warned})

_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


def _nothing() -> None:
    """End no subscription."""


_end: Callable[[], None] = _nothing
"""Ends the subscription of this process's lines."""


def install(
    *, as_json: bool | None = None, level: str = "info", stream: TextIO | None = None
) -> structlog.stdlib.BoundLogger:
    """Log telemetry and standard library logging to a stream; answer a logger for the process's own lines.

    as_json: JSON lines, or text for people; by default JSON where the stream is no terminal. stream: standard
    error by default. Called again, it takes the place of what was installed before.
    """
    global _end
    target = sys.stderr if stream is None else stream
    if as_json is None:
        as_json = not target.isatty()
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _mask,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("outlast")
    _end()
    _end = telemetry.subscribe(Logger(log))
    return log


class Logger:
    """Write each telemetry record as one line."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._away: set[str] = set()

    def __call__(self, signal: telemetry.Signal) -> None:
        """Log one record."""
        kind = type(signal)
        if isinstance(signal, telemetry.StoreAway):
            # Tried again several times a second: say it once, until it is back.
            if signal.duty in self._away:
                return
            self._away.add(signal.duty)
        elif isinstance(signal, telemetry.StoreBack):
            self._away.clear()
        level = level_of(kind)
        fields = dataclasses.asdict(signal)
        self._log.log(
            level, event_name(kind), **{name: value for name, value in fields.items() if value != ""}
        )


def level_of(kind: type[telemetry.Signal]) -> int:
    """Answer the logging level of a record's class."""
    return logging.DEBUG if kind in QUIET else logging.WARNING if kind in WARNINGS else logging.INFO


def event_name(kind: type[telemetry.Signal]) -> str:
    """Name a record's class as its log line does: ``AttemptEnded`` is ``attempt_ended``."""
    return _WORD.sub("_", kind.__name__).lower()


def _mask(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Take passwords out of whatever text goes into a line."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = mask_passwords(value)
    return event
