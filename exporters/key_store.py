"""PKCS12 key and trust stores, as keytool and openssl write them, in the form that Python's ssl module loads.

`cryptography` is imported when the first store is read, because most installations have PEM files only.
"""

import secrets
import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

from exporters.printable import one_line

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"


class KeyStoreError(ValueError):
    """The store cannot be used; the message is one line without the file's name."""


class KeyStore(NamedTuple):
    """PEM text. `chain`: the key's certificate and its issuers, empty without a key; `trusted`: all certificates.

    `key` is encrypted with `key_password`, which is random: ssl loads keys from files only, and none of ours may hold
    the plain key.
    """

    chain: str
    trusted: str
    key: str
    key_password: str


def is_pem(content: bytes) -> bool:
    return b"-----BEGIN " in content


def read_pkcs12(content: bytes, password: str) -> KeyStore:
    """Raises KeyStoreError."""
    if content.startswith((_JKS, _JCEKS)):
        raise KeyStoreError(
            "it is a JKS store; convert it: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12"
            " -deststoretype PKCS12"
        )
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        pkcs12,
    )

    try:
        store = pkcs12.load_pkcs12(content, password.encode() if password else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise KeyStoreError(f"it is neither PEM nor PKCS12, or the password is wrong: {one_line(exc)}") from exc
    entries = [*([store.cert] if store.cert else []), *store.additional_certs]
    trusted = "".join(entry.certificate.public_bytes(Encoding.PEM).decode() for entry in entries)
    key = ""
    key_password = secrets.token_urlsafe(32)
    if store.key is not None and store.cert is not None:
        encryption = BestAvailableEncryption(key_password.encode())
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
    return KeyStore(trusted if key else "", trusted, key, key_password)


def load_key(context: ssl.SSLContext, store: KeyStore) -> None:
    """Loads the store's certificate chain and key. Raises KeyStoreError without a key, OSError."""
    if not store.key:
        raise KeyStoreError("it has no private key with a certificate")
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="ascii") as both:
        both.write(store.chain + store.key)
        both.flush()
        context.load_cert_chain(both.name, password=store.key_password)


def password_of(file: Path | None) -> str:
    """The content of a password file without the trailing newline; empty without a file. Raises OSError, ValueError."""
    return file.read_text(encoding="utf-8").rstrip("\r\n") if file else ""
