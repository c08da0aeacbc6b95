"""The forwarding process: follows its mirror of the spool and sends pushes to an OTLP endpoint.

Started by headroom/server/forwarding.py; messages.py has the protocol. Headers are among its settings: they may be
secret. It sends its parent {"counts": {...}} every second. At {"stop"} it exits; what was not accepted by then is sent
after the next start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import stamina.instrumentation
import structlog

from exporters.otlp.outcome import OtlpSender
from exporters.spool.mirror import MirrorReader
from headroom.config.forward import ForwardConfig
from headroom.config.types import Section
from headroom.server.processes.messages import READY
from headroom.server.processes.parent_pipes import ParentThread, parent_of_background_process
from telemetry.forward.forwarder import Forwarder, Stopped
from telemetry.forward.selection import ForwardSelection

log = structlog.get_logger(__name__)

_REPORT_EVERY_S = 1.0
_POLL_S = 0.2
_FAULT_LOGGED_EVERY_S = 60.0


class ForwardSettings(Section):
    """The first message of the parent."""

    data: Path
    forward: ForwardConfig
    max_decompressed_bytes: int


def main() -> int:
    """Runs until the parent sends stop."""
    parent = parent_of_background_process()
    settings = ForwardSettings(**parent.settings)
    stamina.instrumentation.set_on_retry_hooks([])  # _Reports logs a receiver that does not answer
    parent.follow()
    stopping = parent.stopping
    reader = MirrorReader(settings.data / "forward")
    sender = sender_of(settings.forward)
    parent.send(READY)
    reports = _Reports(reader, parent)
    forwarder = Forwarder(
        reader,
        sender,
        ForwardSelection(settings.forward.metrics, settings.forward.match),
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_lag_bytes=settings.forward.max_lag_bytes,
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


def sender_of(config: ForwardConfig) -> OtlpSender:
    """A sender of the protocol. Raises OSError when a certificate cannot be read."""
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    timeout_s = config.timeout_ms / 1000
    pem_files = (config.ca, config.certificate, config.private_key)
    if config.protocol == "http":
        from exporters.otlp.http_sender import HttpSender

        names = ("ca_certs", "cert_file", "key_file")
        return HttpSender(
            config.url,
            tls_files={name: str(path) for name, path in zip(names, pem_files, strict=True) if path},
            headers=headers,
            compression=config.compression,
            timeout_s=timeout_s,
        )
    from exporters.otlp.grpc_sender import ForwardTls, GrpcSender

    tls = ForwardTls(*(path.read_bytes() if path else None for path in pem_files))
    is_tls = (config.endpoint or "").startswith("https:")
    gzip = config.compression == "gzip"
    return GrpcSender(config.target, tls=tls if is_tls else None, headers=headers, gzip=gzip, timeout_s=timeout_s)


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
