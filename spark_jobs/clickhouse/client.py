"""The connection of the jobs to ClickHouse; Spark sends it to its workers."""

from __future__ import annotations

import os

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import Endpoint, tls_of
from exporters.clickhouse.errors import StoreError

_TIMEOUT_S = 300.0
_PATIENCE_S = 5.0


class NothingToReadError(StoreError):
    """The requested range has no rows."""


def clickhouse_of(url: str, password: str = "") -> ClickHouse:
    """The server of `http(s)://user@host:8123/headroom`. For a URL without a user it is the managed server's writer, if
    its password file is readable: jobs also read as the writer, because the reader's limits are for interactive use.

    Raises ValueError for other URLs, and for URLs that contain a password; StoreError.
    """
    endpoint = with_writer(Endpoint.parse(url, password, tls_of(os.environ)))
    return ClickHouse((endpoint,), _TIMEOUT_S, patience_s=_PATIENCE_S)
