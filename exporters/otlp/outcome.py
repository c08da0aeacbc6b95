"""How an export fails. Which failures are retried: OpenTelemetry Protocol Specification, "Failures"."""

from __future__ import annotations

from typing import Any, Protocol

MAX_RETRY_AFTER_S = 60.0  # a receiver that names a longer time is asked again after this one


class SendError(Exception):
    """A request was not accepted; the message names the endpoint's answer."""


class RetryableSendError(SendError):
    """The same request may be accepted later. `retry_after_s`: when the receiver asks to be tried again."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = None if retry_after_s is None else min(max(retry_after_s, 0.0), MAX_RETRY_AFTER_S)


class PermanentSendError(SendError):
    """The specification forbids to send this request again."""


class Sender(Protocol):
    """GrpcSender or HttpSender. One thread uses it."""

    def send(self, request: Any) -> int:
        """Sends an ExportMetricsServiceRequest; the number of data points that the receiver rejected.

        Raises RetryableSendError, PermanentSendError.
        """

    def close(self) -> None:
        """Closes the connections."""
