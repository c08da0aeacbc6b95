"""Which clients a token of `web.tokens` sees, and the only paths that it reaches. Sans-I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

ME: Final = "/api/v1/me"
ME_PAGE: Final = "/me"
_STYLE: Final = "/static/headroom.css"  # of the page
REACHED: Final = frozenset({ME, ME_PAGE, _STYLE})
OF_REQUEST: Final = "headroom.scope"  # whose request it is, in the ASGI scope


class ClientScope(NamedTuple):
    """The clients for which all that is not empty holds."""

    user: str = ""
    client_id_prefix: str = ""
    team: str = ""

    def sees(self, user: str, client_id: str, team: str) -> bool:
        return (
            any(self)
            and self.user in ("", user)
            and client_id.startswith(self.client_id_prefix)
            and self.team in ("", team)
        )


class Scopes:
    """The scope of each token. Tokens are kept and looked up as hashes, so that the time tells nothing of them."""

    def __init__(self, scopes: Iterable[tuple[str, ClientScope]] = ()) -> None:
        self._scopes = {_hash(token): scope for token, scope in scopes}

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def of(self, token: str) -> ClientScope | None:
        """None: it is no token with a scope."""
        return self._scopes.get(_hash(token))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
