"""The what-if form: `headroom quotas what-if` in a child process, read-only, one at a time, bounded in time and rows.

A child, because the replay is computation for seconds that would delay the clients of this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import orjson
import structlog

from exporters.clickhouse.connection import PASSWORD, PASSWORD_FILE, TLS_CA, TLS_CERTIFICATE, TLS_KEY
from exporters.clickhouse.reader import Nodes
from exporters.kafka_configs import kafka_configs_line
from exporters.model import DEFAULT_ENTITY
from headroom.web.parameters import BadRequestError, Given, UnavailableError, text_of
from quota_metrics.config.entities import CLIENT_ID, USER, Alteration, entity_of
from quota_metrics.config.validation import refusal
from quota_metrics.simulation.outcomes import KEYS

log = structlog.get_logger(__name__)

RANGES = ("15m", "1h", "6h", "24h")
_TIMEOUT_S = 60.0
_MAX_ROWS = 1_000_000  # of usage, replayed in some ten seconds
_MAX_ANSWER_BYTES = 32 << 20
_MAX_WAITING = 4
_NICE = 10
_SHOWN = 200


class Question(NamedTuple):
    """A quota to set, or to remove with `value` None, and the recorded time to replay."""

    cluster: str
    entity: tuple[tuple[str, str | None], ...]
    quota_key: str
    value: float | None
    since: str

    @property
    def line(self) -> str:
        """The kafka-configs.sh line that makes the change."""
        return kafka_configs_line(self.entity, self.quota_key, self.value)

    @property
    def arguments(self) -> list[str]:
        """As flags of `headroom quotas what-if`; `--flag=value`, so that no name is read as a flag."""
        names = [f"--{kind}={name}" for kind, name in self.entity if name is not None]
        defaults = [f"--defaults={kind}" for kind, name in self.entity if name is None]
        change = f"--delete={self.quota_key}" if self.value is None else f"--add={self.quota_key}={self.value:.0f}"
        cluster = [f"--cluster={self.cluster}"] if self.cluster else []
        return [*names, *defaults, change, f"--since={self.since}", *cluster]


def question_of(given: Given) -> Question:
    """Parameters: cluster, user, client_id ('' is no part of the entity, <default> its default), quota_key, value ('':
    remove it), since. Raises BadRequestError with what a broker would refuse."""
    names = {USER: text_of(given, "user"), CLIENT_ID: text_of(given, "client_id")}
    if any("\0" in name for name in names.values()) or "\0" in text_of(given, "cluster"):
        raise BadRequestError("names must not contain NUL")
    entity = entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})
    quota_key, since = given.get("quota_key", KEYS[0]), given.get("since", "1h")
    if quota_key not in KEYS:
        raise BadRequestError(f"quota_key must be one of {', '.join(KEYS)}")
    if since not in RANGES:
        raise BadRequestError(f"since must be one of {', '.join(RANGES)}")
    value = _value(text_of(given, "value").strip())
    message = refusal(Alteration(entity, {quota_key: value}))
    if message:
        raise BadRequestError(message)
    return Question(text_of(given, "cluster"), entity, quota_key, value, since)


class WhatIfRunner:
    """Runs questions one after the other, as a reader of the node that answered last."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        endpoint = nodes.current
        secrets = {name: value for name, value in os.environ.items() if name not in (PASSWORD, PASSWORD_FILE)}
        files = zip((TLS_CA, TLS_CERTIFICATE, TLS_KEY), astuple(endpoint.tls), strict=True)
        self._environment = {**secrets, PASSWORD: endpoint.password, **dict(files)}
        self._one = asyncio.Semaphore(1)
        self._waiting = 0

    async def ask(self, question: Question) -> dict[str, Any]:
        """The affected clients, the newly throttled first. Raises BadRequestError, UnavailableError."""
        if self._waiting >= _MAX_WAITING:
            raise UnavailableError("other what-if questions are being answered, try again later")
        self._waiting += 1
        try:
            async with self._one:
                outcomes = await self._outcomes(question.arguments)
        finally:
            self._waiting -= 1
        affected = [outcome for outcome in outcomes if outcome["affected"]]
        counts = {
            name: sum(one["verdict"] == name for one in affected) for name in {one["verdict"] for one in affected}
        }
        return {
            "command": question.line,
            "since": question.since,
            "clients": affected[:_SHOWN],
            "counts": dict(sorted(counts.items())),
            "affected": len(affected),
            "unaffected": len(outcomes) - len(affected),
        }

    async def _outcomes(self, arguments: Sequence[str]) -> list[Mapping[str, Any]]:
        argv = [sys.executable, "-m", "headroom", "quotas", "what-if", *arguments]
        node = self._nodes.current
        url = replace(node, user=node.user or "default").url  # with a user it is not made the writer
        argv += ["--url", url, "--output", "json", "--max-rows", str(_MAX_ROWS)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=self._environment
        )
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            answer, error = await asyncio.wait_for(_read(process), _TIMEOUT_S)
        except TimeoutError:
            raise UnavailableError(
                "the replay takes too long: choose a shorter time, or use the command line"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode == 0:
            return list(await asyncio.to_thread(orjson.loads, answer))
        raise _failure(process.returncode, error)


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Standard output and error, until both end or are too long."""
    assert process.stdout is not None
    assert process.stderr is not None
    parts: list[bytes] = []
    length = 0
    while part := await process.stdout.read(1 << 16):
        parts.append(part)
        length += len(part)
        if length > _MAX_ANSWER_BYTES:
            raise UnavailableError("too many clients: use the command line")
    error = await process.stderr.read(4_096)
    await process.wait()
    return b"".join(parts), error


def _failure(status: int | None, error: bytes) -> Exception:
    lines = error.decode("utf-8", "replace").strip().splitlines()
    message = lines[-1].removeprefix("headroom: ") if lines else ""
    if message and (status == 2 or message.startswith("no usage")):  # what the command says of its arguments
        return BadRequestError(message)
    log.warning("a what-if question failed", status=status, error=message)
    return UnavailableError(message or "the replay failed")


def _value(text: str) -> float | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadRequestError("value must be a whole number of bytes per second, or empty to remove the quota")
    return float(text)
