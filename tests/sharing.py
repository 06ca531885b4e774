"""Which tests stay together when the suite runs in several processes.

By their names, in the process that shares them out. The marks that xdist has for this say nothing since
pytest 9.2 (pytest-xdist issue 1386).
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["CROWDED", "Sharing", "group_of"]

CROWDED: Final = ("crashes", "drills")
"""Folders whose tests start many processes and watch leases run out: those of a folder one after the other,
beside the rest."""
APART: Final = ("tests/simulation/test_mixture.py",)
"""Modules whose tests are long, and need nothing of each other."""


def group_of(test: str) -> str:
    """Answer the group of a test by its id: its folder where that is crowded, else its class or module."""
    module = test.partition("::")[0]
    if module in APART:
        return test
    top, _, rest = module.partition("/")
    folder = rest.partition("/")[0]
    if top == "tests" and folder in CROWDED:
        return folder
    # What a test is given stands in brackets, and may hold anything.
    return test.partition("[")[0].rpartition("::")[0]


class Sharing(LoadScopeScheduling):
    """Share out groups in the order of their tests, each to whoever has next to nothing left."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        # What takes longest comes first by the order of the tests, not by how many there are of it.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
