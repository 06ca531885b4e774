"""What is pinned, what is not, and that no file ties us to one package registry."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==[A-Za-z0-9.+!]+")

# In pieces, so that this file passes its own test.
REGISTRIES = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pypi", "python", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("anaconda", "org"),
        ("deb", "debian", "org"),
    ]
]
ADDRESS = re.compile(
    "|".join([*map(re.escape, REGISTRIES), "(?:index|find|trusted)" + "-(?:url|links|host)"])
)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _files() -> list[Path]:
    """Every file that is, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_constraints_are_exact_pins_and_nothing_else() -> None:
    assert [line for line in _pins() if not PIN.fullmatch(line)] == []


def test_every_dependency_is_pinned() -> None:
    pinned = {_canonical(line.partition("==")[0]) for line in _pins()}
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["dev"], *extras["embedded"]]
    names = {_canonical(re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]) for requirement in needed}
    assert names - pinned == set()


def test_dependencies_have_lower_bounds_only() -> None:
    assert [each for each in PROJECT["dependencies"] if not re.fullmatch(r"[a-z0-9-]+>=[0-9.]+", each)] == []


def test_no_file_names_a_registry() -> None:
    found = []
    for path in _files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in ADDRESS.finditer(text)]
    assert found == []
