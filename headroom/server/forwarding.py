"""The OTLP forwarding process, from the settings to its readings for /metrics."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from typing import Any

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.mirror import Mirror
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.server.processes.child import ChildProcess, ChildValues
from headroom.server.processes.forward_process import ForwardSettings
from headroom.server.processes.messages import Message
from telemetry.forward.forwarder import ForwardCounts

_STOP_S = 5.0
_VALUES = ChildValues(
    "the forwarding process",
    (sys.executable, "-m", "headroom.server.processes.forward_process"),
    restart_after_s=5.0,
)
_NOTHING: dict[str, Any] = {**ForwardCounts().as_note(), "failures": 0, "accepts": True, "lag_bytes": 0}


class Forwarding:
    """The process: `child`, which `watch` starts. That it fails makes Headroom neither stop nor not ready: clients and
    store are served."""

    def __init__(self, settings: ForwardSettings) -> None:
        self.child = ChildProcess(_VALUES, first=settings.model_dump, heard=self._heard, ended=self._ended)
        self._counts = _NOTHING  # as last reported; those of LostPush and LostPoint continue after a restart
        self._failures_before = 0  # of processes that ended

    def readings(self) -> dict[SelfMetric, Values]:
        """For /metrics."""
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
    """None when forwarding is off. Call it before the storage process links segments.

    Raises ServeError when the data directory does not support hard links or a certificate cannot be read.
    """
    if config.forward.endpoint is None:
        return None
    try:
        Mirror(config.data / "forward", config.forward.max_lag_bytes)
    except OSError as exc:
        raise ServeError(f"cannot forward: {config.data} has no hard links: {exc.strerror}") from exc
    check_forward_files(config)
    telemetry = config.telemetry
    settings = ForwardSettings(
        data=config.data, forward=config.forward, max_decompressed_bytes=telemetry.max_decompressed_bytes
    )
    forwarding = Forwarding(settings)
    stack.push_async_callback(forwarding.child.stop, _STOP_S)
    return forwarding


def check_forward_files(config: ServeConfig) -> None:
    """Raises ServeError when a certificate of `forward` cannot be read."""
    for path in filter(None, (config.forward.ca, config.forward.certificate, config.forward.private_key)):
        try:
            path.read_bytes()
        except OSError as exc:
            raise ServeError(f"cannot forward: cannot read {path}: {exc.strerror}") from exc
