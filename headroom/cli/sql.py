"""`headroom sql`: one statement over HTTP, its result to standard output as it comes, its error as one line."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from exporters.clickhouse.errors import code_and_message
from exporters.clickhouse.schema import DATABASE

_CONNECT_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 18
_MAX_ERROR_BYTES = 1 << 16


class SqlError(Exception):
    """One line that says why there is no result."""


def run_sql(query: str, url: str, format: str | None, password: str = "") -> int:
    """Prints the result and returns 0, or one line on standard error and returns 1.

    `url` is `http(s)://[user[:password]@]host:port[/database]`; `password` counts where it names none. Without
    `format`: a table on a terminal, TSV in a pipe. A FORMAT clause in the query wins.
    """
    default_format = "PrettyCompact" if sys.stdout.isatty() else "TabSeparated"
    try:
        with _result(query, url, format or default_format, password) as result:
            shutil.copyfileobj(result, sys.stdout.buffer, _CHUNK_BYTES)
            sys.stdout.buffer.flush()
            if result.length:  # http.client reads past a lost end in silence
                raise IncompleteRead(b"", result.length)
    except SqlError as exc:
        sys.stderr.write(f"headroom: {exc}\n")
        return 1
    except BrokenPipeError:
        # Who reads us has read enough (`| head`); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextlib.contextmanager
def _result(query: str, url: str, output_format: str, password: str) -> Iterator[HTTPResponse]:
    """The open result. Raises SqlError, also from within the block when the connection breaks there."""
    parts = _parts(url)
    name = f"{parts.hostname}:{parts.port or _default_port(parts)}"
    parameters = {
        "database": parts.path.strip("/") or DATABASE,
        "default_format": output_format,
        "wait_end_of_query": "1",  # an error still finds its status then, and no half result is printed
    }
    connection = _connection(parts)
    try:
        connection.connect()
        connection.sock.settimeout(None)  # how long a query may take is the server's to say
        connection.request("POST", f"/?{urlencode(parameters)}", query.encode(), _authorization(parts, password))
        response = connection.getresponse()
        if response.status != 200:
            raise SqlError(_one_line(response.read(_MAX_ERROR_BYTES)) or f"{name} answered {response.status}")
        yield response
    except BrokenPipeError:
        raise  # standard output's
    except OSError as exc:
        raise SqlError(f"cannot reach {name}: {exc.strerror or exc}") from exc
    except HTTPException as exc:
        raise SqlError(f"{name} broke off, or does not speak HTTP: {exc!r}") from exc
    finally:
        connection.close()


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # a port that is none
        pass
    raise SqlError(f"cannot use {url!r}: it is not http://HOST:PORT")


def _default_port(parts: SplitResult) -> int:
    return 8443 if parts.scheme == "https" else 8123


def _connection(parts: SplitResult) -> HTTPConnection:
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port or _default_port(parts), timeout=_CONNECT_TIMEOUT_S)


def _authorization(parts: SplitResult, password: str) -> dict[str, str]:
    if not parts.username:
        return {}
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '') or password}"
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def _one_line(body: bytes) -> str:
    return " ".join(code_and_message(body.decode("utf-8", "replace"))[1].split())
