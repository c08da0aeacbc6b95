"""Screenshots of the web pages by a Chromium of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from headroom.demo.script import CLIENTS

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 90.0
_WHAT_IF = {"client_id": "java-producer-warn", "quota_key": "producer_byte_rate", "value": 100_000, "since": "15m"}
_PREVIEW = {"metrics": "org.apache.kafka.producer.", "match": "client_software_name=apache-kafka-java"}
_WINDOW = "1400,1400"
_SETTLE_MS = 4_000  # of the page's own time: charts are drawn by then


def take_screenshots(http: str, cluster: str, target: Path) -> list[str]:
    """Writes page-NAME.png files into `target`. Returns their names; none where no Chromium is installed."""
    client = next(client for client in CLIENTS if client.habit == "throttled")
    detail = urlencode({"cluster": cluster, "user": "ANONYMOUS", "client_id": client.client_id})
    other_limit = urlencode({**_WHAT_IF, "cluster": cluster})
    pages = {
        "page-overview": "",
        "page-client": f"clients/detail?{detail}",
        "page-quotas": "quotas",
        "page-what-if": f"quotas/what-if?{other_limit}",
        "page-subscriptions": "subscriptions",
        "page-preview": f"subscriptions/preview?{urlencode(_PREVIEW)}",
        "page-status": "status",
    }
    return take_pictures(http, pages, target)


def take_pictures(http: str, pages: Mapping[str, str], target: Path, window: str = _WINDOW) -> list[str]:
    """Writes NAME.png into `target` for each name and path. Returns the files' names; none without a Chromium."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        return []
    files = {target / f"{name}.png": f"http://{http}/{path}" for name, path in pages.items()}
    for file, url in files.items():
        file.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="headroom-chromium-", ignore_cleanup_errors=True) as profile:
            argv = [program, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
            argv += [f"--window-size={window}", f"--virtual-time-budget={_SETTLE_MS}"]
            argv += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root's sandbox
            argv += [f"--screenshot={file.resolve()}", url]
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    return [file.name for file in files if file.exists()]
