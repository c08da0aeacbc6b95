"""Reads the security settings of a Kafka client's properties file (--command-config), as java.util.Properties does.

A line that would have no effect by mistake is refused: a misspelled name, and a security property that only other
clients honour.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from quota_metrics.kafka.authentication import Mechanism, Plain, Scram, Security
from quota_metrics.kafka.bootstrap_servers import PROTOCOLS
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.jaas import JaasError, parse_jaas
from quota_metrics.kafka.oauthbearer import oauthbearer
from quota_metrics.kafka.tls import RenewedContext

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_REFUSED = {
    "AWS_MSK_IAM": "signs the name of the host that it connects to, so its clients cannot pass a gateway: use"
    " OAUTHBEARER with AWS's signer, or SCRAM (docs/managed-clusters.md)",
    "GSSAPI": "is not spoken by Headroom itself: use SCRAM, PLAIN or OAUTHBEARER (docs/security.md)",
}
# Of Kerberos, which is refused by its mechanism, and how soon and how often a client logs in: no matter of security.
_HARMLESS = re.compile(r"sasl\.kerberos\..*|.*\.(ms|seconds|factor|jitter)")

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
# What security() and tls_context() read.
OURS: Final = frozenset(
    ("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password",
     "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.credentials.client.id",
     "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.id",
     "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions",
     "sasl.oauthbearer.header.urlencode", "https.ca.location", "https.ca.pem",
     "ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.password", "ssl.truststore.type",
     "ssl.ca.location", "ssl.ca.pem", "ssl.crl.location", "ssl.endpoint.identification.algorithm",
     "enable.ssl.certificate.verification", "ssl.keystore.location", "ssl.keystore.certificate.chain",
     "ssl.keystore.key", "ssl.keystore.password", "ssl.keystore.type", "ssl.certificate.location",
     "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.protocol",
     "ssl.enabled.protocols")
)  # fmt: skip
# Others of Java and librdkafka that resemble them, or have no dot.
KAFKAS: Final = frozenset(
    ("acks", "debug", "interceptors", "log_level", "opaque", "partitioner", "retries", "ssl_ca", "ssl_certificate",
     "ssl_key")
)  # fmt: skip
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
# Properties that are not read, with the values that say what happens here anyway.
_ANYWAY: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.login.callback.handler.class": (
        f"{_OAUTH}OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    ),
    "sasl.oauthbearer.jwt.retriever.class": (
        f"{_OAUTH}DefaultJwtRetriever",
        f"{_OAUTH}ClientCredentialsJwtRetriever",
        f"{_OAUTH}FileJwtRetriever",
    ),
    "sasl.oauthbearer.method": ("oidc",),
    "sasl.oauthbearer.grant.type": ("client_credentials",),
    "sasl.oauthbearer.metadata.authentication.type": ("none",),
    "enable.sasl.oauthbearer.unsecure.jwt": ("false",),
    "ssl.keymanager.algorithm": ("SunX509",),
    "ssl.trustmanager.algorithm": ("PKIX",),
}
# `config.providers`: where Java would take `${env:PASSWORD}` from, which here would be the password itself.
_FAMILIES: Final = ("sasl.", "ssl.", "https.", "config.providers", "security.providers")
_LIKE = 0.9  # of difflib: one letter in ten is wrong
_DOTTED = re.compile(r"[\w-]+(\.[\w-]+)+")


def read_properties(path: Path) -> dict[str, str]:
    """The entries of a file, in ISO 8859-1 as Java reads it, trimmed as Kafka's clients do. Raises PropertiesError when
    it cannot be read, and when a line of it would have no effect by mistake."""
    try:
        read = parse_properties(path.read_bytes().decode("latin-1"))
    except OSError as exc:
        raise PropertiesError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise PropertiesError(f"{path} is not a properties file: {exc}") from exc
    # String.trim: without control characters and blanks at both ends, but with other kinds of space.
    entries = {name: value.strip("".join(map(chr, range(0x21)))) for name, value in read.items()}
    mechanism = entries.get("sasl.mechanism") or entries.get("sasl.mechanisms", "")
    if why := _REFUSED.get(mechanism.upper()):
        raise PropertiesError(f"sasl.mechanism={mechanism} {why}")
    if faults := [*misspelled(entries), *without_effect(entries)]:
        raise PropertiesError(f"{path}: {'; '.join(faults)}")
    return entries


def security(properties: Mapping[str, str]) -> Security:
    """The TLS and SASL settings; other properties are ignored. Raises PropertiesError."""
    protocol = protocol_of(properties)
    return Security(
        tls=RenewedContext(properties) if protocol.endswith("SSL") else None,
        sasl=_read_mechanism(properties) if protocol.startswith("SASL_") else None,
    )


def protocol_of(properties: Mapping[str, str]) -> str:
    """Raises PropertiesError."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise PropertiesError(f"security.protocol={protocol} is not one of {', '.join(PROTOCOLS)}")
    return protocol


def _read_mechanism(properties: Mapping[str, str]) -> Mechanism:
    name = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
    jaas = properties.get("sasl.jaas.config", "")
    try:
        login = parse_jaas(jaas).options if jaas else {}
    except JaasError as exc:
        raise PropertiesError(f"sasl.jaas.config cannot be used: {exc}") from exc
    if name not in _MECHANISMS:
        raise PropertiesError(f"sasl.mechanism={name or '(none)'} is not one of {', '.join(_MECHANISMS)}")
    if name == "OAUTHBEARER":
        return oauthbearer(properties, login)
    username = login.get("username", properties.get("sasl.username", ""))
    password = login.get("password", properties.get("sasl.password", ""))
    if not username or not password:
        raise PropertiesError(f"{name} needs a username and password, by sasl.jaas.config or sasl.username")
    if name == "PLAIN":
        return Plain(username, password)
    digest = "sha" + name.removeprefix("SCRAM-SHA-")
    return Scram(digest, username, password, is_token=login.get("tokenauth", "").lower() == "true")


def misspelled(entries: Mapping[str, str]) -> list[str]:
    """Names that are of no Kafka client. Properties that Headroom does not need are none of them; names of vendors and
    plug-ins have a dot and resemble none of ours."""
    faults = []
    for name in entries.keys() - OURS - KAFKAS - _ANYWAY.keys():
        like = get_close_matches(name.lower(), OURS, 1, _LIKE)
        if like:
            faults.append(f"{name!r} is unknown, did you mean {like[0]}?")
        elif not _DOTTED.fullmatch(name):
            faults.append(f"{name!r} is no property of a Kafka client")
    return sorted(faults)


def without_effect(entries: Mapping[str, str]) -> list[str]:
    """Security properties that clients of Java or librdkafka honour and Headroom does not. One without a value leaves
    the default in force, here as there."""
    faults = []
    for name, value in entries.items():
        anyway = _ANYWAY.get(name)
        is_fine = name in OURS or _HARMLESS.fullmatch(name) is not None
        if not value or is_fine or (anyway is None and not name.startswith(_FAMILIES)):
            continue
        if anyway is None:
            faults.append(f"{name} has no effect here: remove it")
        elif value.lower() not in map(str.lower, anyway):
            faults.append(f"{name}={value} has no effect here: remove it, or set {' or '.join(anyway)}")
    return sorted(faults)


def parse_properties(text: str) -> dict[str, str]:
    """The last of equal keys counts. Raises ValueError for a malformed \\uXXXX, as Java does."""
    entries = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        assert match is not None  # each part may be empty
        entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends with an odd number of backslashes goes on in the next."""
    begun: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not begun and line[:1] in ("#", "!"):
            begun = None
            continue
        line = (begun or "") + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1]
            continue
        if line:
            yield line
        begun = None
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise ValueError(r"\u without four hexadecimal digits")
        return _ESCAPES.get(escaped, escaped)

    units = _ESCAPE.sub(character, text)
    # Java's strings are UTF-16: two escapes may be one character. What is half a character is sent as a question mark.
    return _SURROGATE.sub("?", units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))
