"""The forwarding process: follows its mirror of the spool and sends pushes to an OTLP endpoint.

Started by headroom/server/forwarding.py; messages.py has the protocol. Headers are among its settings: they may be
secret. It sends its parent {"counts": {...}} every second. At {"stop"} it exits; what was not accepted by then is sent
after the next start.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stamina.instrumentation
import structlog

from exporters.otlp.outcome import OtlpSender
from exporters.spool.mirror import MirrorReader
from headroom.server.processes.messages import READY
from headroom.server.processes.parent_pipes import ParentThread, parent_of_background_process
from telemetry.forward.forwarder import Forwarder, Stopped
from telemetry.forward.selection import ForwardSelection

log = structlog.get_logger(__name__)

_REPORT_EVERY_S = 1.0
_POLL_S = 0.2
_FAULT_LOGGED_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """The first message of the parent. `target` is HOST:PORT for gRPC and a URL for HTTP."""

    mirror: str  # a directory
    protocol: str
    target: str
    tls: bool
    headers: dict[str, str]
    ca: str
    certificate: str
    private_key: str
    compression: str
    timeout_s: float
    metrics: str
    match: str
    max_lag_bytes: int
    max_decompressed_bytes: int


def main() -> int:
    """Runs until the parent sends stop."""
    parent = parent_of_background_process()
    settings = ForwardSettings(**parent.settings)
    stamina.instrumentation.set_on_retry_hooks([])  # _Reports logs a receiver that does not answer
    parent.follow()
    stopping = parent.stopping
    reader = MirrorReader(Path(settings.mirror))
    sender = sender_of(settings)
    parent.send(READY)
    reports = _Reports(reader, parent)
    forwarder = Forwarder(
        reader,
        sender,
        ForwardSelection(settings.metrics, settings.match),
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_lag_bytes=settings.max_lag_bytes,
        is_stopping=stopping.is_set,
        on_failure=lambda: reports.report(forwarder),
    )
    try:
        while not stopping.is_set():
            if not forwarder.step():
                stopping.wait(_POLL_S)
            reports.report(forwarder)
    except Stopped:
        pass
    sender.close()
    reader.close()
    return 0


def sender_of(settings: ForwardSettings) -> OtlpSender:
    """A sender of the protocol. Raises OSError when a certificate cannot be read."""
    if settings.protocol == "http":
        from exporters.otlp.http_sender import HttpSender

        files = {"ca_certs": settings.ca, "cert_file": settings.certificate, "key_file": settings.private_key}
        return HttpSender(
            settings.target,
            tls_files={name: path for name, path in files.items() if path},
            headers=settings.headers,
            compression=settings.compression,
            timeout_s=settings.timeout_s,
        )
    from exporters.otlp.grpc_sender import ForwardTls, GrpcSender

    pem_files = (settings.ca, settings.certificate, settings.private_key)
    tls = ForwardTls(*(Path(path).read_bytes() if path else None for path in pem_files))
    return GrpcSender(
        settings.target,
        tls=tls if settings.tls else None,
        headers=settings.headers,
        gzip=settings.compression == "gzip",
        timeout_s=settings.timeout_s,
    )


class _Reports:
    """Counts to the parent once a second; a fault to the log at once, then once a minute."""

    def __init__(self, reader: MirrorReader, parent: ParentThread) -> None:
        self._reader = reader
        self._parent = parent
        self._sent_at_s = self._logged_at_s = -_FAULT_LOGGED_EVERY_S
        self._had_fault = False

    def report(self, forwarder: Forwarder) -> None:
        now_s = time.monotonic()
        if now_s - self._sent_at_s >= _REPORT_EVERY_S:
            self._sent_at_s = now_s
            self._parent.send({"counts": self._counts(forwarder)})
        if forwarder.fault is not None and now_s - self._logged_at_s >= _FAULT_LOGGED_EVERY_S:
            self._logged_at_s = now_s
            log.error("the OTLP endpoint accepts nothing, the spool keeps it", error=forwarder.fault)
        elif forwarder.fault is None and self._had_fault:
            self._logged_at_s = -_FAULT_LOGGED_EVERY_S
            log.info("the OTLP endpoint accepts requests again")
        self._had_fault = forwarder.fault is not None

    def _counts(self, forwarder: Forwarder) -> dict[str, Any]:
        return {
            **forwarder.counts.as_note(),
            "failures": forwarder.failures,
            "accepts": forwarder.fault is None,
            "lag_bytes": self._reader.buffered()[1],
        }


if __name__ == "__main__":
    sys.exit(main())
