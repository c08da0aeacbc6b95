"""Endpoints (address and user) of ClickHouse servers, and the one factory of clients in this repository.

A password comes from the environment, from a file named there, or from the managed server's password file. It is not
accepted in a URL, because `ps`, logs and error messages show URLs.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:  # imported late: only creating a client needs it, and it is slow
    from clickhouse_connect.driver.client import Client

DATABASE = "headroom"  # as all SQL of this repository names it, see in_database
ANY_DATABASE = "__default__"  # the one that the server chooses for the user
WRITER = "headroom_writer"
PASSWORD, PASSWORD_FILE = "HEADROOM_CLICKHOUSE_PASSWORD", "HEADROOM_CLICKHOUSE_PASSWORD_FILE"
TLS_CA, TLS_CERTIFICATE, TLS_KEY = (f"HEADROOM_CLICKHOUSE_TLS__{name}" for name in ("CA", "CERTIFICATE", "KEY"))
SECRET_MACRO = "headroom_writer_password_file"  # noqa: S105 - the name of a macro that names a file

_CONNECT_TIMEOUT_S = 10
_ASK_TIMEOUT_S = 5.0
_SECRET = re.compile(r"[0-9a-f]{64}")
_DATABASE_NAME = re.compile(r"(?!(system|information_schema)$)[a-z_]\w{0,62}", re.ASCII | re.IGNORECASE)
_OUR_TABLE = re.compile(rf"(?<![\w.'`]){DATABASE}(?=\.[\w*])")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for https; "" is none. With a certificate the user logs in by it instead of a password."""

    ca: str = ""  # "": the authorities that the system trusts
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises OSError, ssl.SSLError."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key or None)
        return context

    def options(self) -> dict[str, str]:
        """As clickhouse-connect names them."""
        named = {"ca_cert": self.ca, "client_cert": self.certificate, "client_cert_key": self.key}
        return {name: file for name, file in named.items() if file}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The HTTP interface of a ClickHouse server and a user. `str` and `repr` omit the password."""

    scheme: str
    host: str
    port: int
    user: str = ""  # "": the server uses `default`
    password: str = field(default="", repr=False)
    tls: Tls = Tls()
    database: str = DATABASE

    @classmethod
    def parse(cls, url: str, password: str = "", tls: Tls = Tls()) -> Endpoint:
        """`http(s)://[user@]host[:port][/database]`. Raises ValueError for other forms, and for one with a password."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")  # as the socket does; UnicodeError is a ValueError
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.password is not None:
            raise ValueError(
                f"a ClickHouse URL must not contain a password: set {PASSWORD}, or {PASSWORD_FILE} to its file"
            )
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise ValueError(f"{url!r} is not http(s)://[user@]host[:port][/{DATABASE}]")
        database = parts.path.strip("/") or DATABASE
        if not _DATABASE_NAME.fullmatch(database) or parts.query or parts.fragment:
            raise ValueError(f"{url!r} names more than a server and a database of letters, digits and _")
        default_port = 8443 if parts.scheme == "https" else 8123
        return cls(parts.scheme, host, port or default_port, unquote(parts.username or ""), password, tls, database)

    @classmethod
    def parse_nodes(cls, urls: str, password: str = "", tls: Tls = Tls()) -> tuple[Endpoint, ...]:
        """The nodes of a cluster: URLs with commas between them, all with one database. Raises ValueError."""
        nodes = tuple(cls.parse(url.strip(), password, tls) for url in urls.split(","))
        if len(databases := {node.database for node in nodes}) > 1:
            raise ValueError(f"the nodes of a cluster have one database, these have {', '.join(sorted(databases))}")
        return nodes

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The form that `parse` takes: with the user, without the password."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"{self.scheme}://{user}{self.netloc}/{self.database}"

    def connect(self, **options: Any) -> Client:
        """A client with its own connections, for one thread at a time. Raises what clickhouse-connect raises."""
        import clickhouse_connect

        logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # it raises what it logs
        defaults = {
            "database": self.database,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "autogenerate_session_id": False,  # a session takes one query at a time
        }
        return clickhouse_connect.get_client(
            interface=self.scheme,
            host=self.host,
            port=self.port,
            username=self.user or "default",
            password=self.password,
            **{**defaults, **(self.tls.options() if self.scheme == "https" else {}), **options},
        )

    def open_http(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection for plain requests with `headers`. Raises OSError when a file of TLS cannot be read."""
        if self.scheme == "http":
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls.context())

    @property
    def headers(self) -> dict[str, str]:
        """What names the user; nothing for `default` without a password."""
        if self.scheme == "https" and self.tls.certificate:
            return {"X-ClickHouse-User": self.user, "X-ClickHouse-SSL-Certificate-Auth": "on"}
        if not self.user and not self.password:
            return {}
        pair = f"{self.user or 'default'}:{self.password}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    def as_writer(self) -> Endpoint:
        """The same server with a user that has write access.

        An endpoint with a user or a password is returned unchanged. Otherwise a managed server on this machine reports
        the path of its writer's password file, which only the file's owner can read. Raises OSError.
        """
        if self.user or self.password or not _is_loopback(self.host):
            return self
        file = self._secret_file()
        if file is None:
            return self
        secret = file.read_text(encoding="ascii", errors="replace").strip()
        # The server chooses the path, so the content is sent only if it looks like a generated password.
        if not _SECRET.fullmatch(secret):
            return self
        return replace(self, user=WRITER, password=secret)

    def _secret_file(self) -> Path | None:
        if self.scheme == "https":  # a managed server speaks http
            return None
        connection = self.open_http(_ASK_TIMEOUT_S)
        try:
            connection.request("POST", "/", f"SELECT getMacro('{SECRET_MACRO}') FORMAT TSVRaw".encode())
            response = connection.getresponse()
            named = response.read(4096).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        file = Path(named)
        return file if response.status == 200 and file.name == "writer.password" and file.is_file() else None


def in_database(sql: str, database: str) -> str:
    """SQL that names tables `headroom.NAME`, for a database of another name. Not for SQL that users write."""
    return sql if database == DATABASE else _OUR_TABLE.sub(database, sql)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def password_of(environment: Mapping[str, str]) -> str:
    """The password from the environment. Raises OSError when its file cannot be read, ValueError when both are set."""
    file = environment.get(PASSWORD_FILE)
    if file is None:
        return environment.get(PASSWORD, "")
    if environment.get(PASSWORD):
        raise ValueError(f"set either {PASSWORD} or {PASSWORD_FILE}, not both")
    return read_secret(Path(file))


def tls_of(environment: Mapping[str, str]) -> Tls:
    """The files that the environment names."""
    return Tls(*(environment.get(name, "") for name in (TLS_CA, TLS_CERTIFICATE, TLS_KEY)))


def read_secret(file: Path) -> str:
    """The content without the trailing newline. Raises OSError, UnicodeDecodeError."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")
