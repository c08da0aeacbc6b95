"""Settings of the web pages."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from headroom.config.receivers import MIN_TOKEN_CHARS
from headroom.config.types import Section


class WebConfig(Section):
    """Who may read the pages and `/api/v1/` at the HTTP address. /metrics, /healthz and /readyz need no token.

    On a loopback address every local user may; on other addresses a reader needs a token or a trusted proxy.
    """

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = Field(
        default=None, description="Bearer token, or password of any user; use HEADROOM_WEB__TOKEN"
    )
    token_file: Path | None = Field(default=None, description="File of that token")
    host_names: tuple[str, ...] = Field(
        default=(),
        description="Accepted Host headers at every path besides localhost and addresses, such as the name by which "
        "Prometheus scrapes",
    )
    user_header: str = Field(
        default="x-forwarded-user", description="Header in which a trusted proxy names the user; any user may read"
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(), description="Networks of trusted proxies"
    )

    @model_validator(mode="after")
    def _one_token(self) -> WebConfig:
        if self.token and self.token_file:
            raise ValueError("set either token or token_file, not both")
        return self
