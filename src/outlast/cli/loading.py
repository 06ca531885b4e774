"""From ``module:app`` to the user's Outlast app, imported from the current directory."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from outlast.app import Outlast
from outlast.errors import ConfigurationError

USUAL: Final = ("app", "main")
"""Where ``outlast dev`` looks when it is told nothing: ``app.py``, then ``main.py``."""


def load_app(target: str) -> Outlast:
    """Import the app that ``module:app`` names; ``module`` alone will do when it has one app only.

    A path such as ``src/app.py:app`` is taken too. Raises ConfigurationError that says what is wrong with
    which file and line.
    """
    name, _, attribute = target.partition(":")
    module = _import(name)
    if not attribute:
        return _only_app(module, name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name} has no {attribute}{_apps_hint(module, name)}")
        found = getattr(found, part)
    if not isinstance(found, Outlast):
        raise ConfigurationError(
            f"{target} is a {type(found).__name__}, not an Outlast app{_apps_hint(module, name)}"
        )
    return found


def find_target() -> str:
    """Answer the usual module of the current directory. Raises ConfigurationError that says what to do."""
    for name in USUAL:
        if Path(name + ".py").is_file() or Path(name, "__init__.py").is_file():
            return name
    raise ConfigurationError(
        "there is no app.py or main.py here; write one with an Outlast app in it,"
        " or name yours: outlast dev module:app"
    )


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py"):
        name = _module_of(Path(name))
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} is not a module; write module:app, for example app:app")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(f"there is no module {name} in {here}") from None
        raise ConfigurationError(f"{name} needs the module {error.name}, which is not installed") from None
    # Whatever the module's own code raises while it is imported.
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"cannot import {name}: {_what(error)}") from None


def _module_of(path: Path) -> str:
    here = Path.cwd()
    file = path.resolve()
    if not file.is_file():
        raise ConfigurationError(f"there is no file {path}")
    if file.is_relative_to(here):
        return ".".join(file.relative_to(here).with_suffix("").parts)
    sys.path.insert(0, str(file.parent))
    return file.stem


def _what(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__)
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _apps(module: ModuleType) -> dict[str, Outlast]:
    found: dict[str, Outlast] = {}
    for name, value in vars(module).items():
        if isinstance(value, Outlast) and all(value is not other for other in found.values()):
            found[name] = value
    return found


def _apps_hint(module: ModuleType, name: str) -> str:
    apps = list(_apps(module))
    return f"; it has {', '.join(f'{name}:{app}' for app in apps)}" if apps else ""


def _only_app(module: ModuleType, name: str) -> Outlast:
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise ConfigurationError(
            f"{name} has no Outlast app; make one: app = Outlast({name.split('.')[-1]!r})"
        )
    raise ConfigurationError(f"{name} has several apps; name one{_apps_hint(module, name)}")
