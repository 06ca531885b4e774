"""Settings from the environment, for the service and the command line."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_DATABASE_URL = "sqlite:///.outlast/outlast.db"


class Settings(BaseSettings):
    """What ``OUTLAST_…`` variables say.

    database_url: ``sqlite:///file.db`` or ``postgresql://…``. api_keys: comma-separated ``tenant:key`` pairs
    that the API accepts; with none set the API serves only loopback addresses, as tenant ``default``.
    max_body_bytes: the largest request body. lease_s: see WorkerSettings.
    """

    model_config = SettingsConfigDict(env_prefix="OUTLAST_", extra="ignore")

    database_url: str = DEFAULT_DATABASE_URL
    api_keys: SecretStr = SecretStr("")
    max_body_bytes: int = Field(default=2_000_000, ge=1_000)
    lease_s: float = Field(default=15.0, gt=0)
    slots: int = Field(default=100, ge=1)
