"""Errors of requests to a cluster. All derive from ClusterError and have one-line messages."""

import os
import ssl
from typing import Final

from kio.schema.errors import ErrorCode


class ClusterError(Exception):
    """A request to the cluster failed: it timed out, the peer does not speak Kafka, TLS or SASL failed, ..."""


class BrokerUnreachableError(ClusterError):
    """The connection could not be established, or broke."""


class UnsupportedError(ClusterError):
    """The cluster does not support the request in any of the client's versions."""


class RefusedError(ClusterError):
    """The cluster answered with an error code."""

    def __init__(self, asked: str, code: int, message: str | None) -> None:
        self.code = code
        said = f": {message}" if message else ""
        super().__init__(f"{asked} was refused with {error_name(code)} ({code}){said}")


class PropertiesError(Exception):
    """A client's properties are invalid: a configuration error, not one of the cluster."""


# Java's brokers send "bad certificate" to a client without one, others "certificate required".
_NO_CERTIFICATE: Final = (
    "; it wants a client certificate that it trusts: ssl.keystore.location, or ssl.certificate.location and"
    " ssl.key.location"
)


def error_name(code: int) -> str:
    """Kafka's name of an error code, as in org.apache.kafka.common.protocol.Errors."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return "an unknown error code"


def check(asked: str, code: int, message: str | None = None) -> None:
    """Raises RefusedError unless `code` is 0. The message begins with `asked`."""
    if code != 0:
        raise RefusedError(asked, code, None if message is None else one_line(message))


def one_line(text: str, max_chars: int = 500) -> str:
    """A peer's text made printable: without control characters, cut to a bounded length."""
    shown = "".join(char if char.isprintable() else " " for char in text[: max_chars + 1]).strip()
    return shown if len(shown) <= max_chars else shown[:max_chars] + "..."


def transport_error(peer: str, exc: Exception, otherwise: str) -> ClusterError:
    """Why a connection could not be established, or broke: `otherwise` begins a message that is not about TLS. With TLS
    1.3, a rejected client certificate is only reported when the connection breaks."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return ClusterError(f"the certificate of {peer} is not trusted: {one_line(exc.verify_message)}")
    if isinstance(exc, ssl.SSLError):
        reason = (exc.reason or str(exc)).replace("_", " ")
        hint = _NO_CERTIFICATE if reason.endswith(("BAD CERTIFICATE", "CERTIFICATE REQUIRED")) else ""
        return ClusterError(f"TLS with {peer} failed: {one_line(reason)}{hint}")
    errno = getattr(exc, "errno", None)
    cause = os.strerror(errno) if isinstance(errno, int) and errno > 0 else one_line(str(exc))
    return BrokerUnreachableError(f"{otherwise}: {cause}")
