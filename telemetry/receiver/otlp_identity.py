"""Maps OTLP attributes of several broker plug-ins to the identity of a client. Sans-I/O.

Broker plug-ins add facts of the client's connection as attributes, each plug-in under its own names. Attributes of
an authenticated sender are trusted. Those of other senders are claims: they are stored under a principal that begins
with `claimed:` and in the cluster that the receiver is configured for.
"""

import base64
import binascii
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128_digest

from exporters.identity import CLAIMED, stored_name
from exporters.model import ANONYMOUS, MAX_SOFTWARE_CHARS, NO_BROKER, OTLP_LISTENERS, UNKNOWN, Connection

_MAX_TEXT_CHARS = 255  # of other facts
_MAX_PORT = 65_535
_MAX_INT32 = (1 << 31) - 1
_UUID_CHARS = 22  # Kafka's Uuid.toString: base64url of 16 bytes without padding

# Attribute names by fact, as each KIP-714 broker plug-in spells them.
_KIP_714 = {
    "client_id": "client_id",
    "client_instance_id": "client_instance_id",
    "client_software_name": "software_name",
    "client_software_version": "software_version",
    "client_source_address": "source_address",
    "client_source_port": "source_port",
    "principal": "principal",
    "broker_id": "broker_id",
    "kafka.broker.id": "broker_id",
    "kafka.cluster.id": "cluster",
}
_INSTACLUSTR = {
    "clientId": "client_id",
    "clientInstanceId": "client_instance_id",
    "clientAddress": "source_address",
    "clientSoftwareName": "software_name",
    "clientSoftwareVersion": "software_version",
}
_MONEDULA = {
    "client_id": "client_id",
    "client_instance_id": "client_instance_id",
    "kafka.client.principal": "principal",
    "kafka.client.address": "source_address",
    "kafka.cluster.id": "cluster",
    "kafka.node.id": "broker_id",
}
_STRIMZI = {
    "client_id": "client_id",
    "client_instance_id": "client_instance_id",
    "principal": "principal",
    "client_address": "source_address",
}
_OPENTELEMETRY = {
    "messaging.client.id": "client_id",
    "client.address": "source_address",
    "client.port": "source_port",
}


class Dialect(NamedTuple):
    """Attribute name -> fact, for attributes of resources and of data points."""

    of_resource: Mapping[str, str]
    of_point: Mapping[str, str]


_DOTTED = {name.replace("_", "."): fact for name, fact in _KIP_714.items()}
_ALL = {**_OPENTELEMETRY, **_INSTACLUSTR, **_MONEDULA, **_STRIMZI, **_DOTTED, **_KIP_714}
DIALECTS: Final[Mapping[str, Dialect]] = {
    "any": Dialect(_ALL, {**_OPENTELEMETRY, **_INSTACLUSTR, **_STRIMZI}),
    "kip-714": Dialect(_KIP_714, {}),  # the Confluent tutorial's plug-in, and Headroom's own exporter
    "instaclustr": Dialect(_INSTACLUSTR, {}),
    "monedula": Dialect(_MONEDULA, {}),
    "strimzi": Dialect({}, _STRIMZI),  # Prometheus labels, which a collector converts to data point attributes
}


class OtlpCaller(NamedTuple):
    """The peer of an OTLP connection. `transport`: a key of `exporters.model.OTLP_LISTENERS`."""

    address: str
    trusted: bool  # its attributes are trusted
    transport: str


class Identity(NamedTuple):
    """A client's identity as the spool records it."""

    connection: Connection
    client_id: str
    client_instance_id: bytes


class Facts(NamedTuple):
    """The facts that attributes state. `ambiguous`: two names of one fact have different values."""

    stated: Mapping[str, str]
    ambiguous: bool

    @property
    def names_a_client(self) -> bool:
        """Whether they distinguish one client from another."""
        return "client_id" in self.stated or "client_instance_id" in self.stated


def facts_of(attributes: Iterable[Any], names: Mapping[str, str]) -> Facts:
    """Reads OTLP KeyValues. The last value of a name wins: plug-ins append theirs to those of the client."""
    by_name = {pair.key: text for pair in attributes if pair.key in names and (text := _text(pair.value))}
    stated: dict[str, str] = {}
    ambiguous = False
    for name, text in by_name.items():
        ambiguous |= stated.setdefault(names[name], text) != text
        stated[names[name]] = text
    return Facts(stated, ambiguous)


def identity_of(facts: Facts, sender: OtlpCaller, cluster: str) -> Identity:
    """The identity that `facts` state, trusted or claimed. `cluster`: the configured name."""
    stated = facts.stated
    trusted = sender.trusted and not facts.ambiguous
    principal = stored_name((stated.get("principal") or ANONYMOUS).removeprefix("User:"))
    client_id = stored_name(stated.get("client_id", ""))
    connection = Connection(
        cluster=stated.get("cluster", cluster)[:_MAX_TEXT_CHARS] if trusted else cluster,
        listener=OTLP_LISTENERS[sender.transport],
        principal=principal if trusted else CLAIMED + principal,
        source_address=stated.get("source_address", "").lstrip("/")[:_MAX_TEXT_CHARS] if trusted else sender.address,
        source_port=_number(stated.get("source_port"), _MAX_PORT, 0) if trusted else 0,
        software_name=stated.get("software_name", UNKNOWN)[:MAX_SOFTWARE_CHARS],
        software_version=stated.get("software_version", UNKNOWN)[:MAX_SOFTWARE_CHARS],
        broker_id=_number(stated.get("broker_id"), _MAX_INT32, NO_BROKER),
    )
    instance_id = _instance_id(stated.get("client_instance_id", ""))
    if not instance_id:  # a stable one for senders that state no valid id (Instaclustr's plug-in)
        parts = (
            connection.cluster,
            connection.principal,
            client_id,
            stated.get("source_address", connection.source_address),
            stated.get("client_instance_id", ""),
        )
        instance_id = xxh3_128_digest("\x00".join(parts).encode("utf-8", "replace"))
    return Identity(connection, client_id, instance_id)


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    return str(getattr(value, kind)) if kind in ("string_value", "int_value") else ""


def _number(text: str | None, most: int, otherwise: int) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return otherwise
    return number if (number := int(text)) <= most else otherwise


def _instance_id(text: str) -> bytes:
    """The 16 bytes of a Kafka Uuid or an RFC 9562 UUID; empty if `text` is neither."""
    try:
        if len(text) == _UUID_CHARS:
            return base64.b64decode(text + "==", altchars=b"-_", validate=True)
        return uuid.UUID(text).bytes
    except (ValueError, binascii.Error):
        return b""
