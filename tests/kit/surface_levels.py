"""The level of each client in one minute, as each interface shows it: SQL view, JSON API, page, `headroom top`.

The Spark job's levels are in its report (spark_jobs.reports.headroom_report).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from html import unescape
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import urlencode

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.printable import one_line
from headroom.demo.service import DemoError
from tests.kit.prometheus import DIRECT

Levels: TypeAlias = dict[tuple[str, str], str]  # by quota key and client id

_TIMEOUT_S = 30.0
_MOST_CLIENTS = 1_000
_IN_PAGE = re.compile(
    r'<span class="level \w+">(?P<level>\w+)</span></td>.*?<a [^>]*>(?P<client_id>[^<]+)</a>.*?'
    r'data-label="Quota" title="(?P<quota_key>\w+) of ',
    re.DOTALL,
)
_VIEW = (
    "SELECT quota_key, client_id, toString(level) AS level FROM headroom_by_minute"
    " WHERE window_start = fromUnixTimestamp({from_s:UInt32}) AND cluster = {cluster:String} AND source = 'gateway'"
)


def live_levels(sql: str, http: str, cluster: str, from_ms: int, *, until_s: float) -> dict[str, Levels]:
    """The levels of the minute from `from_ms` on, by interface; HOST:PORT of SQL and HTTP endpoint.

    The page, the API and `top` show the newest 60 seconds: asks until they agree, or until `until_s`
    (wall time). Raises DemoError when an interface cannot be read.
    """
    while True:
        try:
            found = _shown(sql, http, cluster, from_ms)
        except (OSError, HTTPException, subprocess.SubprocessError) as exc:
            raise DemoError(f"cannot read the levels: {one_line(exc)}") from exc
        if (all(found.values()) and not differing(found)) or time.time() > until_s:
            return found
        time.sleep(1.0)


def differing(levels: Mapping[str, Levels]) -> list[str]:
    """A line for each client whose level is not the same everywhere; empty when all are equal."""
    clients = sorted({client for shown in levels.values() for client in shown})
    by_client = {client: {name: shown.get(client, "missing") for name, shown in levels.items()} for client in clients}
    return [
        f"{client_id} ({quota_key}) is {', '.join(f'{level} by {name}' for name, level in shown.items())}"
        for (quota_key, client_id), shown in by_client.items()
        if len(set(shown.values())) > 1
    ]


def by_client(rows: Iterable[Mapping[str, Any]]) -> Levels:
    """Rows with `quota_key`, `client_id` and `level`."""
    return {(row["quota_key"], row["client_id"]): row["level"] for row in rows}


def _shown(sql: str, http: str, cluster: str, from_ms: int) -> dict[str, Levels]:
    query = urlencode({"cluster": cluster, "limit": _MOST_CLIENTS})
    page = [found.groupdict() for found in _IN_PAGE.finditer(_get(http, f"/?{query}"))]
    return {
        "page": by_client({name: unescape(text) for name, text in row.items()} for row in page),
        "API": by_client(json.loads(_get(http, f"/api/v1/headroom?{query}"))),
        "view": by_client(
            ClickHouse((Endpoint.parse(f"http://{sql}"),)).rows(_VIEW, {"from_s": from_ms // 1000, "cluster": cluster})
        ),
        "top": by_client(json.loads(_top(http, cluster))),
    }


def _get(http: str, path: str) -> str:
    with DIRECT.open(f"http://{http}{path}", timeout=_TIMEOUT_S) as response:
        return str(response.read().decode())


def _top(http: str, cluster: str) -> str:
    argv = [sys.executable, "-m", "headroom", "top", "--output", "json", "--http", http, "--cluster", cluster]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout
