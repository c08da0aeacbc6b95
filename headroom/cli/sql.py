"""`headroom sql`: runs one statement, streams the result to standard output, prints errors as one line."""

import codecs
import os
import shutil
import sys
from collections.abc import Mapping

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint, password_of, tls_of
from exporters.clickhouse.errors import StoreError, advice
from exporters.printable import printable

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 86_400.0  # the server limits the duration of queries


def run_sql(query: str, url: str, format: str | None, environment: Mapping[str, str]) -> int:
    """Prints the result and returns 0, or one line on standard error and returns 1.

    `url` is `http(s)://[user@]host:port`; the password comes from the environment. Without `format`: a table on a
    terminal, TSV in a pipe. A FORMAT clause in the query has precedence. What reaches a terminal has no control
    characters and no direction marks: they are escaped.
    """
    is_terminal = sys.stdout.isatty()
    default_format = "PrettyCompact" if is_terminal else "TabSeparated"
    try:
        endpoint = Endpoint.parse(url, password_of(environment), tls_of(environment))
    except (ValueError, OSError) as exc:
        return _failed(f"cannot use --url: {exc}")
    try:
        with ClickHouse((endpoint,), timeout_s=_TIMEOUT_S).text(query, format or default_format) as result:
            if is_terminal:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                while chunk := result.read(_CHUNK_BYTES):
                    sys.stdout.write(_visible(decoder.decode(chunk)))
                sys.stdout.write(_visible(decoder.decode(b"", final=True)))
            else:
                shutil.copyfileobj(result, sys.stdout.buffer, _CHUNK_BYTES)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); without this Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StoreError as exc:
        return _failed(f"{exc}{advice(exc)}")
    return 0


def _visible(text: str) -> str:
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _failed(reason: str) -> int:
    sys.stderr.write(f"headroom: {printable(reason)}\n")
    return 1
