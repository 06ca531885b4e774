"""How a command ends: one table from error codes to exit codes, and one place where errors are said.

Standard output carries what a command answers, or nothing. An error goes to standard error: one or two lines,
or with ``--json`` one object ``{"error": {"code": …, "message": …}}``. No traceback, no password.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from outlast.core.masking import mask_passwords
from outlast.errors import InvalidRequest, OutlastError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5
SCHEMA: Final = 6
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[str, int]] = {
    "acceptance_conflict": CONFLICT,
    "agent_not_found": NOT_FOUND,
    "ambiguous_operation": FAILED,
    "approval_conflict": CONFLICT,
    "approval_denied": FAILED,
    "approval_expired": FAILED,
    "approval_not_found": NOT_FOUND,
    "approval_pending": FAILED,
    "budget_exceeded": FAILED,
    "busy": UNAVAILABLE,
    "call_held": UNAVAILABLE,
    "call_pending": FAILED,
    "child_cancelled": FAILED,
    "child_failed": FAILED,
    "configuration_error": USAGE,
    "conflict": CONFLICT,
    "deadline_exceeded": FAILED,
    "effects_undone": CONFLICT,
    "error": FAILED,
    "fingerprint_mismatch": CONFLICT,
    "idempotency_conflict": CONFLICT,
    "inbox_full": UNAVAILABLE,
    "invalid_input": USAGE,
    "invalid_key": USAGE,
    "invalid_request": USAGE,
    "invalid_schedule": USAGE,
    "invalid_signature": USAGE,
    "invalid_token": NOT_FOUND,
    "lease_lost": CONFLICT,
    "not_allowed": FAILED,
    "not_found": NOT_FOUND,
    "operation_conflict": CONFLICT,
    "operation_failed": FAILED,
    "operation_not_found": NOT_FOUND,
    "result_unstorable": FAILED,
    "rule_not_found": NOT_FOUND,
    "schedule_conflict": CONFLICT,
    "schedule_not_found": NOT_FOUND,
    "schema_mismatch": SCHEMA,
    "schema_outdated": SCHEMA,
    "schema_too_new": SCHEMA,
    "scope_busy": UNAVAILABLE,
    "session_taken": CONFLICT,
    "settlement_conflict": CONFLICT,
    "signal_conflict": CONFLICT,
    "callback_over": CONFLICT,
    "step_failed": FAILED,
    "store_unavailable": UNAVAILABLE,
    "stream_overrun": UNAVAILABLE,
    "task_cancelled": FAILED,
    "task_ended": CONFLICT,
    "task_failed": FAILED,
    "task_not_ended": CONFLICT,
    "task_not_found": NOT_FOUND,
    "tool_failed": FAILED,
    "tool_rejected": FAILED,
    "unavailable": UNAVAILABLE,
    "unserializable": USAGE,
    "unsettled": FAILED,
    "unsettled_prefix": CONFLICT,
    "value_too_large": USAGE,
    "version_in_use": CONFLICT,
    "wait_timeout": FAILED,
}
"""Error code to exit code; complete, which a test checks."""

EXIT_HELP: Final = (
    "Exit codes: 0 ok, 1 failed, 2 wrong usage, input or configuration, 3 not found, 4 conflict with what is"
    " recorded, 5 unavailable, 6 schema. Errors go to standard error; with --json as one object"
    ' {"error": {"code", "message"}}.'
)

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def masked(text: str) -> str:
    """Take passwords out of URLs in a text, and what would steer a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", mask_passwords(text))


def say_error(code: str, message: str, *, as_json: bool) -> None:
    """Say an error on standard error."""
    text = masked(" ".join(message.split()) or code)
    if as_json:
        text = json.dumps({"error": {"code": code, "message": text}})
    else:
        text = f"outlast: {text}"
    typer.echo(text, err=True)


class Commands(TyperGroup):
    """All commands; what their parser refuses is said as any other error is, on one line or as JSON."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Parse and run; ends the process with the exit code."""
        given = sys.argv[1:] if args is None else [*args]
        try:
            code = super().main(args, *more, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            # Without a message it has shown a group's help, for a command that is missing.
            if said := error.format_message().strip():
                where = "" if context is None else f" ({context.command_path} -h shows what there is)"
                say_error(InvalidRequest.code, said + where, as_json="--json" in given)
            code = USAGE
        except typer.Abort:
            # Somebody was asked, and said no, or nothing.
            say_error(OutlastError.code, "not done", as_json="--json" in given)
            code = FAILED
        sys.exit(code or OK)


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a command of a function, async or not, that may answer an exit code and raise any error.

    Its parameter ``as_json``, where it has one, also decides how errors are said.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        as_json = bool(options.get("as_json"))
        code: int | None
        try:
            answer = function(*args, **options)
            code = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        except OutlastError as error:
            say_error(error.code, str(error), as_json=as_json)
            code = EXIT_CODES.get(error.code, FAILED)
        except (KeyboardInterrupt, asyncio.CancelledError):
            code = INTERRUPTED
        except BrokenPipeError:
            # Whoever reads our output has enough of it; the interpreter's last flush must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = OK
        except (typer.TyperException, typer.Exit, typer.Abort):
            raise
        # A fault of ours: still no traceback in front of people, unless they ask for it.
        except Exception as error:
            if os.environ.get("OUTLAST_DEBUG"):
                traceback.print_exc()
            message = f"internal error: {type(error).__name__}: {error} (OUTLAST_DEBUG=1 shows where)"
            say_error("error", message, as_json=as_json)
            code = FAILED
        if code:
            raise typer.Exit(code)

    return run
