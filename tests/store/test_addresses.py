"""What is shown of a database URL: never a password, however badly the URL is written."""

from __future__ import annotations

import re
import traceback

import pytest

from outlast import Outlast
from outlast.errors import ConfigurationError, OutlastError
from outlast.settings import Settings
from outlast.store.postgres.connections import mask

SECRET = re.compile("sec|ret", re.IGNORECASE)
MALFORMED = [
    # A password with a character that belongs to URLs, as generators make them.
    "postgresql://u:SEC/RET@127.0.0.1:1/db",
    "postgresql://u:12/RET@127.0.0.1:1/db",
    "postgresql://u:SEC?RET@127.0.0.1:1/db",
    "postgresql://u:12?RET@127.0.0.1:1/db",
    "postgresql://u:SEC#RET@127.0.0.1:1/db",
    "postgresql://u:12#RET@127.0.0.1:1/db",
    "postgresql://u:SEC[RET@127.0.0.1:1/db",
    "postgresql://u:SECRET",
    "postgresql://127.0.0.1:1:SECRET/db",
    "postgresql://127.0.0.1:SECRET,127.0.0.1:1/db",
    "postgresql:u:SECRET@127.0.0.1/db",
    "postgresql:/u:SECRET@127.0.0.1/db",
]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:p@db:5432/x", "postgresql://ada:***@db:5432/x"),
        ("postgresql://ada:p@q@db/x?sslmode=require", "postgresql://ada:***@db/x?sslmode=require"),
        ("postgresql://ada@one:1,two:2/x", "postgresql://ada@one:1,two:2/x"),
        ("postgresql://ada:p@[::1]:5432/x", "postgresql://ada:***@[::1]:5432/x"),
        ("postgresql:///x?host=/run/pg&password=p", "postgresql:///x?host=/run/pg&password=***"),
        ("postgresql://db/x", "postgresql://db/x"),
    ],
)
def test_an_address_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert mask(url) == shown


@pytest.mark.parametrize("url", MALFORMED)
async def test_no_part_of_a_password_is_told_of_a_malformed_url(url: str) -> None:
    """Neither in the message, nor in what caused it, which a traceback prints too."""
    app = Outlast("away", database_url=url)
    with pytest.raises(OutlastError) as refused:
        await app.open()
    await app.close()
    error: BaseException | None = refused.value
    told = []
    while error is not None:
        told.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    assert not [text for text in told if SECRET.search(text)]
    printed = [line for line in traceback.format_exception(refused.value) if "Error" in line]
    assert not [line for line in printed if SECRET.search(line)]


@pytest.mark.parametrize("url", MALFORMED)
async def test_a_malformed_url_is_refused_by_name(url: str) -> None:
    """It is not taken for another address, and says what to do about it."""
    app = Outlast("away", database_url=url)
    with pytest.raises(ConfigurationError, match="percent"):
        await app.open()
    await app.close()


def test_printed_settings_hold_no_password() -> None:
    settings = Settings(
        database_url="postgresql://u:canary-1@db/x", api_keys="acme:canary-2", secret="canary-3" * 4
    )
    assert "canary" not in repr(settings)
