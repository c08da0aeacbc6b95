"""The forwarding process: follows its mirror of the spool and sends pushes to an OTLP endpoint.

Forwarding is its parent's side; messages.py has the protocol. Headers are among its settings: they may be
secret. It sends its parent {"counts": {...}} every second. At {"stop"} it exits; what was not accepted by then is sent
after the next start.
"""

import shutil
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import stamina.instrumentation
import structlog

from exporters import self_metrics as catalogue
from exporters.otlp.outcome import OtlpSender
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.mirror import Mirror, MirrorReader, sizes_of_its_own
from headroom.config.settings import ForwardConfig, ServeConfig
from headroom.config.types import Section
from headroom.errors import ServeError
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues
from headroom.server.processes.messages import READY, Message
from headroom.server.processes.parent_pipes import ParentThread, parent_of_background_process
from telemetry.forward.forwarder import ForwardCounts, Forwarder, Stopped
from telemetry.forward.selection import ForwardSelection

log = structlog.get_logger(__name__)

_REPORT_EVERY_S = 1.0
_POLL_S = 0.2
_FAULT_LOGGED_EVERY_S = 60.0
_STOP_S = 5.0
_VALUES = ChildValues(
    "the forwarding process",
    (sys.executable, "-P", "-m", "headroom.server.processes.forward_process"),
    restart_after_s=5.0,
)
_NOTHING: dict[str, Any] = {**ForwardCounts().as_note(), "failures": 0, "accepts": True, "lag_bytes": 0}


class ForwardSettings(Section):
    """The first message of the parent."""

    data: Path
    forward: ForwardConfig
    max_decompressed_bytes: int


class Forwarding:
    """The parent's side: `child`, which `watch` starts. That it fails makes Headroom neither stop nor not ready:
    clients and store are served."""

    def __init__(self, settings: ForwardSettings) -> None:
        self.child = ChildProcess(_VALUES, first=settings.model_dump, heard=self._heard, ended=self._ended)
        self._counts = _NOTHING  # as last reported; those of LostPush and LostPoint continue after a restart
        self._failures_before = 0  # of processes that ended

    def readings(self) -> dict[SelfMetric, Values]:
        counts = self._counts
        return {
            catalogue.FORWARD_POINTS: counts["points"],
            catalogue.FORWARD_PUSHES: counts["pushes"],
            catalogue.FORWARD_LOST_PUSHES: counts["lost_pushes"],
            catalogue.FORWARD_LOST_POINTS: counts["lost_points"],
            catalogue.FORWARD_FAILURES: self._failures_before + counts["failures"],
            catalogue.FORWARD_LAG_BYTES: counts["lag_bytes"],
            catalogue.FORWARD_UP: self.child.alive and counts["accepts"],
            catalogue.FORWARD_RESTARTS: self.child.restarts,
        }

    def _heard(self, message: Message) -> None:
        self._counts = message.get("counts", self._counts)

    def _ended(self) -> None:
        self._failures_before += self._counts["failures"]
        self._counts = {**self._counts, "failures": 0}


def open_forwarding(config: ServeConfig, stack: AsyncExitStack) -> Forwarding | None:
    """None when forwarding is off; what waited for it is then removed. Call it before the storage process links
    segments. Raises ServeError when the data directory does not support hard links."""
    directory = config.data / "forward"
    if config.forward.endpoint is None:
        if directory.exists():
            nbytes = sum(sizes_of_its_own(directory).values())
            log.warning("forwarding is off, removes what waited for it", directory=str(directory), bytes=nbytes)
            shutil.rmtree(directory, ignore_errors=True)
        return None
    try:
        Mirror(directory, config.forward.max_lag_bytes)
    except OSError as exc:
        raise ServeError(f"cannot forward: {config.data} has no hard links: {exc.strerror}") from exc
    most_bytes = config.telemetry.max_decompressed_bytes
    settings = ForwardSettings(data=config.data, forward=config.forward, max_decompressed_bytes=most_bytes)
    forwarding = Forwarding(settings)
    stack.push_async_callback(forwarding.child.stop, _STOP_S)
    return forwarding


def main() -> int:
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
    """Raises OSError when a certificate cannot be read."""
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
    import grpc

    from exporters.otlp.grpc_sender import GrpcSender

    ca, certificate, key = (path.read_bytes() if path else None for path in pem_files)
    is_tls = (config.endpoint or "").startswith("https:")
    tls = grpc.ssl_channel_credentials(ca, key, certificate) if is_tls else None
    gzip = config.compression == "gzip"
    return GrpcSender(config.target, tls=tls, headers=headers, gzip=gzip, timeout_s=timeout_s)


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
            progress = {"failures": forwarder.failures, "accepts": forwarder.fault is None}
            lag = {"lag_bytes": self._reader.buffered()[1]}
            self._parent.send({"counts": {**forwarder.counts.as_note(), **progress, **lag}})
        if forwarder.fault is not None and now_s - self._logged_at_s >= _FAULT_LOGGED_EVERY_S:
            self._logged_at_s = now_s
            log.error("the OTLP endpoint accepts nothing, the spool keeps it", error=forwarder.fault)
        elif forwarder.fault is None and self._had_fault:
            self._logged_at_s = -_FAULT_LOGGED_EVERY_S
            log.info("the OTLP endpoint accepts requests again")
        self._had_fault = forwarder.fault is not None


if __name__ == "__main__":
    sys.exit(main())
