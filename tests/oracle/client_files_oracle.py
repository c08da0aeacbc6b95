"""Compares how we read what configures a client with Java's and Kafka's own classes, on texts drawn at random.

Subjects: `properties` (java.util.Properties), `jaas` (JaasContext with Kafka's JaasConfig), `bootstrap` (Utils.getHost
and getPort), `extensions` (OAuthBearerClientInitialResponse). What Java refuses we refuse.
"""

import random
import sys
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from quota_metrics.kafka.bootstrap_servers import BootstrapError, parse_bootstrap_servers
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.jaas import JaasError, parse_jaas
from quota_metrics.kafka.oauthbearer import oauthbearer
from quota_metrics.kafka.properties import parse_properties
from tests.oracle.subjects import Finding, Subject, of_cases, run_subjects

REFUSED = "refused"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Pieces of which texts are made: what the grammars know, what they nearly know, and what ends something early.
PROPERTIES = (
    *"ab=:#!\\ \t\f\n\r", "\r\n", "\\\n", "\\\r\n", "\\u00fc", "\\u", "\\ud83d\\ude00", "\\ud83d", "\\n", "\\:", "ü",
    "sasl.username", "=", "= ", "\\u00G0", "\x85", "\u2028", "\x0b", "\x1c", "\x00", "\\\\",
)  # fmt: skip
JAAS = (
    *"ab=;'\"\\/*-_$.,#!{}0 \t\n\r", "//", "/*", "*/", "/**/", "\\n", "\\377", "\\477", "\\12", "\\0", "\r\n", "ü", "€",
    "required", "optional", "Sufficient", "none", MODULE, "username=", "password=", "'s3cr;t with=chars'", '"k"', "12",
    " required ", ";", "x", "\x80", "\xa0", "-1", "-.", "1.2.3", "=", " ", '"', "'",
)  # fmt: skip
BOOTSTRAP = (
    "SASL_SSL://", "ssl://", "://", "a", "broker-1.example", "127.0.0.1", "[::1]", "[", "]", "::1", "fe80::1%eth0", ":",
    ":9092", ":1", ":0", ":99999", "_", "%", " ", ",", "b:2", "x:",
)  # fmt: skip
EXTENSIONS = ("extension_", "a", "Z", "auth", "1", " ", "x-y", "~", "\t", "ü", "lkc", "\x01", "logicalCluster")


def drawn(rng: random.Random, pieces: Sequence[str], most: int) -> str:
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(most)))


def properties_case(jvm: Jvm, rng: random.Random) -> Finding:
    text = drawn(rng, PROPERTIES, 40)
    theirs: Any = jvm.classes.java.util.Properties()
    try:
        theirs.load(jvm.classes.java.io.StringReader(text))
        # A file that ends with a lone backslash has an entry without a name in Java, which nobody looks for.
        expected: object = {entry.getKey(): entry.getValue() for entry in theirs.entrySet() if entry.getKey()}
    except Py4JJavaError:
        expected = REFUSED
    try:
        ours: object = {name: value for name, value in parse_properties(text).items() if name}
    except ValueError:
        ours = REFUSED
    return compared("java.util.Properties", text, expected, ours)


def jaas_case(jvm: Jvm, rng: random.Random) -> Finding:
    text = drawn(rng, JAAS, 16)
    if rng.random() < 0.8:  # most texts without any frame are refused at once
        options = (f"{drawn(rng, 'abz', 3)}={drawn(rng, JAAS, 4)} " for _ in range(rng.randrange(4)))
        text = f"{MODULE} required {''.join(options)}{drawn(rng, JAAS, 3)};{drawn(rng, JAAS, 2)}"
    configs = jvm.classes.java.util.HashMap()
    configs.put("sasl.jaas.config", jvm.classes.org.apache.kafka.common.config.types.Password(text))
    try:
        context = jvm.classes.org.apache.kafka.common.security.JaasContext.loadClientContext(configs)
        (entry,) = context.configurationEntries()
        expected: object = (
            str(entry.getLoginModuleName()),
            {key: value for key, value in dict(entry.getOptions()).items() if key is not None},
        )
    except Py4JJavaError:
        expected = REFUSED
    try:
        ours: object = tuple(parse_jaas(text))
    except JaasError:
        ours = REFUSED
    return compared("JaasContext", text, expected, ours)


def bootstrap_case(jvm: Jvm, rng: random.Random) -> Finding:
    """What we take has to be what Java takes. What we refuse beyond Java: hosts that cannot be looked up."""
    text = drawn(rng, BOOTSTRAP, 8)
    utils = jvm.classes.org.apache.kafka.common.utils.Utils
    parts = [part for part in (part.strip() for part in text.split(",")) if part]
    hosts = [(utils.getHost(part), utils.getPort(part)) for part in parts]
    try:
        ours = [(server.host, server.port) for server in parse_bootstrap_servers(text)]
    except BootstrapError:
        names = all(host and port and ":" not in host and 0 < port < 65_536 for host, port in hosts)
        names = names and bool(hosts) and not any(sign in text for sign in ("[", "]"))
        return (
            [f"{text!r}: Java takes {hosts}, ours nothing"]
            if names and not any(part.startswith("://") for part in parts)
            else []
        )
    return compared("Utils.getHost", text, hosts, ours)


def extensions_case(jvm: Jvm, rng: random.Random) -> Finding:
    """The client's first message as a broker of Kafka reads it."""
    options = {f"extension_{drawn(rng, EXTENSIONS, 3)}": drawn(rng, EXTENSIONS, 4) for _ in range(rng.randrange(3))}
    pairs = {name.removeprefix("extension_"): value for name, value in options.items()}
    oauth = jvm.classes.org.apache.kafka.common.security
    mapped = jvm.classes.java.util.HashMap()
    for name, value in pairs.items():
        mapped.put(name, value)
    try:
        theirs = oauth.oauthbearer.internals.OAuthBearerClientInitialResponse(
            "token", oauth.auth.SaslExtensions(mapped)
        )
        expected: object = dict(theirs.extensions().map())
    except Py4JJavaError:
        expected = REFUSED
    try:
        mechanism = oauthbearer({"sasl.oauthbearer.token.endpoint.url": "http://issuer/", **CLIENT}, options)
        message = next(type(mechanism)(lambda: "token", mechanism.extensions).conversation())
        read = oauth.oauthbearer.internals.OAuthBearerClientInitialResponse(message)
        ours: object = dict(read.extensions().map())
    except PropertiesError:
        ours = REFUSED
    return compared("OAuthBearerClientInitialResponse", repr(pairs), expected, ours)


CLIENT = {"sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "it"}


def compared(what: str, text: str, theirs: object, ours: object) -> Finding:
    return [] if theirs == ours else [f"{text!r}: {what} {theirs!r}, ours {ours!r}"]


SUBJECTS: dict[str, Subject] = {
    "properties": of_cases(properties_case),
    "jaas": of_cases(jaas_case),
    "bootstrap": of_cases(bootstrap_case),
    "extensions": of_cases(extensions_case),
}


if __name__ == "__main__":
    sys.exit(1 if run_subjects(SUBJECTS, int(sys.argv[1]), int(sys.argv[2])) else 0)
