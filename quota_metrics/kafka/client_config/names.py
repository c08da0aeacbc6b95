"""Which properties of a client have an effect: misspelled ones, and those that only other clients honour, have none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

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
        if not value or name in OURS or (anyway is None and not name.startswith(_FAMILIES)):
            continue
        if anyway is None:
            faults.append(f"{name} has no effect here: remove it")
        elif value.lower() not in map(str.lower, anyway):
            faults.append(f"{name}={value} has no effect here: remove it, or set {' or '.join(anyway)}")
    return sorted(faults)
