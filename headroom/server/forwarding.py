"""Builds the OTLP forwarding process from the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack

from exporters.spool.mirror import Mirror
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.server.processes.forward_process import ForwardSettings
from headroom.server.processes.forward_supervisor import ForwardProcess

_STOP_S = 5.0


async def open_forwarding(config: ServeConfig, stack: AsyncExitStack) -> ForwardProcess | None:
    """Starts the forwarding process; None when forwarding is off. Call it before the storage process links segments.

    Raises ServeError when the data directory does not support hard links or a certificate cannot be read.
    """
    if config.forward.endpoint is None:
        return None
    try:
        Mirror(config.data / "forward", config.forward.max_lag_bytes)
    except OSError as exc:
        raise ServeError(f"cannot forward: {config.data} has no hard links: {exc.strerror}") from exc
    check_forward_files(config)
    process = ForwardProcess(_settings(config))
    await process.start()
    stack.push_async_callback(process.stop, _STOP_S)
    return process


def check_forward_files(config: ServeConfig) -> None:
    """Raises ServeError when a certificate of `forward` cannot be read."""
    for path in filter(None, (config.forward.ca, config.forward.certificate, config.forward.private_key)):
        try:
            path.read_bytes()
        except OSError as exc:
            raise ServeError(f"cannot forward: cannot read {path}: {exc.strerror}") from exc


def _settings(config: ServeConfig) -> ForwardSettings:
    forward = config.forward
    return ForwardSettings(
        mirror=str(config.data / "forward"),
        protocol=forward.protocol,
        target=forward.url if forward.protocol == "http" else forward.target,
        tls=(forward.endpoint or "").startswith("https:"),
        headers={name: value.get_secret_value() for name, value in forward.headers.items()},
        ca=str(forward.ca or ""),
        certificate=str(forward.certificate or ""),
        private_key=str(forward.private_key or ""),
        compression=forward.compression,
        timeout_s=forward.timeout_ms / 1000,
        metrics=forward.metrics,
        match=forward.match,
        max_lag_bytes=forward.max_lag_bytes,
        max_decompressed_bytes=config.telemetry.max_decompressed_bytes,
    )
