"""Everything that the pages run, runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.docs.blocks import Page, pages
from tests.docs.processes import free_port
from tests.docs.session import DATABASE, GATEWAY, PRINTER, SERVICE, TICKETS, Session

from outlast.testing import Recorder

SESSIONS = [(page, name) for page in pages() for name in page.sessions()]


@pytest.mark.parametrize(("page", "name"), SESSIONS, ids=[f"{page.name}:{name}" for page, name in SESSIONS])
def test_what_a_page_runs_runs(
    page: Page, name: str, folder: Path, tickets: Recorder, request: pytest.FixtureRequest
) -> None:
    asyncio.run(tickets.reset())
    places = {TICKETS: tickets.url, PRINTER: str(free_port()), GATEWAY: str(free_port())}
    places[SERVICE] = f"127.0.0.1:{free_port()}"
    if any(DATABASE in block.text for block in page.blocks if block.name == name or block.marker == "file"):
        places[DATABASE] = request.getfixturevalue("bare_postgres_url")
    session = Session(page, name, folder, places)
    session.names["tickets"] = tickets
    session.run()
