"""Connects the web pages to the running service: data sources and access."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.managed.access import PAGES, pages_password
from exporters.listening_socket import is_loopback
from exporters.self_metrics import SelfMetric
from headroom.clock import now_ms
from headroom.config.receivers import TOKEN, TOKEN_RULE
from headroom.config.settings import ScopedTokenConfig, ServeConfig, WebConfig
from headroom.config.types import secret_of
from headroom.errors import ServeError
from headroom.server.health import ARRIVED_BYTES, Health, HealthReport
from headroom.server.http import web_app
from headroom.server.listeners.kafka_listeners import NetworkService
from headroom.server.metrics import Snapshot
from headroom.version import version_line
from headroom.web.access import AccessControl
from headroom.web.api import api_routes
from headroom.web.data import Data
from headroom.web.own_view import ClientScope, Scopes
from headroom.web.pages import page_routes
from headroom.web.tiles import ServiceState, tile_rows
from quota_metrics.config.owners import Owners
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.payer_budgets import PayerUse, merged_uses
from telemetry.subscriptions.subscription import parse_subscription
from telemetry.wire.errors import InvalidSubscriptionError

_PAYERS = 20  # shown of those whose exchanges were not metered
_OWN_METRICS = ("headroom_", "kafka_server_client_metrics_")


def http_app(
    config: ServeConfig,
    writer: ClickHouse,
    service: NetworkService,
    snapshot: Callable[[], Snapshot],
    health: Health,
    owners: Callable[[], Owners],
) -> Starlette:
    """/metrics, the probes, the pages and their API, for everybody: see `guarded`."""

    rules, quotas = service.gateway.receiver.rules, service.quotas

    def status() -> dict[str, Any]:
        checks, now = health.report(), snapshot()
        long_names = quotas.meter.long_names.recent(now_ms()) if quotas else ()  # too long to be kept
        names = (PayerUse(payer.payer, {"names": payer.number}, payer.last_ms) for payer in long_names)
        over_budget = merged_uses([service.network.worst_payers(_PAYERS), names])[:_PAYERS]
        own = [sample for family in now.collect() if family.name.startswith(_OWN_METRICS) for sample in family.samples]
        return {
            "ready": not checks.reason,
            "reason": checks.reason,
            "degraded": checks.degraded,
            "oldest_s": checks.oldest_s,
            "cluster": quotas.facts.document() if quotas else None,
            "left_out": [
                {"payer": payer.payer, "exchanges": payer.number, "last_ms": payer.last_ms}
                for payer in (quotas.meter.left_out.recent(now_ms())[:_PAYERS] if quotas else ())
            ],
            "over_budget": [use._asdict() for use in over_budget],
            "version": version_line(),
            "tiles": tile_rows(_state(config, service, now.totals(), health, checks), health.trends.values()),
            "metrics": [  # without those of clients
                {
                    "name": sample.name,
                    "labels": ", ".join(f"{name}={value}" for name, value in sorted(sample.labels.items())),
                    "value": sample.value,
                }
                for sample in own
            ],
        }

    if config.clickhouse:
        reader = ClickHouse(config.clickhouse_endpoints)
    else:  # the managed server has a user for pages
        server = writer.current
        reader = ClickHouse((replace(server, user=PAGES, password=pages_password(server.password)),))
    data = Data(reader, SubscriptionRows(rules), status, rules.match_keys, config.usage_source, owners)
    return web_app(snapshot, health, [*api_routes(data), *page_routes(data)])


def guarded(config: ServeConfig, app: ASGIApp) -> ASGIApp:
    """The app for those who may read it. Raises ServeError when a token cannot be read."""
    return AccessControl(
        GZipMiddleware(app),
        config.web,
        web_token(config),
        is_loopback=is_loopback(config.http.host),
        scopes=web_scopes(config),
    )


def _state(
    config: ServeConfig, service: NetworkService, now: Mapping[SelfMetric, float], health: Health, checks: HealthReport
) -> ServiceState:
    window_s, recent = health.recent()
    return ServiceState(
        reason=checks.reason,
        brokers=len(service.quotas.facts.facts.brokers) if service.quotas else None,
        connections=now.get(catalogue.CONNECTIONS, 0.0),
        upstream_failures=recent.get(catalogue.UPSTREAM_FAILURES, 0.0),
        left_out=recent.get(catalogue.USAGE_LEFT_OUT, 0.0),
        usage_lost=recent.get(catalogue.USAGE_ROWS_LOST, 0.0),
        window_s=window_s,
        pushes=recent.get(catalogue.PUSHES, 0.0),
        over_budget=recent.get(catalogue.PAYER_REFUSED, 0.0),
        dropped=recent.get(catalogue.DROPPED, 0.0),
        oldest_s=checks.oldest_s,
        late_s=config.store.late_ms / 1000,
        spool_bytes=now.get(catalogue.SPOOL_BYTES, 0.0),
        spool_max_bytes=config.spool.max_bytes,
        arrived_bytes=recent.get(ARRIVED_BYTES, 0.0),
        store_up=bool(now.get(catalogue.STORE_UP, 0.0)),
    )


class SubscriptionRows:
    """The cluster's subscriptions as rows, made when they have changed; invalid ones have `error`."""

    def __init__(self, rules: ClientMetrics) -> None:
        self._rules = rules
        self._resources: Mapping[str, Mapping[str, str]] | None = None
        self._rows: list[dict[str, Any]] = []

    def __call__(self) -> list[dict[str, Any]]:
        resources = self._rules.resources
        if self._resources is not resources:
            self._resources = resources
            self._rows = [self._row(name, values) for name, values in sorted(resources.items())]
        return self._rows

    def _row(self, name: str, values: Mapping[str, str]) -> dict[str, Any]:
        try:
            subscription = parse_subscription(name, values, self._rules.match_keys)
        except InvalidSubscriptionError as exc:
            return {"name": name, "metrics": [], "interval_ms": None, "match": [], "error": str(exc)}
        criteria = (entry.strip().partition("=") for entry in str(values.get("match", "")).split(","))
        match = [f"{key}={pattern}" for key, _, pattern in criteria if key]
        return {
            "name": name,
            "metrics": list(subscription.metrics),
            "interval_ms": subscription.interval_ms,
            "match": match,
            "error": "",
        }


def web_token(config: ServeConfig) -> str | None:
    """The token of the pages, if any. Raises ServeError."""
    web = config.web
    return None if web.token is None and web.token_file is None else _token_of(web, "web")


def web_scopes(config: ServeConfig) -> Scopes:
    """The tokens of applications. Raises ServeError."""
    scopes: dict[str, ClientScope] = {}
    for number, setting in enumerate(config.web.tokens):
        source = f"web.tokens.{number}"
        token = _token_of(setting, source)
        if setting.team and config.owners is None:
            raise ServeError(f"{source}: a team needs the setting owners")
        if token in scopes or token == web_token(config):
            raise ServeError(f"{source}: another setting has the same token")
        scopes[token] = ClientScope(setting.user, setting.client_id_prefix, setting.team)
    return Scopes(scopes.items())


def _token_of(section: WebConfig | ScopedTokenConfig, name: str) -> str:
    """Raises ServeError."""
    source = f"{name}.token_file {section.token_file}" if section.token_file else f"{name}.token"
    try:
        token = secret_of(section.token, section.token_file)
    except (OSError, UnicodeDecodeError) as exc:
        reason = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else "it is not UTF-8"
        raise ServeError(f"cannot read {source}: {reason}") from exc
    if not TOKEN.fullmatch(token):
        raise ServeError(f"{source}: {TOKEN_RULE}")
    return token
