"""Reads the security settings of a Kafka client's properties file (--command-config)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.oauth import from_endpoint, from_file, unsecured
from quota_metrics.kafka.renewed_tls import RenewedContext
from quota_metrics.kafka.sasl import Mechanism, OAuthBearer, Plain, Scram
from quota_metrics.kafka.tls import FILE_PROPERTIES

# What security() and tls_context() read.
OURS: Final = frozenset(
    (*FILE_PROPERTIES, "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username",
     "sasl.password", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.credentials.client.id",
     "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.scope", "ssl.truststore.certificates",
     "ssl.ca.pem", "ssl.truststore.password", "ssl.endpoint.identification.algorithm",
     "enable.ssl.certificate.verification", "ssl.keystore.certificate.chain", "ssl.certificate.pem", "ssl.keystore.key",
     "ssl.key.pem", "ssl.key.password", "ssl.keystore.password")
)  # fmt: skip
# Others of Java and librdkafka that resemble them, or have no dot.
KAFKAS: Final = frozenset(
    ("ssl.crl.location", "acks", "debug", "interceptors", "log_level", "opaque", "partitioner", "retries", "ssl_ca",
     "ssl_certificate", "ssl_key")
)  # fmt: skip
_LIKE = 0.9  # of difflib: one letter in ten is wrong
_DOTTED = re.compile(r"[\w-]+(\.[\w-]+)+")

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNSECURED_CLAIM = "unsecuredLoginStringClaim_"


def read_properties(path: Path) -> dict[str, str]:
    """The entries of a file. Raises PropertiesError when it cannot be read, and when a line of it would have no
    effect by mistake."""
    try:
        entries = parse_properties(path.read_text("utf-8"))
    except OSError as exc:
        raise PropertiesError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise PropertiesError(f"{path} is not a properties file: {exc}") from exc
    if faults := misspelled(entries):
        raise PropertiesError(f"{path}: {'; '.join(faults)}")
    return entries


def misspelled(entries: Mapping[str, str]) -> list[str]:
    """Names that are of no Kafka client. Properties that Headroom does not need are none of them; names of vendors and
    plug-ins have a dot and resemble none of ours."""
    faults = []
    for name in entries.keys() - OURS - KAFKAS:
        like = get_close_matches(name.lower(), OURS, 1, _LIKE)
        if like:
            faults.append(f"{name!r} is unknown, did you mean {like[0]}?")
        elif not _DOTTED.fullmatch(name):
            faults.append(f"{name!r} is no property of a Kafka client")
    return sorted(faults)


def parse_properties(text: str) -> dict[str, str]:
    """java.util.Properties.load: comments, `=`, `:` or blanks after a key, continued lines, backslash escapes."""
    entries = {}
    for line in re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text).splitlines():
        stripped = line.lstrip(" \t\f")
        if stripped and stripped[0] not in "#!":
            match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", stripped, re.DOTALL)
            assert match is not None  # each part may be empty
            entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def security(properties: Mapping[str, str]) -> Security:
    """The TLS and SASL settings; other properties are ignored. Raises PropertiesError."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise PropertiesError(f"security.protocol={protocol} is not one of {', '.join(PROTOCOLS)}")
    return Security(
        tls=RenewedContext(properties) if protocol.endswith("SSL") else None,
        sasl=_mechanism(properties) if protocol.startswith("SASL_") else None,
    )


def _mechanism(properties: Mapping[str, str]) -> Mechanism:
    name = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
    login = _jaas_options(properties.get("sasl.jaas.config", ""))
    username = login.get("username", properties.get("sasl.username", ""))
    password = login.get("password", properties.get("sasl.password", ""))
    if name == "OAUTHBEARER":
        return OAuthBearer(_token_source(properties, login))
    if name not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        known = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        raise PropertiesError(f"sasl.mechanism={name or '(none)'} is not one of {known}")
    if not username:
        raise PropertiesError(f"{name} needs a username and password, by sasl.jaas.config or sasl.username")
    if name == "PLAIN":
        return Plain(username, password)
    return Scram("sha" + name.removeprefix("SCRAM-SHA-"), username, password)


def _token_source(properties: Mapping[str, str], login: Mapping[str, str]) -> Callable[[], str]:
    url = properties.get("sasl.oauthbearer.token.endpoint.url", "")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return partial(from_file, Path(url2pathname(parts.path)))
    if parts.scheme in ("http", "https"):
        client_id = login.get("clientId", properties.get("sasl.oauthbearer.client.credentials.client.id", ""))
        secret = login.get("clientSecret", properties.get("sasl.oauthbearer.client.credentials.client.secret", ""))
        return partial(
            from_endpoint, url, client_id, secret, login.get("scope", properties.get("sasl.oauthbearer.scope"))
        )
    claims = {
        name.removeprefix(_UNSECURED_CLAIM): claim for name, claim in login.items() if name.startswith(_UNSECURED_CLAIM)
    }
    if not claims or url:
        raise PropertiesError("OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url: file:, http: or https:")
    return partial(unsecured, claims)


def _jaas_options(jaas: str) -> dict[str, str]:
    """The options of `some.LoginModule required name="value" other=value;`."""
    options = re.findall(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', jaas)
    return {name: re.sub(r"\\(.)", r"\1", quoted) if quoted else bare for name, quoted, bare in options}


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)
