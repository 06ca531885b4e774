"""https on the other side: connected to by address, spoken to under its name, and believed under no other."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.gateway.desk import HOST, Desk, Other

OTHER = "elsewhere.test"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for HOST that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests",
            "-addext", f"subjectAltName=DNS:{HOST}", "-out", str(paths[0]), "-keyout", str(paths[1]),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return paths


@pytest.fixture
async def secure(certificate: tuple[Path, Path]) -> AsyncIterator[Other]:
    """Another side that speaks TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    asked: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked.append(name)  # type: ignore[assignment]
    other = Other()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0, ssl=context)
    other.port = server.sockets[0].getsockname()[1]
    other.names = asked  # type: ignore[attr-defined]
    yield other
    server.close()


async def test_https_is_spoken_under_the_name_and_to_the_address(
    closed_desk: Desk, secure: Other, certificate: tuple[Path, Path]
) -> None:
    desk, places = closed_desk, tuple(f"https://{name}:{secure.port}" for name in (HOST, OTHER))
    desk.names[OTHER] = [["127.0.0.1"]]
    _, said = await desk.called()
    said = replace(said, hosts=places)
    async with desk.open(allow=places, ca_file=str(certificate[0])):
        for _ in range(2):
            answer = await desk.send(said, desk.reverse(f"{places[0]}/x"), content=b"x")
            assert (answer.status_code, answer.text) == (200, "ok")
        assert secure.headers()["host"] == [f"{HOST}:{secure.port}"]
        assert (secure.connections, secure.names) == (1, [HOST])  # type: ignore[attr-defined]
        # The same address under another name: a connection of its own, and no certificate for it.
        answer = await desk.send(said, desk.reverse(f"{places[1]}/x"), content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (502, "unreachable")
    assert len(secure.heads) == 2
    async with desk.open(allow=places):
        answer = await desk.send(said, desk.reverse(f"{places[0]}/x"), content=b"x")
        assert answer.json()["code"] == "unreachable", "nobody vouches for it"
    assert len(secure.heads) == 2
