"""Sources of OAUTHBEARER tokens: a file, an issuer's endpoint, or an unsigned token for tests. May block."""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
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


def from_endpoint(url: str, client_id: str, client_secret: str, scope: str | None) -> str:
    """OAuth's client credentials grant (RFC 6749, 4.4). `url` is http or https. Raises SaslError."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    credentials = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # the scheme is checked where the configuration is read
        url, urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {credentials}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  # as above
            token = json.loads(answer.read(MAX_ANSWER_BYTES))["access_token"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SaslError(f"no token from {url}: {exc}") from exc
    if not isinstance(token, str):
        raise SaslError(f"no token from {url}: access_token is not a string")
    return token


def unsecured(claims: Mapping[str, str], now_s: Callable[[], float] = time.time) -> str:
    """A JWT without signature, like that of OAuthBearerUnsecuredLoginCallbackHandler."""
    issued_s = now_s()
    body = dict(claims) | {"iat": issued_s, "exp": issued_s + UNSECURED_LIFETIME_S}
    return f"{_segment({'alg': 'none'})}.{_segment(body)}."


def _segment(values: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
