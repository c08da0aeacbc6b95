"""The verdict on each client as every surface shows it: page, JSON API, `headroom top`, /metrics, view and job."""

import json
import math
import re
from html import unescape
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from quota_metrics.verdict.thresholds import LEVELS
from tests.kit.serving import output_of, rows

METRICS = (
    *("headroom_client_quota_level", "headroom_client_impact", "kafka_client_quota_window_utilization_ratiomean"),
    *("kafka_client_quota_window_utilization_ratiop95", "kafka_client_quota_window_muted_ratio"),
)
Client = tuple[str, str]
ClientQuota = tuple[str, str, str]  # user, client id, quota key
Causes = dict[ClientQuota, str]
Shown = dict[Client, tuple[Any, ...]]  # level, reason, impact and its reason, numbers; not all on some surfaces


_ROW = re.compile(
    r'<span class="level \w+">(?P<level>\w+)</span></td>.*?<a href="/clients/detail\?[^"]*user=(?P<user>[^&"]*)[^"]*">'
    r'(?P<client_id>[^<]+)</a>.*?class="use">.*?<span class="number">(?P<share>[^<]*)</span></td>'
    r'\s*<td class="number">(?P<rates>[^<]*?)(?P<implied> <small>implied</small>)?</td>'
    r'\s*<td data-label="Muted" class="number">(?P<muted>[^<]*)</td>'
    r'.*?class="why">(?:<span>|<details><summary>[^<]*</summary>)(?P<reason>[^<]*)<'
    r'.*?(?:class="felt" title="(?P<felt>[^"]*)">client (?P<impact>[\w-]+)</small>)?</td>',
    re.DOTALL,
)


class Surfaces:
    """Reads the newest minute of one cluster from each surface; the report of the job has levels, too."""

    def __init__(self, http: str, sql: str) -> None:
        """HOST:PORT of both."""
        self._http, self._sql = http, sql

    def api(self, cluster: str) -> Shown:
        listed = self._get("/api/v1/headroom", cluster=cluster, limit="1000").json()
        return {(row["user"], row["client_id"]): _from_json(row) for row in listed}

    def top(self, cluster: str) -> Shown:
        listed = output_of("top", "--http", self._http, "--cluster", cluster, "--output", "json")
        return {(row["user"], row["client_id"]): _from_json(row) for row in json.loads(listed)}

    def page(self, cluster: str) -> Shown:
        found = _ROW.finditer(self._get("/", cluster=cluster, limit="1000").text)
        return {
            (unescape(row["user"]), unescape(row["client_id"])): (
                *(row["level"], unescape(row["reason"]), row["impact"] or "", unescape(row["felt"] or "")),
                *(row["share"], row["rates"], row["implied"] is not None, row["muted"]),
            )
            for row in found
        }

    def view(self, cluster: str, start_ms: int) -> Shown:
        return self._stored(
            "headroom_by_minute",
            f"window_start = toDateTime({start_ms // 1000}, 'UTC') AND source = 'gateway'",
            cluster,
            "muted_ms",
        )

    def job(self, cluster: str) -> Shown:
        return self._stored("quota_utilization_committed", "1", cluster, "throttled_s * 1000")

    def metrics(self, cluster: str) -> Shown:
        series: dict[str, dict[Client, float]] = {}
        for family in text_string_to_metric_families(self._get("/metrics").text):
            for sample in family.samples:
                if sample.labels.get("kafka_cluster") == cluster:
                    name = sample.name + sample.labels.get("statistic", "")
                    series.setdefault(name, {})[sample.labels["user"], sample.labels["client_id"]] = sample.value
        level, *others = (series.get(name, {}) for name in METRICS)
        return {
            client: (LEVELS[int(number) + 1], *(other.get(client) for other in others))
            for client, number in level.items()
        }

    def _stored(self, table: str, condition: str, cluster: str, muted_ms: str) -> Shown:
        stored = rows(
            self._sql,
            f"SELECT user, client_id, toString(level), reason, impact, impact_reason, broker_id, limit, usage,"
            f" utilization, utilization_p95, toFloat64({muted_ms}), implied_limit FROM headroom.{table}"
            f" WHERE cluster = '{cluster}' AND {condition}",
        )
        return {(row[0], row[1]): row[2:] for row in stored}

    def live_causes(self, cluster: str) -> list[Causes]:
        api = self._get("/api/v1/headroom", cluster=cluster, limit="1000").json()
        causes = {(row["user"], row["client_id"], row["quota_key"]): row["cause"] for row in api}
        return [causes, self._causes("headroom_now", f"cluster = '{cluster}'")]

    def job_causes(self, cluster: str, start_ms: int) -> Causes:
        of_minute = f"cluster = '{cluster}' AND window_start = toDateTime({start_ms // 1000}, 'UTC')"
        return self._causes("quota_utilization_committed", of_minute)

    def _causes(self, table: str, condition: str) -> Causes:
        asked = f"SELECT user, client_id, quota_key, cause FROM headroom.{table} WHERE {condition}"
        return {(row[0], row[1], row[2]): row[3] for row in rows(self._sql, asked)}

    def _get(self, path: str, **query: str) -> httpx.Response:
        return httpx.get(f"http://{self._http}{path}", params=query, timeout=60).raise_for_status()


def _from_json(row: dict[str, Any]) -> tuple[Any, ...]:
    """JSON has no infinity: above a limit of 0 utilisation is null."""
    names = ("broker_id", "limit", "usage", "utilization", "utilization_p95", "muted_ms", "implied_limit")
    above = {
        name: math.inf for name, rate in (("utilization", "group_usage"), ("utilization_p95", "group_p95"))
        if row["limit"] == 0 and row[rate] > 0
    }  # fmt: skip
    said = (row["level"], row["reason"], row["impact"], row["impact_reason"])
    return (*said, *((row | above)[name] for name in names))
