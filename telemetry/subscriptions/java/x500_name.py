"""The subject of a certificate as Java prints it: X500Principal.getName(), the form of RFC 2253. Sans-I/O.

Java knows short names of nine attributes. Others it prints by their object identifier, and their values as the bytes of
the certificate: `2.5.4.5=#13...` for a serialNumber, which X.509 libraries print in other ways.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_SHORT: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_OBJECT_IDENTIFIER, _SEQUENCE, _SET, _VERSION = 0x06, 0x30, 0x31, 0xA0
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: Java 17 reads all as UTF-8, newer
# releases some of them in other ways, which matters beyond ASCII. A value of another type is printed as bytes.
_STRINGS: Final = (12, 19, 20, 22, 27, 30)
_BLANKS: Final = " \r"


class CertificateError(ValueError):
    """The bytes are no certificate in DER."""


class _Element(NamedTuple):
    """`encoding` has its tag and length as well."""

    tag: int
    content: bytes
    encoding: bytes


def subject_name(certificate: bytes) -> str:
    """The most specific part first; empty for a certificate without a subject. Raises CertificateError."""
    encoded = list(_elements(certificate))
    if len(encoded) != 1 or encoded[0].tag != _SEQUENCE:
        raise CertificateError("the certificate is not one element")
    signed = next(_elements(encoded[0].content), None)
    if signed is None or signed.tag != _SEQUENCE:
        raise CertificateError("the certificate has no content")
    fields = [field for field in _elements(signed.content) if field.tag != _VERSION]
    if len(fields) < 5:  # serial number, algorithm, issuer, validity, subject
        raise CertificateError("the certificate has no subject")
    parts = []
    for part in _elements(fields[4].content):
        if part.tag != _SET:
            raise CertificateError("a part of the subject is no set")
        parts.append("+".join(_attribute(attribute.content) for attribute in _elements(part.content)))
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    fields = list(_elements(content))
    if len(fields) != 2 or fields[0].tag != _OBJECT_IDENTIFIER:
        raise CertificateError("an attribute of the subject has no type and value")
    kind, value = _identifier(fields[0].content), fields[1]
    if kind not in _SHORT or value.tag not in _STRINGS:
        return f"{_SHORT.get(kind, kind)}=#{value.encoding.hex()}"
    return f"{_SHORT[kind]}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;=#])', r"\\\1", value).replace("\0", r"\00")
    inner = escaped.strip(_BLANKS)
    before = escaped[: len(escaped) - len(escaped.lstrip(_BLANKS))]
    after = escaped[len(before) + len(inner) :]
    return re.sub(r"(.)", r"\\\1", before, flags=re.DOTALL) + inner + re.sub(r"(.)", r"\\\1", after, flags=re.DOTALL)


def _identifier(content: bytes) -> str:
    if not content or content[-1] & 0x80:
        raise CertificateError("an object identifier does not end")
    numbers, number = [], 0
    for octet in content:
        number = number << 7 | octet & 0x7F
        if not octet & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(content: bytes) -> Iterator[_Element]:
    """DER with tags of one octet and definite lengths, as certificates have."""
    at = 0
    while at < len(content):
        if at + 2 > len(content) or content[at] & 0x1F == 0x1F:
            raise CertificateError("the certificate is cut off, or has a tag of several octets")
        start, length = at + 2, content[at + 1]
        if length & 0x80:
            start += length & 0x7F
            if not 0 < length & 0x7F <= 4 or start > len(content):
                raise CertificateError("a length in the certificate is not definite")
            length = int.from_bytes(content[at + 2 : start], "big")
        if start + length > len(content):
            raise CertificateError("the certificate is cut off")
        yield _Element(content[at], content[start : start + length], content[at : start + length])
        at = start + length
