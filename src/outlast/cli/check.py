"""``outlast check``: configuration, schema, policy, workers and versions, before a deploy and after it."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from outlast.app import Outlast
from outlast.checking import Finding, check_declared, check_stored
from outlast.cli import options
from outlast.cli.failing import CONFLICT, EXIT_CODES, OK, USAGE, command, masked
from outlast.cli.loading import load_app
from outlast.cli.printing import say, say_json
from outlast.core import ids
from outlast.errors import ConfigurationError, OutlastError
from outlast.settings import Settings


@command
async def check(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="Your app, if it is to be looked at as well."),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose standing rules.")] = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Look for what stands in the way of a deploy, and for what works otherwise than somebody may think.

    It reads settings, the schema's version, your app's tools and their policy, standing rules, what living
    workers declare, versions that tasks need, unknown calls, and clocks; nothing is written.

    It ends with 0 when nothing was found, with 4 when there are warnings only, else with the error's code.

    Example: outlast check app:app --json
    """
    ids.check_name(tenant, "tenant")
    found: list[Finding] = []
    app = _configured(target, database_url, found)
    database = schema = None
    if app is not None:
        if target is not None:
            found += check_declared(app)
        try:
            database = app.store.url
            async with app:
                schema = (await app.store.health()).schema_version
                found += await check_stored(app, tenant=tenant, declares=target is not None)
        except OutlastError as error:
            found.append(_error(error.code, "database", str(error)))
    found.sort(key=lambda one: one.level)
    if as_json:
        say_json({"ok": not found, "database": database, "schema": schema, "findings": found})
    else:
        _say(found, database, schema)
    return _code(found)


def _code(found: list[Finding]) -> int:
    """Answer the exit code: that of the first error, or the one for warnings."""
    if not found:
        return OK
    first = found[0]
    return CONFLICT if first.level == "warning" else EXIT_CODES.get(first.code, USAGE)


def _configured(target: str | None, database_url: str | None, found: list[Finding]) -> Outlast | None:
    """Read the settings and load the app; what cannot be is found."""
    # Here, so that no other command pays for loading a web framework.
    from outlast.server.auth import Keys

    try:
        url = options.choose_database(database_url)
        Keys(Settings().api_keys)
        return Outlast("check", database_url=url) if target is None else load_app(target)
    except ConfigurationError as error:
        found.append(_error(error.code, "configuration", str(error)))
    except ValidationError as error:
        for one in error.errors(include_input=False, include_url=False):
            name = "OUTLAST_" + "_".join(str(part) for part in one["loc"]).upper()
            found.append(_error(ConfigurationError.code, "configuration", f"{name}: {one['msg']}"))
    return None


def _error(code: str, about: str, message: str) -> Finding:
    return Finding(level="error", code=code, about=about, message=masked(message), hint="")


def _say(found: list[Finding], database: str | None, schema: int | None) -> None:
    for one in found:
        say(f"{one.level:<7}  {one.about}: {one.message}")
        if one.hint:
            say(f"{'':<7}  {one.hint}")
    if not found:
        say(f"{database}: schema {schema}; nothing stands in the way")
