"""Every public error has a stable code of its own."""

from __future__ import annotations

import re

from outlast import errors

PUBLIC = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type)
    and issubclass(value, BaseException)
    and value.__module__ == errors.__name__
    and not name.startswith("_")
}


def test_every_error_is_exported() -> None:
    assert set(PUBLIC) == set(errors.__all__)


def test_every_error_states_its_own_code() -> None:
    inherited = [name for name, error in PUBLIC.items() if "code" not in vars(error)]
    assert inherited == []


def test_codes_are_unique() -> None:
    names_by_code: dict[str, list[str]] = {}
    for name, error in PUBLIC.items():
        names_by_code.setdefault(error.code, []).append(name)
    assert {code: names for code, names in names_by_code.items() if len(names) > 1} == {}


def test_codes_are_words_for_machines() -> None:
    assert [error.code for error in PUBLIC.values() if not re.fullmatch(r"[a-z][a-z0-9_]*", error.code)] == []


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    assert errors.__doc__ is not None
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", errors.__doc__)] == []
