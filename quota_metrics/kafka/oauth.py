"""Sources of OAUTHBEARER tokens: a file, an issuer's endpoint, or an unsigned token for tests. May block."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quota_metrics.kafka.sasl import SaslError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 20
UNSECURED_LIFETIME_S = 3600  # OAuthBearerUnsecuredLoginCallbackHandler's default


def from_file(path: Path) -> str:
    """The file's content, read again for each connection because the file is renewed. Raises SaslError."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SaslError(f"the token file {path} cannot be read: {exc}") from exc


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """`is_encoded`: the parts are encoded as in a form (RFC 6749, 2.3.1), which few issuers expect."""

    client_id: str
    secret: str = field(repr=False)
    is_encoded: bool = False

    @property
    def header(self) -> str:
        parts = (self.client_id, self.secret)
        if self.is_encoded:
            parts = (_form_encoded(self.client_id), _form_encoded(self.secret))
        return f"Basic {base64.b64encode(':'.join(parts).encode()).decode()}"


def _form_encoded(text: str) -> str:
    """java.net.URLEncoder."""
    return urllib.parse.quote_plus(text, safe="*").replace("~", "%7E")


def from_endpoint(url: str, client: ClientCredentials, scope: str, tls: ssl.SSLContext | None = None) -> str:
    """OAuth's client credentials grant (RFC 6749, 4.4). `url` is http or https; `tls`: None trusts the system's
    certificates. Raises SaslError."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    request = urllib.request.Request(  # noqa: S310  # the scheme is checked where the configuration is read
        url, urllib.parse.urlencode(form).encode(), {"Authorization": client.header}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=tls) as answer:  # noqa: S310  # as above
            token = json.loads(answer.read(MAX_ANSWER_BYTES))["access_token"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SaslError(f"no token from {url}: {exc}") from exc
    if not isinstance(token, str):
        raise SaslError(f"no token from {url}: access_token is not a string")
    return token


def unsecured(
    claims: Mapping[str, object], now_s: Callable[[], float] = time.time, lifetime_s: int = UNSECURED_LIFETIME_S
) -> str:
    """A JWT without signature, like that of OAuthBearerUnsecuredLoginCallbackHandler."""
    issued_s = now_s()
    body = dict(claims) | {"iat": issued_s, "exp": issued_s + lifetime_s}
    return f"{_segment({'alg': 'none'})}.{_segment(body)}."


def _segment(values: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
