"""The what-if form and `/api/v1/what-if`: questions of one quota over up to six hours, answered by
quota_metrics.what_if."""

import shlex
from dataclasses import replace
from typing import Any, NamedTuple

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS, DEFAULT_ENTITY
from headroom.clock import now_ms
from headroom.web.parameters import BadRequestError, Given, text_of
from quota_metrics.config.broker_refusals import refusal
from quota_metrics.config.entities import CLIENT_ID, USER, QuotaAlteration, entity_of
from quota_metrics.what_if.answer import UnrecordedClusterError, WhatIfQuestion, answer, whole_minutes
from quota_metrics.what_if.document import coverage_text, document
from quota_metrics.what_if.recording import TIMEOUT_S

RANGES = {"15m": 900, "1h": 3_600, "6h": 21_600}  # seconds; quota_usage_recent holds six hours
_SHOWN = 200


class FormQuestion(NamedTuple):
    """A quota to set, or to remove with `value` None, and the recorded time to look at."""

    cluster: str
    entity: tuple[tuple[str, str | None], ...]
    quota_key: str
    value: float | None
    since: str

    @property
    def alteration(self) -> QuotaAlteration:
        return QuotaAlteration(self.entity, {self.quota_key: self.value})

    @property
    def parameters(self) -> dict[str, str]:
        named = {kind: DEFAULT_ENTITY if name is None else name for kind, name in self.entity}
        value = "" if self.value is None else f"{self.value:.0f}"
        rest = {"quota_key": self.quota_key, "value": value, "since": self.since, "cluster": self.cluster}
        return {"user": named.get(USER, ""), "client_id": named.get(CLIENT_ID, ""), **rest}

    @property
    def what_if(self) -> str:
        """The command that answers the same question; `--flag=value`, so that no name is read as a flag."""
        names = [f"--{kind}={name}" for kind, name in self.entity if name is not None]
        defaults = [f"--defaults={kind}" for kind, name in self.entity if name is None]
        change = f"--delete={self.quota_key}" if self.value is None else f"--add={self.quota_key}={self.value:.0f}"
        cluster = [f"--cluster={self.cluster}"] if self.cluster else []
        return shlex.join(
            ["headroom", "quotas", "what-if", *names, *defaults, change, f"--since={self.since}", *cluster]
        )


def question_of(query: Given) -> FormQuestion:
    """Parameters: cluster, user, client_id ('' is no part of the entity, <default> its default), quota_key, value ('':
    remove it), since. Raises BadRequestError with what a broker would refuse."""
    names = {USER: text_of(query, "user"), CLIENT_ID: text_of(query, "client_id")}
    if any("\0" in name for name in names.values()) or "\0" in text_of(query, "cluster"):
        raise BadRequestError("names must not contain NUL")
    entity = entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})
    quota_key, since = query.get("quota_key", BYTE_KEYS[0]), query.get("since", "1h")
    if quota_key not in BYTE_KEYS:
        raise BadRequestError(f"quota_key must be one of {', '.join(BYTE_KEYS)}")
    if since not in RANGES:
        raise BadRequestError(f"since must be one of {', '.join(RANGES)}")
    value = text_of(query, "value").strip()
    if value and not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadRequestError("value must be a whole number of bytes per second, or empty to remove the quota")
    question = FormQuestion(text_of(query, "cluster"), entity, quota_key, float(value) if value else None, since)
    message = refusal(question.alteration)
    if message:
        raise BadRequestError(message)
    return question


def document_of(question: FormQuestion, clickhouse: ClickHouse) -> dict[str, Any]:
    """The document of quota_metrics.what_if with at most _SHOWN clients. Raises BadRequestError, ConnectionError."""
    now = now_ms()
    from_ms, to_ms = whole_minutes(now, RANGES[question.since])
    replayed = WhatIfQuestion([question.alteration], from_ms, to_ms, question.cluster)
    try:
        outcome = document(answer(replayed, replace(clickhouse, timeout_s=TIMEOUT_S), now), _SHOWN)
    except UnrecordedClusterError as exc:
        raise BadRequestError(str(exc)) from exc
    return {
        **outcome,
        "what_if": question.what_if,
        "since": question.since,
        "covers_text": coverage_text(outcome["covers"]),
    }
