"""The ClickHouse engine in this process (chDB) over one directory, and handles on it.

What was measured, and what this file is built around:
- One process per directory, one directory per process. A fork after `import chdb` hangs: spawn.
- A query that fails in the middle leaves its output in its handle, and the next result on that handle begins with
  it. So a handle serves one request and is thrown away (1 ms); settings made with SET go with it.
- Without `config-file` the engine takes any `config.xml` of the working directory, at import already.
- The engine knows no user files directory: what keeps a query from the machine's files, from other hosts and from
  shutting us down is the list of grants below. Four things are not covered by grants: the scalar function `file`,
  `Python()`, INTO OUTFILE and FROM INFILE; exporters/clickhouse/sql_statement.py refuses them.
"""

from __future__ import annotations

import contextlib
import errno
import html
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from exporters.clickhouse.errors import code_and_message

_CONFIG = "<clickhouse><users_config>{users}</users_config></clickhouse>\n"

# UTC: a time without a zone means the same on every machine.
_USERS = """\
<clickhouse>
  <profiles><default><session_timezone>UTC</session_timezone></default></profiles>
  <quotas><default></default></quotas>
  <users><default>
    <password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
    <grants><query>GRANT SHOW, SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP DATABASE,
      DROP TABLE, DROP VIEW, TRUNCATE, OPTIMIZE, KILL QUERY ON *.*</query></grants>
  </default></users>
</clickhouse>
"""


class EngineError(Exception):
    """What the engine said. `code` is ClickHouse's error code, 0 when it named none."""

    def __init__(self, cause: BaseException) -> None:
        self.code, self.message = code_and_message(str(cause))
        super().__init__(self.message)


class Handle:
    """A connection for one request. Used by one thread at a time; every method raises EngineError."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, sql: str, output_format: str = "TabSeparated") -> Any:
        """Runs any statement; chdb's result, whole in memory. A FORMAT clause wins over `output_format`."""
        with _engine_errors():
            return self._connection.query(sql, output_format)

    def stream(self, sql: str, output_format: str) -> Generator[bytes, None, None]:
        """Runs a SELECT; each piece is one block, complete in itself in `output_format`.

        Close it before the handle: a stream that is given up after its handle takes the whole engine down.
        """
        with _engine_errors():
            result = self._connection.send_query(sql, output_format)
            try:
                for chunk in result:
                    yield chunk.bytes()
            finally:
                result.cancel()
                del result  # before the connection, also when both are garbage

    def insert(self, sql: str, input_format: str, chunks: Iterable[bytes]) -> Any:
        """Runs an INSERT that lacks its FORMAT clause on data in any pieces; chdb's InsertResult.

        Holds one block of the engine in memory, whatever the size.
        """
        with _engine_errors():
            inserter = self._connection.send_insert(sql, input_format)
        try:
            for chunk in chunks:
                with _engine_errors():
                    inserter.append(chunk)
        except BaseException:
            inserter.cancel()
            raise
        with _engine_errors():
            return inserter.finish()

    def close(self) -> None:
        """Ends the handle; a query that it still runs is cancelled."""
        self._connection.close()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Engine:
    """The open directory. Any number of threads may open handles."""

    def __init__(self, directory: Path) -> None:
        """Creates the directory when there is none.

        Raises OSError when it is open in another process, cannot be read, or this process has another one open.
        """
        self.directory = directory.resolve()
        if set("?&\\") & set(str(self.directory)):
            raise OSError(
                errno.EINVAL, f"cannot keep ClickHouse in {str(directory)!r}: it takes no ?, & or \\ in a path"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._options = {"config-file": str(self._write_configuration())}
        self._address = f"{self.directory}?{urlencode(self._options)}"
        self._connect = _import_chdb(self.directory).connect
        # Held for as long as we live: with its last handle the engine shuts down.
        self._anchor = self._first_connection()

    def handle(self, settings: Mapping[str, str] | None = None, database: str = "") -> Handle:
        """A new handle with these settings and this database. Setting names must be identifiers.

        Raises EngineError when there is no such setting or database.
        """
        handle = Handle(self._connect(self._address))
        try:
            if database:
                handle.query(f"USE {quote_name(database)}")
            if settings:
                handle.query("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()))
        except EngineError:
            handle.close()
            raise
        return handle

    def client_options(self) -> dict[str, Any]:
        """Arguments of clickhouse_connect.get_client that lead to this engine."""
        return {"interface": "chdb", "path": str(self.directory), "chdb_options": self._options}

    def close(self) -> None:
        """Gives the directory free once the last handle is closed."""
        self._anchor.close()

    def _first_connection(self) -> Any:
        try:
            connection = self._connect(self._address)
        except RuntimeError as exc:
            cause = EngineError(exc).message.partition("Stack trace")[0].strip(" ,")
            message = f"cannot open ClickHouse in {self.directory}; is another process using it? {cause}"
            raise OSError(errno.EBUSY, message) from exc
        if bytes(connection.query("SELECT getSetting('session_timezone')", "TSVRaw").bytes()) != b"UTC\n":
            raise OSError(errno.EINVAL, "cannot use ClickHouse: it did not read our configuration, so no grants hold")
        return connection

    def _write_configuration(self) -> Path:
        users = self.directory / "headroom-users.xml"
        config = self.directory / "headroom-config.xml"
        users.write_text(_USERS, encoding="utf-8")
        config.write_text(_CONFIG.format(users=html.escape(str(users))), encoding="utf-8")
        return config


def quote(text: str) -> str:
    """An SQL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_name(name: str) -> str:
    """An SQL identifier."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def _import_chdb(directory: Path) -> Any:
    # Late, because a process that only talks HTTP should not load 500 MB; and from a directory that is ours,
    # because the import itself runs an engine, which reads config.xml where it stands.
    with contextlib.chdir(directory):
        import chdb

        return chdb


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as exc:
        raise EngineError(exc) from exc
