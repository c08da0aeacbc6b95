"""OTLP/HTTP with protobuf: one POST per request."""

import gzip
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson
import urllib3
import zstandard
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from exporters.environment_proxy import environment_proxy, through
from exporters.otlp.outcome import (
    EndpointSendError,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
    receiver_text,
)

_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_TOO_LARGE: Final = 413
_OF_THE_PAYLOAD: Final = frozenset({400, 422, 500})  # all others are a token, a path, a redirect, a proxy
_PAGE = "text/html"
_MAX_RESPONSE_BYTES = 64 << 10
_OK = range(200, 300)
_PROTOBUF = "application/x-protobuf"


class HttpSender:
    """Keeps one connection open. `tls_files`: urllib3's ca_certs, cert_file and key_file."""

    def __init__(
        self, url: str, *, tls_files: dict[str, str], headers: dict[str, str], compression: str, timeout_s: float
    ) -> None:
        """`url` includes the path. `compression`: none, gzip or zstd."""
        options: dict[str, Any] = {"num_pools": 1, "maxsize": 1, **tls_files}
        proxy = environment_proxy(url)
        if not proxy.startswith("http"):  # SOCKS
            proxy = ""
        if login := urllib3.util.parse_url(proxy).auth:
            options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=unquote(login))
        self._pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        self._through = through(proxy)
        self._url = url
        self._path = urlsplit(url).path
        self._compression = compression
        self._timeout = urllib3.Timeout(total=timeout_s)
        self._secrets = tuple(headers.values())
        self._headers = {**headers, "Content-Type": _PROTOBUF}
        if compression != "none":
            self._headers["Content-Encoding"] = compression

    def send(self, request: Any) -> Any:
        """See exporters.otlp.outcome.OtlpSender."""
        body = request.SerializeToString()
        if self._compression == "gzip":
            body = gzip.compress(body, compresslevel=1)
        elif self._compression == "zstd":
            body = zstandard.compress(body, level=1)
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=body,
                headers=self._headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            answer = response.read(_MAX_RESPONSE_BYTES, decode_content=True)
            response.drain_conn() if len(answer) < _MAX_RESPONSE_BYTES else response.close()
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise RetryableSendError(f"{type(exc).__name__}{self._through}: {exc}") from exc
        except ValueError as exc:  # its text has the header
            raise RetryableSendError(f"{type(exc).__name__}: a header cannot be sent") from None
        is_page = response.headers.get("Content-Type", "").lower().startswith(_PAGE)
        if response.status not in _OK or is_page:
            raise self._send_error(response, answer)
        with suppress(DecodeError):
            return ExportMetricsServiceResponse.FromString(answer).partial_success
        return ExportMetricsServiceResponse().partial_success  # the status alone confirms acceptance

    def _send_error(self, response: Any, answer: bytes) -> SendError:
        status = response.status
        message = f"HTTP {status} at {self._path}{self._through}"
        if status in _OK:
            message += ", a page: this is no OTLP endpoint"
        elif status == _TOO_LARGE:
            message += ", the endpoint or a proxy before it has a limit of size"
        elif to := response.headers.get("Location", "").partition("?")[0]:  # a query may be secret
            message += f", to {receiver_text(to)!r}"
        if text := receiver_text(_text_of(response, answer), self._secrets):
            message += f": {text}"
        if status in _RETRYABLE:
            delay_s = retry_after_s(response.headers.get("Retry-After", ""), datetime.now(UTC))
            return RetryableSendError(message, delay_s)
        if status == _TOO_LARGE:
            return TooLargeSendError(message)
        return PermanentSendError(message) if status in _OF_THE_PAYLOAD else EndpointSendError(message)

    def close(self) -> None:
        self._pool.clear()


def retry_after_s(value: str, now: datetime) -> float | None:
    """Of a Retry-After header: seconds, or a date (RFC 9110, 10.2.3); None for anything else."""
    with suppress(ValueError, OverflowError):
        if value.isdigit():
            return float(value)
        date = parsedate_to_datetime(value)
        return (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return None


def _text_of(response: Any, answer: bytes) -> str:
    """The message of a google.rpc.Status, in protobuf or JSON; of anything else all."""
    try:
        if response.headers.get("Content-Type", "").startswith(_PROTOBUF):
            return str(Status.FromString(answer).message)
        return str(orjson.loads(answer)["message"])
    except (DecodeError, ValueError, LookupError, TypeError):
        return answer.decode(errors="replace")
