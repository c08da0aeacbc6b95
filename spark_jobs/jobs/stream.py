"""quota-headroom --stream: the same job again and again, over each new minute and over minutes that received late rows.

There is no checkpoint: a run publishes whole windows under a version, and its record in job_runs says up to when rows
had arrived. A stream that was killed begins with the rows that arrived since then, so none is lost or counted twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from spark_jobs.clickhouse.source import NothingToReadError, source_errors
from spark_jobs.options import HeadroomOptions
from spark_jobs.session import session

Job = Callable[[HeadroomOptions], list[dict[str, Any]]]

_COMPLETE_AFTER_S: Final = 5.0  # by then the rows of a window are stored


def run(options: HeadroomOptions, job: Job) -> list[dict[str, Any]]:
    """Runs `job` over windows that have ended or receive rows, until stopped, or once with `options.once`. Returns the
    last report.

    Raises ValueError, JavaError, StoreError.
    """
    report: list[dict[str, Any]] = []
    batch = replace(options, stream=False, once=False, recent=True)
    with source_errors(), session("quota_headroom", options.master):
        while True:
            with contextlib.suppress(NothingToReadError):
                report = job(batch)
            if options.once:
                return report
            ended_ms = batch.when.to_ms
            window_ms = batch.when.window_ms
            due_s = (ended_ms + window_ms) / 1000 + _COMPLETE_AFTER_S
            time.sleep(max(due_s - time.time(), 0.0))
            until_ms = int((time.time() - _COMPLETE_AFTER_S) * 1000)
            to_ms = until_ms - until_ms % window_ms
            # The window before may have been computed while it had not ended.
            batch = replace(batch, when=replace(batch.when, from_ms=ended_ms - ended_ms % window_ms, to_ms=to_ms))
