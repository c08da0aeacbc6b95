"""Compares the principals of drawn certificates with X500Principal.getName() of the JVM.

A certificate has attributes of known and unknown types, in every type of string, in parts of one and several
attributes. Some strings are not what their type says.
"""

import random
import sys
from datetime import UTC, datetime
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.x500_name import subject_name
from tests.oracle.subjects import run_subjects

# CN, C, L, ST, STREET, O, OU, UID, DC; then what Java has no short name for: serialNumber, title, surname, givenName,
# organizationIdentifier, dnQualifier, e-mail, an OID with large numbers.
TYPES = (
    "550403", "550406", "550407", "550408", "550409", "55040a", "55040b", "0992268993f22c640101",
    "0992268993f22c640119", "550405", "55040c", "550404", "55042a", "550461", "55042e",
    "2a864886f70d010901", "883703ffffffff7f",
)  # fmt: skip
PIECES = (*'aZ0 \r,+"\\<>;=#\0ü€😀/\n*@', "  ")
ENCODINGS = {12: "utf-8", 19: "latin-1", 20: "latin-1", 22: "latin-1", 27: "latin-1", 28: "utf-32-be", 30: "utf-16-be"}
NUMERIC_STRING, INTEGER = 18, 2


def der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    length = len(content)
    if length < 128:
        return bytes((tag, length)) + content
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(octets))) + octets + content


def drawn_name(rng: random.Random) -> bytes:
    parts = (der(0x31, *(_attribute(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))) for _ in range(rng.randrange(6)))
    return der(0x30, *parts)


def _attribute(rng: random.Random) -> bytes:
    text = "".join(rng.choice(PIECES) for _ in range(rng.choice((0, 1, 3, 8, 150))))
    tag = rng.choice([*ENCODINGS, NUMERIC_STRING, INTEGER, 12, 19, 22])
    value = text.encode(ENCODINGS.get(tag, "ascii"), "ignore") or (b"\x01" if tag == INTEGER else b"")
    if tag == 12 and rng.random() < 0.1:
        value += rng.choice((b"\xff", b"\xc3", b"\xe2\x82", b"\xc0\x80"))  # not UTF-8
    return der(0x30, der(6, bytes.fromhex(rng.choice(TYPES))), der(tag, value))


@cache
def _frame() -> tuple[bytes, bytes]:
    """What is before and behind the subject in the signed part of a certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "frame")])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, x509.Name([]), key.public_key(), 7, at, at.replace(year=2030))
    signed = builder.sign(key, SHA256()).tbs_certificate_bytes
    before, behind = signed.split(b"\x30\x00", 1)  # the empty subject
    return before[4:] if signed[1] == 0x82 else before[3:] if signed[1] == 0x81 else before[2:], behind


def certificate_of(name: bytes) -> bytes:
    """With a signature that nobody checks here."""
    before, behind = _frame()
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    return der(0x30, der(0x30, before, name, behind), algorithm, der(3, b"\0", bytes(70)))


def their_name(jvm: Jvm, certificate: bytes) -> str:
    factory: Any = jvm.classes.java.security.cert.CertificateFactory.getInstance("X.509")
    parsed = factory.generateCertificate(jvm.classes.java.io.ByteArrayInputStream(certificate))
    return str(parsed.getSubjectX500Principal().getName())


def run_principals(jvm: Jvm, seed: int, cases: int) -> list[str]:
    differences = []
    for number in range(cases):
        certificate = certificate_of(drawn_name(random.Random(f"principals/{seed}/{number}")))
        theirs, ours = their_name(jvm, certificate), subject_name(certificate)
        if theirs != ours:
            differences.append(f"case {number}: X500Principal {theirs!r}, ours {ours!r}")
    return differences


if __name__ == "__main__":
    sys.exit(1 if run_subjects({"principals": run_principals}, int(sys.argv[1]), int(sys.argv[2])) else 0)
