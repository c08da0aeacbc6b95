"""TLS by a Kafka client's properties (ssl.*, as named by Java and librdkafka): PEM or PKCS12 files, which are read
again when they change."""

import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from exporters.key_store import KeyStore, KeyStoreError, is_pem, load_key, read_pkcs12
from quota_metrics.kafka.errors import PropertiesError

log = structlog.get_logger(__name__)

_NAMES_A_FILE = re.compile(r"ssl\.\w+\.location")
_BLOCK = re.compile(r"(-----BEGIN ([A-Z0-9 ]+)-----)(.*?)(-----END \2-----)", re.DOTALL)
_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


class _Store(NamedTuple):
    """A file that a property names."""

    name: str
    location: str
    content: bytes

    @property
    def pem(self) -> str:
        return self.content.decode("latin-1")

    def pkcs12(self, password: str) -> KeyStore:
        """Raises PropertiesError."""
        try:
            return read_pkcs12(self.content, password)
        except KeyStoreError as exc:
            raise PropertiesError(f"{self.name}={self.location} cannot be used: {exc}") from exc


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """A client's context. Without a trust store it trusts the system's certificates. Raises PropertiesError."""
    trusted = properties.get("ssl.truststore.certificates") or properties.get("ssl.ca.pem")
    location = properties.get("ssl.ca.location", "")  # librdkafka's may be a directory, or `probe`: the system's
    directory = location if location and Path(location).is_dir() else None
    is_file = not trusted and not directory and location != "probe"
    store = _read_file(properties, "ssl.truststore.location", "ssl.ca.location") if is_file else None
    if store is not None:
        _check_type(store, properties.get("ssl.truststore.type", ""))
        password = properties.get("ssl.truststore.password", "")
        trusted = store.pem if is_pem(store.content) else store.pkcs12(password).trusted
    try:
        context = ssl.create_default_context(capath=directory, cadata=_blocks(trusted))
    except (ssl.SSLError, ValueError) as exc:
        raise PropertiesError(f"the trusted certificates cannot be read: {exc}") from exc
    # As to Java, whatever is trusted is an anchor, and a CA needs no key usage (which Python 3.13 asks for).
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    _load_identity(context, properties)
    _limit_versions(context, properties)
    if revoked := properties.get("ssl.crl.location"):
        try:
            context.load_verify_locations(revoked)
        except OSError as exc:  # ssl.SSLError is one
            raise PropertiesError(f"ssl.crl.location={revoked} cannot be read: {exc}") from exc
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_type(store: _Store, kind: str) -> None:
    """Without a type, the content tells it. Java reads PKCS12 as JKS, too. Raises PropertiesError."""
    kinds = ("PEM",) if is_pem(store.content) else ("JKS", "PKCS12")
    if kind and kind.upper() not in kinds:
        raise PropertiesError(f"{store.name}={store.location} is {kinds[-1]} and not of the type {kind}")


def _limit_versions(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """By ssl.protocol, the highest version, and ssl.enabled.protocols. Raises PropertiesError."""
    protocol = properties.get("ssl.protocol") or "TLS"
    names = [name.strip() for name in properties.get("ssl.enabled.protocols", "").split(",") if name.strip()]
    if protocol != "TLS" and protocol not in _VERSIONS:
        raise PropertiesError(f"ssl.protocol={protocol} is not one of TLS, {', '.join(_VERSIONS)}")
    if unknown := [name for name in names if name not in _VERSIONS]:
        raise PropertiesError(f"ssl.enabled.protocols: {unknown[0]} is not one of {', '.join(_VERSIONS)}")
    if protocol != "TLS":
        context.maximum_version = _VERSIONS[protocol]
    if names:
        order = [*_VERSIONS]
        places = sorted({order.index(name) for name in names})
        if places[-1] - places[0] >= len(places):
            raise PropertiesError("ssl.enabled.protocols leaves out a version between two others")
        context.minimum_version = _VERSIONS[order[places[0]]]
        highest = _VERSIONS[order[places[-1]]]
        if context.maximum_version == ssl.TLSVersion.MAXIMUM_SUPPORTED or highest < context.maximum_version:
            context.maximum_version = highest


def _load_identity(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Loads the client certificate and key, if configured: mutual TLS."""
    chain = properties.get("ssl.keystore.certificate.chain") or properties.get("ssl.certificate.pem")
    if not chain:
        store = _read_file(properties, "ssl.keystore.location", "ssl.certificate.location")
        if store is None:
            return
        _check_type(store, properties.get("ssl.keystore.type", ""))
        if not is_pem(store.content):
            key_store = store.pkcs12(properties.get("ssl.keystore.password", ""))
            try:
                load_key(context, key_store)
            except (OSError, KeyStoreError) as exc:
                raise PropertiesError(f"{store.name}={store.location} cannot be used: {exc}") from exc
            return
        chain = store.pem
    key = properties.get("ssl.keystore.key") or properties.get("ssl.key.pem")
    if not key and (store := _read_file(properties, "ssl.key.location")) is not None:
        if not is_pem(store.content):
            raise PropertiesError(f"{store.name}={store.location} is not PEM")
        key = store.pem
    # Python reads a key from files only. An empty password keeps OpenSSL from asking for one on the terminal.
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="utf-8") as both:
        both.write(f"{_blocks(chain)}\n{_blocks(key) or ''}")
        both.flush()
        try:
            context.load_cert_chain(both.name, password=properties.get("ssl.key.password", ""))
        except (ssl.SSLError, ValueError) as exc:
            raise PropertiesError(f"the client certificate and key cannot be used: {exc}") from exc


def _read_file(properties: Mapping[str, str], *names: str) -> _Store | None:
    """The file named by the first of the properties that is set."""
    for name in names:
        location = properties.get(name)
        if location:
            try:
                return _Store(name, location, Path(location).read_bytes())
            except OSError as exc:
                raise PropertiesError(f"{name}={location} cannot be read: {exc.strerror}") from exc
    return None


def _blocks(text: str | None) -> str | None:
    """The PEM blocks without the text around them, because Python refuses non-ASCII comments. A block on one line, as
    Java takes it in properties, is broken at its blanks."""
    blocks = [
        block[0] if "\n" in block[3] else "\n".join((block[1], *block[3].split(), block[4]))
        for block in _BLOCK.finditer(text or "")
    ]
    return "\n".join(blocks) or text


class RenewedContext(ssl.SSLContext):
    """Each connection is made by the files as they are at its beginning; open connections keep what they have.

    Files that cannot be used leave the last ones in force, with an entry in the log. The first time they raise
    PropertiesError. This object is what event loops accept as a context; `_current` makes the connections.
    """

    _current: ssl.SSLContext

    def __new__(cls, properties: Mapping[str, str]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._files = [Path(value) for name, value in properties.items() if value and _NAMES_A_FILE.fullmatch(name)]
        self._seen = self._changed_at()
        self._current = tls_context(properties)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Called by event loops for each connection."""
        changed_at = self._changed_at()
        if changed_at != self._seen:
            self._seen = changed_at
            try:
                self._current = tls_context(self._properties)
                log.info("the TLS files for connections to brokers were read again")
            except PropertiesError as exc:
                log.error("the TLS files for connections to brokers changed and cannot be used", error=str(exc))
        return self._current.wrap_bio(*arguments, **options)

    def _changed_at(self) -> list[int]:
        return [_changed_at(file) for file in self._files]


def _changed_at(file: Path) -> int:
    """In nanoseconds; 0 when it is not there, as for a moment while it is replaced."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
