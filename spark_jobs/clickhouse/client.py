"""ClickHouse as the jobs see it, over HTTP: a server, or the SQL door of the embedded engine. No Spark in here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from exporters.clickhouse.store import PermanentWriteError, Store, TransientWriteError

logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)  # what it warns of comes as an exception, too

_MESSAGE_CHARS = 300


class SourceError(Exception):
    """ClickHouse cannot be reached, or does not do what it was asked. The text is one line."""


@dataclass(frozen=True, slots=True)
class ClickHouse:
    """Where the data is: `http(s)://user@host:8123/headroom`; `password` counts where the URL has none. Each call has
    its own connection, so that Spark's workers can have one as well. Raises ValueError for a URL of another form."""

    url: str = field(repr=False)
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self._store()

    @property
    def name(self) -> str:
        """The address for messages, without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    def batches(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The result as it comes. Raises SourceError, also in the middle of it."""
        with self._client() as client, client.query_arrow_stream(sql, dict(parameters), use_strings=True) as stream:
            yield from stream

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """One batch into a table of database headroom; the same token counts once. Raises SourceError."""
        store = self._store()
        try:
            store.insert(table, rows, token=token)
        except (TransientWriteError, PermanentWriteError) as exc:
            raise SourceError(_told(exc, self.name, f"{self.name}: ")) from exc
        finally:
            store.close()

    @property
    def _secret(self) -> str:
        return unquote(urlsplit(self.url).password or "") or self.password

    def _store(self) -> Store:
        return Store.server(self.url, self._secret)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        scheme = urlsplit(self.url).scheme
        try:
            client = clickhouse_connect.get_client(
                dsn=self.url, interface=scheme, password=self._secret, autogenerate_session_id=False
            )
            with client:
                yield client
        # A server that is no ClickHouse fails the handshake in many ways: ValueError is numbers and Arrow streams.
        # A stream that is cut in its middle raises urllib3's own.
        except (ClickHouseError, HTTPError, ValueError, OSError) as exc:
            raise SourceError(_told(exc, self.name, f"cannot read {self.name}: ")) from exc


def _told(exc: BaseException, name: str, otherwise: str) -> str:
    """The system's own words where there was no connection: libraries wrap them in many more."""
    first = exc
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    if isinstance(first, OSError) and first.strerror:
        return f"cannot reach {name}: {first.strerror}"
    return otherwise + _one_line(exc)


def _one_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + "..."
