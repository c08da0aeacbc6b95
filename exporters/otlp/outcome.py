"""Errors of an export: the specification's two kinds (OpenTelemetry Protocol, "Failures"), and a third.

The specification counts a wrong token among the errors that are not retried. A token, a path or a proxy is mended
while the data waits, so those are errors of their own.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from exporters.printable import one_line, printable

MAX_RETRY_AFTER_S = 60.0  # upper bound of a delay that a receiver asks for
_MAX_TEXT_CHARS = 200
_MIN_SECRET_CHARS = 8  # of a word of a header; shorter ones are such as Bearer


def receiver_text(text: str, headers: Iterable[str] = ()) -> str:
    """The beginning of what a receiver says, for errors and logs: in one line, without control sequences, and without
    the values of our headers, which it may repeat."""
    for word in " ".join(headers).split():
        if len(word) >= _MIN_SECRET_CHARS:
            text = text.replace(word, "***")
    return printable(one_line(text))[:_MAX_TEXT_CHARS] if text.strip() else ""


class SendError(Exception):
    """A request was not accepted; the message contains the endpoint's answer."""


class RetryableSendError(SendError):
    """The same request may be accepted later. `retry_after_s`: the delay that the receiver asks for."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = None if retry_after_s is None else min(max(retry_after_s, 0.0), MAX_RETRY_AFTER_S)


class PermanentSendError(SendError):
    """The specification forbids retrying this request."""


class TooLargeSendError(PermanentSendError):
    """The endpoint or a proxy before it refuses requests of this size."""


class EndpointSendError(SendError):
    """As far as the code says, the endpoint or a proxy before it refuses whoever sends, and not what is sent."""


class OtlpSender(Protocol):
    """GrpcSender or HttpSender. Not thread-safe."""

    def send(self, request: Any) -> Any:
        """Sends an ExportMetricsServiceRequest and returns the receiver's ExportMetricsPartialSuccess.

        Raises RetryableSendError, PermanentSendError, EndpointSendError.
        """

    def close(self) -> None:
        """Closes the connections."""
