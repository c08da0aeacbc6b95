"""The SQL endpoint under attack: requests of an attacker, and a writer and a reader that continue to use it."""

import http.client
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.access import PAGES, pages_password
from tests.attack.victim import Report, watched
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.serving import eventually

SECRET = "what-nobody-may-read"
# 1 GB for a reader that does not read it.
LONG_ANSWER = b"GET /?query=SELECT+repeat('x',1000)+FROM+numbers(1000000) HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PAUSE_S = 0.1  # each check of the store creates a part of a table
_ERROR_NAME = re.compile(r"\(([A-Z_]{5,})\)")


@dataclass(frozen=True)
class SqlVictim:
    """A server, a file beside it and a port that counts connections. `answers` are those of the current attack."""

    clickhouse: RunningClickHouse
    directory: Path
    trap: socket.socket
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def pages(self) -> Endpoint:
        writer = self.clickhouse.writer
        return replace(writer, user=PAGES, password=pages_password(writer.password))

    def ask(
        self, sql: str | None, *, body: str | None = None, headers: dict[str, str] | None = None, **parameters: Any
    ) -> tuple[int, str]:
        """A GET of `sql`, or a POST of `body`: the status and the text of the answer."""
        connection = http.client.HTTPConnection(self.clickhouse.host, self.clickhouse.port, timeout=60)
        asked = {**({} if sql is None else {"query": sql}), **parameters}
        with closing(connection):
            connection.request("GET" if body is None else "POST", f"/?{urlencode(asked)}", body, headers or {})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode("utf-8", "replace")
        named = _ERROR_NAME.findall(text)
        self.answers[f"{status} {named[-1]}" if status >= 400 and named else str(status)] += 1
        return status, text

    def filled(self, text: str) -> str:
        return text.format(
            secret=self.directory / "secret", out=self.directory / "out", trap=self.trap.getsockname()[1]
        )

    def refuses(
        self, sql: str | None, *, body: str | None = None, headers: dict[str, str] | None = None, **parameters: Any
    ) -> None:
        """Fails unless the request is refused and has read, written, fetched and dropped nothing."""
        status, answer = self.ask(sql, body=body, headers=headers, **parameters)
        tried = sql or body, headers, parameters
        assert status >= 400, (tried, answer[:200])
        assert SECRET not in answer, tried
        assert not (self.directory / "out").exists(), tried
        with pytest.raises(BlockingIOError):
            self.trap.accept()
        assert self.kept() == 1, tried

    def kept(self) -> int:
        """How many rows of those that were there before the attacks are still there.

        Asks as the writer: a query that an attack left running may hold all the memory of the reader.
        """
        return self._count("quota_limits WHERE cluster = 'kept'")

    def _count(self, of: str) -> int:
        writer = ClickHouse((self.clickhouse.writer,))
        [row] = writer.rows(f"SELECT count() AS n FROM {of}")
        writer.close()
        return int(row["n"])

    @contextmanager
    def attack(self, tried: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Report]:
        """The bystander writes a row and reads it back as the storage process does, and reads as a page does.

        Begins when nothing is left of the attack before.
        """
        # Queries of readers run or wait for clients that are gone, too, until the server has noticed.
        eventually(lambda: self._count("system.processes WHERE user = 'default'"), lambda running: running == 0)
        self.answers.clear()
        store = self.clickhouse.open_store()
        writer = ClickHouse((self.clickhouse.writer,), timeout_s=60)

        def use() -> bool:
            store.check()
            return writer.rows("SELECT 1 AS one") == [{"one": 1}]

        with closing(store), watched(tried, self.clickhouse.process, use, capsys, _PAUSE_S) as report:
            yield report
            report.shown = report.shown or ", ".join(f"{count}x {name}" for name, count in self.answers.most_common())


@contextmanager
def sql_victim(directory: Path) -> Iterator[SqlVictim]:
    """A server with one row that attacks may not remove."""
    (directory / "secret").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as trap, running_clickhouse(directory / "clickhouse") as clickhouse:
        trap.settimeout(0)
        clickhouse.store.query("INSERT INTO headroom.quota_limits (cluster, user) VALUES ('kept', 'u')")
        yield SqlVictim(clickhouse, directory, trap)


def half_sent(victim: SqlVictim, request: bytes) -> socket.socket:
    """A connection that has sent this and reads nothing."""
    client = socket.create_connection((victim.clickhouse.host, victim.clickhouse.port), 60)
    client.sendall(request)
    return client
