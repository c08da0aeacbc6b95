"""Settings of the web pages."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from exporters.model import UNOWNED
from headroom.config.receivers import MIN_TOKEN_CHARS
from headroom.config.types import Section


class ScopedTokenConfig(Section):
    """A token of an application, which sees the clients for which all that is given holds."""

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None
    token_file: Path | None = None
    user: str = ""
    client_id_prefix: str = ""
    team: str = ""

    @model_validator(mode="after")
    def _sees_some_clients(self) -> ScopedTokenConfig:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("set either token or token_file")
        if not (self.user or self.client_id_prefix or self.team):
            raise ValueError("set user, client_id_prefix or team: a token without them would see all clients")
        if self.team == UNOWNED:
            raise ValueError(f"{UNOWNED} is no team")
        return self


class WebConfig(Section):
    """Who may read the pages and `/api/v1/` at the HTTP address. /metrics and the probes need no token.

    On a loopback address every local user may; on other addresses a reader needs a token or a trusted proxy.
    """

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None
    """Bearer token, or password of any user; use HEADROOM_WEB__TOKEN"""
    token_file: Path | None = None
    """File of that token"""
    tokens: tuple[ScopedTokenConfig, ...] = Field(default=(), max_length=1_000)
    """Tokens of applications, which see their own clients at /api/v1/me and /me and reach nothing else: {token or
    token_file, user, client_id_prefix, team}; with them no reader goes without a token"""
    host_names: tuple[str, ...] = ()
    """Accepted Host headers at every path besides localhost and addresses, such as the name by which Prometheus
    scrapes"""
    user_header: str = "x-forwarded-user"
    """Header in which a trusted proxy names the user; any user may read"""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of trusted proxies"""

    @model_validator(mode="after")
    def _operators_can_read(self) -> WebConfig:
        if self.tokens and not (self.token or self.token_file or self.trusted_proxies):
            raise ValueError("tokens need token, token_file or trusted_proxies besides: operators could read nothing")
        if self.token and self.token_file:
            raise ValueError("set either token or token_file, not both")
        return self
