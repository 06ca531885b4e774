"""How commands end: one table of exit codes, errors in one place, no traceback and no password."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
import typer
from tests.cli.shell import Shell
from typer.testing import CliRunner

from outlast import errors
from outlast.cli.failing import EXIT_CODES, command
from outlast.cli.main import command_line
from outlast.cli.options import AsJson
from outlast.streams.tail import Overrun

PUBLIC = [getattr(errors, name) for name in errors.__all__]
ERRORS = [error for error in [*PUBLIC, Overrun] if issubclass(error, errors.OutlastError)]


def ending_of(error: BaseException, *arguments: str) -> Any:
    """Run a command that raises."""
    made = typer.Typer(pretty_exceptions_enable=False)

    @made.command()
    @command
    async def act(as_json: AsJson = False) -> None:
        raise error

    return CliRunner().invoke(made, list(arguments))


def test_every_error_has_an_exit_code() -> None:
    assert EXIT_CODES.keys() == {error.code for error in ERRORS}


def test_kinds_of_errors_share_an_exit_code() -> None:
    for error in ERRORS:
        for kind, code in (
            (errors.NotFound, 3),
            (errors.Conflict, 4),
            (errors.Unavailable, 5),
            (errors.SchemaMismatch, 6),
        ):
            if issubclass(error, kind):
                assert EXIT_CODES[error.code] == code
        if issubclass(error, errors.InvalidRequest | errors.ConfigurationError):
            assert EXIT_CODES[error.code] == 2


def test_an_error_is_one_line_on_standard_error() -> None:
    ended = ending_of(errors.TaskNotFound("no task\nof that\x1b[31m id"))
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr == "outlast: no task of that\ufffd[31m id\n"


def test_an_error_is_json_where_json_is_asked_for() -> None:
    ended = ending_of(errors.Busy("a twin is open"), "--json")
    assert (ended.exit_code, ended.stdout) == (5, "")
    assert json.loads(ended.stderr) == {"error": {"code": "busy", "message": "a twin is open"}}


@pytest.mark.parametrize("fault", [RuntimeError, ValueError, errors.StoreUnavailable])
def test_a_password_is_never_shown(fault: type[Exception]) -> None:
    ended = ending_of(fault("cannot reach postgresql://me:s3cret@db:5432/x?password=s3cret2 now"))
    assert ended.exit_code in (1, 5)
    assert "s3cret" not in ended.output


def test_a_fault_of_ours_has_no_traceback_either() -> None:
    ended = ending_of(ZeroDivisionError("division by zero"))
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("outlast: internal error: ZeroDivisionError: division by zero")
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interruption_is_130(interruption: type[BaseException]) -> None:
    assert ending_of(interruption()).exit_code == 130


def _commands() -> list[list[str]]:
    """Answer every command there is, as it is typed."""
    app = command_line()
    found = [[each.name or each.callback.__name__] for each in app.registered_commands if each.callback]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found += [[str(group.name), str(each.name)] for each in group.typer_instance.registered_commands]
    return sorted(found)


COMMANDS = _commands()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does_with_an_example(path: list[str]) -> None:
    ended = CliRunner().invoke(command_line(path), [*path, "--help"], env={"COLUMNS": "120"})
    assert ended.exit_code == 0
    assert "Example: " in ended.stdout
    assert f"outlast {' '.join(path)}" in ended.stdout
    assert "--json" in ended.stdout


def test_the_commands_are_those_of_every_group() -> None:
    assert {path[0] for path in COMMANDS} >= {
        "dev",
        "serve",
        "worker",
        "tasks",
        "operations",
        "approvals",
        "rules",
    }
    assert len(COMMANDS) > 25


def test_the_whole_says_its_exit_codes_and_its_version() -> None:
    app = command_line(["--help"])
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).stdout
    assert "Exit codes: 0 ok" in said
    assert all(f" {path[0]} " in said for path in COMMANDS)
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("outlast 0.")


def test_a_command_that_there_is_not_is_refused() -> None:
    ended = CliRunner().invoke(command_line(["task", "list"]), ["task", "list"])
    assert ended.exit_code == 2
    assert "No such command 'task'" in ended.stderr


def test_a_command_loads_nothing_that_only_others_need() -> None:
    program = (
        "import sys; from outlast.cli.main import command_line; command_line(['tasks', 'list']);"
        " print(*sorted({'outlast.gateway', 'structlog', 'uvicorn'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


class TestInAShell:
    """The same with real processes: the exit codes that scripts see."""

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["no-such-command"], 2),
            (["tasks", "list", "--limit", "many"], 2),
            (["tasks", "list", "--tenant", "two words"], 2),
            (["worker", "nowhere:app"], 2),
            (["worker", "app:nothing"], 2),
            (["worker", "app:greet"], 2),
            (["worker", "not a module"], 2),
            (["serve", "app:app", "--host", "0.0.0.0"], 2),
            (["tasks", "list", "--database-url", "mysql://u:s3cret@db/x"], 2),
            (["tasks", "list"], 6),
            (["tasks", "submit", "app:app", "greet"], 6),
            (["worker", "app:app"], 6),
            (["serve", "app:app", "--port", "0"], 6),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
    )
    def test_wrong_usage_and_a_missing_schema(self, bare: Shell, arguments: list[str], code: int) -> None:
        ended = bare.run(*arguments)
        assert ended.code == code, ended.err
        assert ended.out == ""
        assert ended.err != ""
        assert "s3cret" not in ended.err

    @pytest.mark.parametrize(
        "arguments",
        [
            ["migrate"],
            ["tasks", "list"],
            ["worker", "app:app"],
            ["serve", "app:app", "--port", "0"],
            ["dev", "app:app", "--port", "0"],
        ],
        ids=" ".join,
    )
    def test_a_database_that_is_away(self, bare: Shell, arguments: list[str]) -> None:
        ended = bare.run(*arguments, "--json", "--database-url", "postgresql://me:s3cret@127.0.0.1:1/x")
        assert (ended.code, ended.error["code"]) == (5, "store_unavailable")
        assert "s3cret" not in ended.err + ended.out
        assert len(ended.err.splitlines()) <= 2

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("import no_such_library", "app needs the module no_such_library, which is not installed"),
            ("x = 1\ny = x.upper()\n", "line 2"),
            ("def f(:\n", "SyntaxError"),
            ("raise SystemExit(3)", "cannot import app"),
            ("x = 1", "no Outlast app"),
            (
                "from outlast import Outlast\none = Outlast('one')\ntwo = Outlast('two')",
                "app has several apps; name one; it has app:one, app:two",
            ),
        ],
    )
    def test_a_module_that_cannot_be_used(self, bare: Shell, source: str, said: str) -> None:
        (bare.folder / "app.py").write_text(source)
        ended = bare.run("worker", "app")
        assert ended.code == 2
        assert said in ended.err
        assert len(ended.err.splitlines()) == 1

    def test_a_pipe_that_is_closed_is_no_error(self, bare: Shell) -> None:
        assert bare.run("migrate").code == 0
        with bare.start("tasks", "list", "--json") as listing:
            assert listing.process.stdout is not None
            assert listing.ended() == 0
