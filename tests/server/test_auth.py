"""Keys, and who is served without any."""

from __future__ import annotations

import httpx2
import pytest
from pydantic import SecretStr
from tests.server.desk import Desk, settings

from outlast.errors import ConfigurationError
from outlast.server import create_app
from outlast.server.auth import Keys, check_binding
from outlast.server.serving import Server

pytestmark = pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer key-a2",
        "Basic key-a",
        "key-a",
        "Bearer key-a key-b",
    ],
)
async def test_without_a_valid_key_there_is_nothing(desk: Desk, sent: str | None) -> None:
    api = create_app(desk.app, settings(api_keys="acme:key-a,bolt:key-b"), manage=False)
    client = desk.client_of(api, **({} if sent is None else {"authorization": sent}))
    for answer in (
        await client.get("/v1/tasks"),
        await client.post("/v1/tasks", json={"agent": "echo"}),
        await client.get("/v1/operations"),
        await client.get("/v1/tasks/nonsense/events"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert await desk.stored() == 0


async def test_health_needs_no_key(desk: Desk) -> None:
    client = desk.client_of(create_app(desk.app, settings(api_keys="acme:key-a"), manage=False))
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200


async def test_a_tenant_may_have_two_keys(desk: Desk) -> None:
    api = create_app(desk.app, settings(api_keys="acme:old, acme:new"), manage=False)
    for key in ("old", "new"):
        answer = await desk.client_of(api, authorization=f"Bearer {key}").get("/v1/tasks")
        assert answer.status_code == 200


@pytest.mark.parametrize("host", ["localhost:8700", "127.0.0.1", "[::1]:8700", "[::1]"])
async def test_without_keys_this_machine_is_served(desk: Desk, host: str) -> None:
    assert (await desk.client.get("/v1/tasks", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8700", "10.0.0.7", ""])
async def test_without_keys_other_names_of_this_machine_are_not(desk: Desk, host: str) -> None:
    answer = await desk.client.get("/v1/tasks", headers={"host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "OUTLAST_API_KEYS" in answer.json()["detail"]


async def test_without_keys_other_machines_are_not(desk: Desk) -> None:
    transport = httpx2.ASGITransport(app=desk.api, client=("10.0.0.7", 5000))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/tasks")).status_code == 403


@pytest.mark.parametrize(
    "text", ["just-a-key", "acme:", ":s3cret", "acme:s3cret,oops", "ac me:s3cret", "acme:gr\u00fc\u00df"]
)
def test_keys_that_cannot_be_read_are_said_without_showing_them(store_kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"OUTLAST_API_KEYS: entry [12]") as caught:
        Keys(SecretStr(text))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "acme:s3cret,other:s3cret",
        "acme:s3cret:ada:submitter,acme:s3cret:bob:admin",
        "acme:k,acme:s3cret,acme:s3cret",
    ],
)
def test_a_key_stands_for_one_principal(store_kind: str, text: str) -> None:
    """Else it would be chance whose tenant it opens, and with which roles."""
    with pytest.raises(ConfigurationError, match=r"same key as entry [12]") as caught:
        Keys(SecretStr(text))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_without_keys_nothing_but_this_machine_is_bound(store_kind: str, host: str) -> None:
    with pytest.raises(ConfigurationError, match="OUTLAST_API_KEYS"):
        check_binding(Keys(SecretStr("")), host)
    check_binding(Keys(SecretStr("acme:key")), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_without_keys_this_machine_is_bound(store_kind: str, host: str) -> None:
    check_binding(Keys(SecretStr("")), host)


async def test_a_server_asks_before_it_listens(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match="0\\.0\\.0\\.0 is not served"):
        Server(desk.api, "0.0.0.0", 0)
