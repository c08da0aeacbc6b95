"""The subscriptions of a stand-alone sink in a YAML file: reloaded when it changes, rewritten by alter requests.

The file is the source of truth for all network processes of a sink. They apply an operator's edit within one poll
interval. An alter request is answered after its changes are written to the file. An invalid file is logged once, and
the previous subscriptions stay in force.

    all:
      metrics: [org.apache.kafka.producer., org.apache.kafka.consumer.]
      interval.ms: 60000
      match: {client_id: "orders-.*"}

Each value may also be a single string, as in kafka-client-metrics.sh. Headroom writes that form and drops comments.
"""

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import yaml

from exporters.printable import one_line
from exporters.spool.positions import sync_path
from quota_metrics.config.quota_file import UniqueKeys, yaml_text
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription import DEFAULTS, MATCH, METRICS, parse_subscription

log = structlog.get_logger(__name__)

_MAX_FILE_BYTES = 16 << 20
_LOCK_PATIENCE_S = 2.0  # other processes hold the lock only while they write the file
_LOCK_AGAIN_S = 0.005


class SubscriptionFileError(ValueError):
    """The file is invalid; each of `faults` is one line."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def parse(text: str, match_keys: Collection[str]) -> dict[str, dict[str, str]]:
    """Name -> set keys and values as strings. Raises SubscriptionFileError with all errors."""
    try:
        content = yaml.load(text, UniqueKeys)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise SubscriptionFileError([f"not YAML: {one_line(exc)}"]) from exc
    return parsed(content, match_keys)


def parsed(content: Any, match_keys: Collection[str]) -> dict[str, dict[str, str]]:
    """As `parse`, for content that YAML has read already."""
    if not isinstance(content, dict | None):
        raise SubscriptionFileError(["not a mapping of subscriptions"])
    resources, faults = {}, []
    for name, keys in (content or {}).items():
        try:
            if not isinstance(name, str):
                raise ValueError("not a text: put it in quotes")
            if not isinstance(keys, dict):
                raise ValueError("not a mapping of metrics, interval.ms and match")
            unknown = [str(key) for key in keys if key not in DEFAULTS]
            if unknown:
                raise ValueError(f"unknown: {', '.join(unknown)}")
            resources[name] = {key: _text(key, value) for key, value in keys.items()}
            parse_subscription(name, resources[name], match_keys)
        except ValueError as exc:
            faults.append(f"{name}: {exc}")
    if faults:
        raise SubscriptionFileError(faults)
    return {name: values for name, values in resources.items() if values}


def dump(resources: Mapping[str, Mapping[str, str]]) -> str:
    """The text of a file with these subscriptions."""
    plain = {name: dict(values) for name, values in resources.items()}
    return yaml_text(plain) if plain else ""


def _text(key: str, value: Any) -> str:
    """A value in the form that kafka-client-metrics.sh takes."""
    if value is None:
        return ""
    if key == MATCH and isinstance(value, dict):
        value = [f"{criterion}={_scalar(criterion, pattern)}" for criterion, pattern in value.items()]
    if key in (METRICS, MATCH) and isinstance(value, list):
        return ",".join(_scalar(key, element) for element in value)
    return _scalar(key, value)


def _scalar(key: Any, value: Any) -> str:
    """YAML reads `yes`, `3.10` and nothing as other values than text."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{key}: {value!r} is neither text nor a list of it: put it in quotes")


class SubscriptionFile:
    """Applies a file to the rules. `now_ms` is wall time. A missing file means no subscriptions."""

    def __init__(self, path: Path, rules: ClientMetrics, now_ms: Callable[[], int]) -> None:
        self.path = path
        self.rules = rules
        self.fault: str | None = None  # why the file as it is now is not followed
        self._now_ms = now_ms
        self._seen: tuple[int, ...] | None = None  # the stamp of the file as last checked

    def load(self) -> None:
        """Applies the file. Raises OSError, and ValueError when it is invalid."""
        self._seen = self._stamp()
        if self.path.stat().st_size > _MAX_FILE_BYTES:
            raise SubscriptionFileError([f"longer than {_MAX_FILE_BYTES} bytes"])
        resources = parse(self.path.read_text("utf-8"), self.rules.match_keys)
        self.rules.replace_all(resources, self._now_ms())

    def follow(self) -> None:
        """Applies changes of the file. An invalid or missing file is logged once and changes nothing."""
        try:
            if self._stamp() == self._seen:
                return
            self.load()
        except (OSError, ValueError) as exc:
            fault = f"cannot use {self.path}: {exc}"
            if fault != self.fault:
                log.warning("previous subscriptions stay in force", error=fault)
            self.fault = fault
        else:
            log.info("subscriptions read", file=str(self.path), count=len(self.rules.subscriptions))
            self.fault = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Locks the file against other processes and reloads it. Raises OSError when the lock is taken.

        The lock is on the directory, because writing replaces the file.
        """
        directory = os.open(self.path.resolve().parent, os.O_RDONLY)
        try:
            deadline_s = time.monotonic() + _LOCK_PATIENCE_S
            while True:
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(_LOCK_AGAIN_S)
            self.follow()
            yield
        finally:
            os.close(directory)

    def keep(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Stores name -> all keys and values; empty ones delete it. Raises OSError and then changes nothing."""
        if self.fault:
            raise OSError(self.fault)
        resources = {name: values for name, values in {**self.rules.resources, **changes}.items() if values}
        target = self.path.resolve()
        beside = target.with_name(f".{target.name}.new")
        beside.write_bytes(dump(resources).encode())
        sync_path(beside)
        beside.replace(target)
        sync_path(target.parent)
        self._seen = self._stamp()
        self.rules.replace_all(resources, self._now_ms())

    def _stamp(self) -> tuple[int, ...] | None:
        """Differs when the file was changed; its mode counts as well."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return None
        return stat.st_ctime_ns, stat.st_size, stat.st_ino
