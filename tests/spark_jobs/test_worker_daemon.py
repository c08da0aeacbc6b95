"""The daemon of Spark's Python workers forks: what it imports must not start threads."""

from __future__ import annotations

import json
import subprocess
import sys

_IMPORT = """
import json, os, sys, threading
import spark_jobs.worker_daemon
heavy = [name for name in ("numpy", "pandas", "pyarrow") if name in sys.modules]
ready = [name for name in ("clickhouse_connect", "pyspark.worker") if name in sys.modules]
tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
print(json.dumps([heavy, ready, tasks]))
"""


def test_its_imports_start_no_threads() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(done.stdout) == [[], ["clickhouse_connect", "pyspark.worker"], 1]
