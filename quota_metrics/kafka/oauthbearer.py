"""OAUTHBEARER by a client's properties: where tokens come from, and which SASL extensions go with them (RFC 7628).

Java names both in properties and in the options of its login module, librdkafka in properties of other names. A token
is of a file, an issuer's endpoint, or unsigned for tests; to get one may block.
"""

import base64
import json
import re
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from quota_metrics.kafka.authentication import OAuthBearer, SaslError
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.tls import tls_context

_NAME = "sasl.oauthbearer."
_UNSECURED: Final = "unsecuredLogin"
# As in OAuthBearerClientInitialResponse.
_EXTENSION_NAME = re.compile("[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 1 << 20
_UNSECURED_LIFETIME_S: Final = 3600  # OAuthBearerUnsecuredLoginCallbackHandler's default


def oauthbearer(properties: Mapping[str, str], login: Mapping[str, str]) -> OAuthBearer:
    """`login`: the options of the login module. Raises PropertiesError."""
    url = properties.get(f"{_NAME}token.endpoint.url", "")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return OAuthBearer(
            partial(_token_of_file, Path(urllib.request.url2pathname(parts.path))), _extensions(properties, login)
        )
    if parts.scheme in ("http", "https"):
        return OAuthBearer(_tokens_of_endpoint(url, properties, login), _extensions(properties, login))
    if url or not any(name.startswith(_UNSECURED) for name in login):
        raise PropertiesError("OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url: file:, http: or https:")
    return OAuthBearer(_unsecured_tokens(login), _checked(_named(login, f"{_UNSECURED}Extension_")))


def _tokens_of_endpoint(url: str, properties: Mapping[str, str], login: Mapping[str, str]) -> Callable[[], str]:
    """A property comes before an option of the login module, as in Java."""

    def first(option: str, *names: str) -> str:
        values = [*(properties.get(f"{_NAME}{name}") for name in names), login.get(option)]
        return next(filter(None, values), "")

    client_id = first("clientId", "client.credentials.client.id", "client.id")
    secret = first("clientSecret", "client.credentials.client.secret", "client.secret")
    if not client_id or not secret:
        raise PropertiesError(
            "OAUTHBEARER needs a client: sasl.oauthbearer.client.credentials.client.id and .secret, or"
            " sasl.oauthbearer.client.id and .secret"
        )
    tls = {name: value for name, value in login.items() if name.startswith("ssl.")} | {
        f"ssl.ca.{form}": properties[f"https.ca.{form}"]
        for form in ("location", "pem")
        if properties.get(f"https.ca.{form}")
    }
    is_encoded = properties.get(f"{_NAME}header.urlencode", "false")
    if is_encoded.lower() not in ("true", "false"):
        raise PropertiesError(f"{_NAME}header.urlencode={is_encoded} is neither true nor false")
    if is_encoded.lower() == "true":  # as in a form (RFC 6749, 2.3.1), which few issuers expect
        client_id, secret = _form_encoded(client_id), _form_encoded(secret)
    return partial(
        _token_of_endpoint,
        url,
        f"Basic {base64.b64encode(f'{client_id}:{secret}'.encode()).decode()}",
        first("scope", "scope"),
        tls_context(tls) if tls else None,
    )


def _extensions(properties: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's name=value,name=value, and Java's option for each."""
    pairs = [part.strip() for part in properties.get(f"{_NAME}extensions", "").split(",") if part.strip()]
    if not all("=" in pair for pair in pairs):
        raise PropertiesError("sasl.oauthbearer.extensions is not name=value,name=value")
    return _checked(_named(login, "extension_") | {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs})


def _checked(extensions: dict[str, str]) -> dict[str, str]:
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            raise PropertiesError(
                f"the SASL extension {name!r} is none: a name of letters but auth, and a value in ASCII"
            )
    return extensions


def _unsecured_tokens(login: Mapping[str, str]) -> Callable[[], str]:
    """As Java's OAuthBearerUnsecuredLoginCallbackHandler: claims are strings, numbers, or lists whose first character
    separates their elements."""
    try:
        numbers = {name: float(value) for name, value in _named(login, f"{_UNSECURED}NumberClaim_").items()}
        lifetime_s = int(login.get(f"{_UNSECURED}LifetimeSeconds", _UNSECURED_LIFETIME_S))
    except ValueError as exc:
        raise PropertiesError(f"the unsecured token cannot be made: {exc}") from exc
    lists = {
        name: [part for part in value[1:].split(value[0]) if part] if value else []
        for name, value in _named(login, f"{_UNSECURED}ListClaim_").items()
    }
    claims: dict[str, object] = {**_named(login, f"{_UNSECURED}StringClaim_"), **numbers, **lists}
    return partial(unsecured, claims, lifetime_s=lifetime_s)


def _named(login: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in login.items() if name.startswith(prefix)}


def _token_of_file(path: Path) -> str:
    """The file's content, read again for each connection because the file is renewed. Raises SaslError."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SaslError(f"the token file {path} cannot be read: {exc}") from exc


def _form_encoded(text: str) -> str:
    """java.net.URLEncoder."""
    return urllib.parse.quote_plus(text, safe="*").replace("~", "%7E")


def _token_of_endpoint(url: str, authorization: str, scope: str, tls: ssl.SSLContext | None) -> str:
    """OAuth's client credentials grant (RFC 6749, 4.4). `tls` None trusts the system's certificates. Raises
    SaslError."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    request = urllib.request.Request(  # noqa: S310  # http or https
        url, urllib.parse.urlencode(form).encode(), {"Authorization": authorization}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:  # noqa: S310  # as above
            token = json.loads(answer.read(_MAX_ANSWER_BYTES))["access_token"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SaslError(f"no token from {url}: {exc}") from exc
    if not isinstance(token, str):
        raise SaslError(f"no token from {url}: access_token is not a string")
    return token


def unsecured(
    claims: Mapping[str, object], now_s: Callable[[], float] = time.time, lifetime_s: int = _UNSECURED_LIFETIME_S
) -> str:
    """A JWT without signature, like that of OAuthBearerUnsecuredLoginCallbackHandler."""
    issued_s = now_s()
    body = dict(claims) | {"iat": issued_s, "exp": issued_s + lifetime_s}
    return f"{_segment({'alg': 'none'})}.{_segment(body)}."


def _segment(values: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
