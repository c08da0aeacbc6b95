"""`headroom sql`: runs one statement over HTTP, streams the result to standard output, prints errors as one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPResponse, IncompleteRead
from urllib.parse import urlencode

from exporters.clickhouse.connection import Endpoint, password_of, tls_of
from exporters.clickhouse.errors import code_and_message

_CONNECT_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 18
_MAX_ERROR_BYTES = 1 << 16


class SqlError(Exception):
    """Why there is no result, in one line."""


def run_sql(query: str, url: str, format: str | None, environment: Mapping[str, str]) -> int:
    """Prints the result and returns 0, or one line on standard error and returns 1.

    `url` is `http(s)://[user@]host:port`; the password comes from the environment. Without `format`: a table on a
    terminal, TSV in a pipe. A FORMAT clause in the query has precedence.
    """
    default_format = "PrettyCompact" if sys.stdout.isatty() else "TabSeparated"
    try:
        with _result(query, _endpoint(url, environment), format or default_format) as result:
            shutil.copyfileobj(result, sys.stdout.buffer, _CHUNK_BYTES)
            sys.stdout.buffer.flush()
            if result.length:  # http.client does not report a truncated response
                raise IncompleteRead(b"", result.length)
    except SqlError as exc:
        sys.stderr.write(f"headroom: {exc}\n")
        return 1
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); without this Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextlib.contextmanager
def _result(query: str, endpoint: Endpoint, output_format: str) -> Iterator[HTTPResponse]:
    """The open result. Raises SqlError, also from within the block when the connection breaks there."""
    parameters = {
        "database": endpoint.database,
        "default_format": output_format,
        "wait_end_of_query": "1",  # so that an error gets its status, and no partial result is printed
    }
    try:
        connection = endpoint.open_http(_CONNECT_TIMEOUT_S)
    except OSError as exc:
        raise SqlError(f"cannot read the TLS files of {endpoint.netloc}: {exc}") from exc
    try:
        connection.connect()
        connection.sock.settimeout(None)  # the server limits the duration of queries
        connection.request(
            "POST", f"/?{urlencode(parameters)}", query.encode(errors="surrogateescape"), endpoint.headers
        )
        response = connection.getresponse()
        if response.status != 200:
            raise SqlError(
                _one_line(response.read(_MAX_ERROR_BYTES)) or f"{endpoint.netloc} answered {response.status}"
            )
        yield response
    except BrokenPipeError:
        raise  # standard output's
    except OSError as exc:
        raise SqlError(f"cannot reach {endpoint.netloc}: {exc.strerror or exc}") from exc
    except HTTPException as exc:
        raise SqlError(f"{endpoint.netloc} broke off, or does not speak HTTP: {exc!r}") from exc
    finally:
        connection.close()


def _endpoint(url: str, environment: Mapping[str, str]) -> Endpoint:
    try:
        return Endpoint.parse(url, password_of(environment), tls_of(environment))
    except (ValueError, OSError) as exc:
        raise SqlError(f"cannot use --url: {exc}") from exc


def _one_line(body: bytes) -> str:
    return " ".join(code_and_message(body.decode("utf-8", "replace"))[1].split())
