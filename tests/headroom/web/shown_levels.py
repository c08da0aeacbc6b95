"""The level of each client as each interface shows it: SQL view, JSON API, page, `headroom top`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from html import unescape
from urllib.parse import urlencode

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.reader import read_rows

Levels = dict[tuple[str, str], str]  # by quota key and client id

TIMEOUT_S = 30.0
_IN_PAGE = re.compile(
    r'<span class="level \w+">(?P<level>\w+)</span></td>.*?<a [^>]*>(?P<client_id>[^<]+)</a>.*?'
    r'data-label="Quota">(?P<quota_key>\w+)',
    re.DOTALL,
)
_VIEW = (
    "SELECT quota_key, client_id, toString(level) AS level FROM headroom.headroom_by_minute"
    " WHERE window_start = fromUnixTimestamp({from_s:UInt32}) AND cluster = {cluster:String} AND source = 'gateway'"
)


def live_levels(sql: str, http: str, cluster: str, from_ms: int) -> dict[str, Levels]:
    """The levels of the minute from `from_ms` on, by where they are shown.

    The page, the API and `top` show the newest minute that has ended: ask while that is the one.
    """
    query = urlencode({"cluster": cluster, "limit": 200})
    view = read_rows(Endpoint.parse(f"http://{sql}"), _VIEW, {"from_s": from_ms // 1000, "cluster": cluster})
    api = json.loads(_get(f"http://{http}/api/v1/headroom?{query}"))
    page = [found.groupdict() for found in _IN_PAGE.finditer(_get(f"http://{http}/?{query}"))]
    top = [[cell.strip() for cell in line.split("│")[1:]] for line in _top(http, cluster).splitlines()]
    shown = {"view": view, "api": api, "page": [{k: unescape(v) for k, v in row.items()} for row in page]}
    levels = {
        name: {(row["quota_key"], row["client_id"]): row["level"] for row in rows} for name, rows in shown.items()
    }
    levels["top"] = {(cells[3], cells[1]): cells[0] for cells in top if len(cells) > 3}
    return levels


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return str(response.read().decode())


def _top(http: str, cluster: str) -> str:
    argv = [sys.executable, "-m", "headroom", "top", "--once", "--http", http, "--cluster", cluster]
    wide = {**os.environ, "COLUMNS": "240"}
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TIMEOUT_S, env=wide).stdout
