"""``python -m bench.peers.install [--python PATH]``: get the engines, each into an environment of its own.

They are never dependencies of Outlast: the environments lie in a temporary folder (``OUTLAST_PEERS`` names
another), and the package index is the one that pip is configured to use. nexura-runtime needs Python 3.12.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

__all__ = ["PEERS", "install", "interpreter", "versions"]

PEERS = ("dbos", "langgraph", "nexura")
_HERE = Path(__file__).parent


def _folder(peer: str) -> Path:
    return Path(os.environ.get("OUTLAST_PEERS") or Path(tempfile.gettempdir(), "outlast-peers")) / peer


def interpreter(peer: str) -> Path:
    """Answer the interpreter of a peer's environment, whether or not it is there."""
    return _folder(peer) / "bin" / "python"


def install(peer: str, python: str) -> str | None:
    """Make a peer's environment; answer why it could not be, None when it is there."""
    for command in (
        [python, "-m", "venv", str(_folder(peer))],
        [
            str(interpreter(peer)),
            "-m",
            "pip",
            "install",
            "--quiet",
            "-r",
            str(_HERE / f"requirements-{peer}.txt"),
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    return None


def versions(peer: str) -> dict[str, str] | None:
    """Answer what a peer's environment holds of what is pinned, None when it is not there.

    For ``outlast`` it is the version that runs here.
    """
    if peer == "outlast":
        return {"outlast": metadata.version("outlast")}
    if not interpreter(peer).exists():
        return None
    frozen = subprocess.run(
        [str(interpreter(peer)), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.split()
    pinned = [line.partition("==") for line in (_HERE / f"requirements-{peer}.txt").read_text().split()]
    names = {name.partition("[")[0].lower() for name, _, _ in pinned}
    found = dict(line.split("==", 1) for line in frozen if "==" in line)
    return {name: version for name, version in found.items() if name.lower() in names}


def main() -> None:
    """Install what is wanted, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.install", description=__doc__)
    parser.add_argument("peers", nargs="*", default=PEERS, help="which; all by default")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    options = parser.parse_args()
    for peer in options.peers:
        problem = install(peer, options.python)
        print(f"{peer}: {problem or versions(peer)}")


if __name__ == "__main__":
    main()
