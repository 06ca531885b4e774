"""Settings from the environment, for the service and the command line."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from outlast import clock

DEFAULT_DATABASE_URL = "sqlite:///.outlast/outlast.db"


class Settings(BaseSettings):
    """What ``OUTLAST_…`` variables say.

    database_url: ``sqlite:///file.db`` or ``postgresql://…``, in whose password what is neither a letter nor
    a digit is percent-encoded. api_keys: comma-separated ``tenant:key``, or ``tenant:key:name:role+role`` for
    a person or a service with roles, that the API accepts; with none set the API serves only loopback
    addresses, as tenant ``default``.
    max_body_bytes: the largest request body. lease_s: see WorkerSettings. secret: what callbacks and links
    are signed with, at least 16 random characters, the same for all processes of an app. public_url: where
    the API is reached from outside. gateway_url: where ``outlast gateway`` is reached by workers and
    sandboxes.
    """

    model_config = SettingsConfigDict(env_prefix="OUTLAST_", extra="ignore")

    # It may hold a password, and whoever prints the settings does not look for one.
    database_url: str = Field(default=DEFAULT_DATABASE_URL, repr=False)
    api_keys: SecretStr = SecretStr("")
    max_body_bytes: int = Field(default=2_000_000, ge=1_000)
    lease_s: float = Field(default=15.0, gt=0)
    slots: int = Field(default=100, ge=1)
    secret: SecretStr = SecretStr("")
    public_url: str = ""
    gateway_url: str = ""


def local_secret(folder: Path) -> str:
    """Answer the secret that is kept in a folder, for development; it is made on first use, for its owner's
    eyes only."""
    path = folder / "secret"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"{clock.random_bits(256):064x}")
    except FileExistsError:
        # Made before, or at this moment by another process of the same folder.
        pass
    return path.read_text().strip()
