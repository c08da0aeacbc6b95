"""ClickHouse client of the jobs (HTTP), independent of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from exporters.clickhouse.connection import Endpoint, in_database, tls_of
from exporters.clickhouse.errors import error_text
from exporters.clickhouse.store import PermanentWriteError, Store, TransientWriteError

_ENGINE = "SELECT engine FROM system.tables WHERE database = {database:String} AND name = {table:String}"


class SourceError(Exception):
    """ClickHouse is unreachable or fails a request. The message is a single line."""


@dataclass(frozen=True, slots=True)
class ClickHouse:
    """A ClickHouse endpoint, `http(s)://user@host:8123/headroom`. Each call opens its own connection, so Spark can send
    a Store to its workers. Raises ValueError for other URLs, and for URLs that contain a password."""

    url: str = field(repr=False)
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        Endpoint.parse(self.url)

    @property
    def name(self) -> str:
        """The address without user and password, for messages."""
        return str(self._endpoint)

    def batches(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[pa.Table | pa.RecordBatch]:
        """Streams the result. Raises SourceError, possibly after some batches."""
        with (
            self._client() as client,
            client.query_arrow_stream(self._named(sql), dict(parameters), use_strings=True) as stream,
        ):
            yield from stream

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All rows of a small result. Raises SourceError."""
        with self._client() as client:
            return list(client.query(self._named(sql), dict(parameters)).named_results())

    def command(self, sql: str, parameters: Mapping[str, Any], *, token: str = "") -> None:
        """Runs a statement; INSERTs with the same token are deduplicated. Raises SourceError."""
        settings = {"insert_deduplication_token": token, "deduplicate_insert_select": "enable"} if token else {}
        with self._client() as client:
            known = {name: value for name, value in settings.items() if name in client.server_settings}
            client.command(self._named(sql), dict(parameters), settings=known)

    def stored(self, table: str) -> str:
        """The table that holds the rows: on a cluster, the local table behind the Distributed one. Raises
        SourceError."""
        found = self.rows(_ENGINE, {"table": table, "database": self._endpoint.database})
        return f"{table}_local" if found and found[0]["engine"] == "Distributed" else table

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """Inserts a batch into a table of the database; batches with the same token are deduplicated. Raises
        SourceError."""
        store = Store(self._writer())
        try:
            store.insert(table, rows, token=token)
        except (TransientWriteError, PermanentWriteError) as exc:
            raise SourceError(error_text(exc, self.name)) from exc
        finally:
            store.close()

    def _writer(self) -> Endpoint:
        """For a URL without a user, uses the managed server's writer account if its password file is readable. Jobs
        also read as the writer: the reader account's limits are for interactive use."""
        try:
            return self._endpoint.as_writer()
        except OSError as exc:
            raise SourceError(f"cannot read the password of {self.name}'s writer: {exc.strerror}") from exc

    def _named(self, sql: str) -> str:
        return in_database(sql, self._endpoint.database)

    @property
    def _endpoint(self) -> Endpoint:
        return Endpoint.parse(self.url, self.password, tls_of(os.environ))

    @contextmanager
    def _client(self) -> Iterator[Client]:
        try:
            with self._writer().connect() as client:
                yield client
        # A server other than ClickHouse fails the handshake in many ways: bad numbers and Arrow streams raise
        # ValueError. A stream that is cut off raises urllib3's exceptions.
        except (ClickHouseError, HTTPError, ValueError, OSError) as exc:
            raise SourceError(error_text(exc, self.name)) from exc
