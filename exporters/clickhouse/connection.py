"""Endpoints of ClickHouse servers: address, user, database; the proxy on the way; what a connection sets.

A password comes from the environment, from a file named there, or from the managed server's password file. It is not
accepted in a URL, because `ps`, logs and error messages show URLs.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, unquote, urlsplit

from exporters.environment_proxy import environment_proxy, through
from exporters.listening_socket import is_loopback

DATABASE = "headroom"  # unless the URL names another
ANY_DATABASE = "__default__"  # the one that the server chooses for the user
WRITER = "headroom_writer"
PASSWORD, PASSWORD_FILE = "HEADROOM_CLICKHOUSE_PASSWORD", "HEADROOM_CLICKHOUSE_PASSWORD_FILE"
TLS_CA, TLS_CERTIFICATE, TLS_KEY = (f"HEADROOM_CLICKHOUSE_TLS__{name}" for name in ("CA", "CERTIFICATE", "KEY"))
SECRET_MACRO = "headroom_writer_password_file"  # noqa: S105 - the name of a macro that names a file

Compression = Literal["none", "lz4", "zstd"]

SECRET = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(/[\w.~%-]+)*", re.ASCII)
_DATABASE_NAME = re.compile(r"(?!(system|information_schema)$)[a-z_]\w{0,62}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TlsFiles:
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
    tls: TlsFiles = TlsFiles()
    database: str = DATABASE
    path: str = ""  # below which a gateway serves ClickHouse, as "/clickhouse"
    # Never by the environment's proxy: what Headroom started itself.
    is_direct: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, url: str, password: str = "", tls: TlsFiles = TlsFiles()) -> Self:
        """`http(s)://[user@]host[:port][/path][/database]`, or `.../path?database=NAME` for a path without a database;
        on this machine it is asked without a proxy. Raises ValueError for other forms, and for one with a password."""
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
            raise ValueError(f"{url!r} is not http(s)://[user@]host[:port][/path][/{DATABASE}]")
        path, _, database = parts.path.rstrip("/").rpartition("/")
        if parts.query.startswith("database="):
            path, database = parts.path.rstrip("/"), parts.query.removeprefix("database=")
        elif parts.query:
            database = "?"
        if not (_DATABASE_NAME.fullmatch(database or DATABASE) and _PATH.fullmatch(path)) or parts.fragment:
            raise ValueError(f"{url!r} names more than a server, a path and a database of letters, digits and _")
        default_port = 8443 if parts.scheme == "https" else 8123
        user = unquote(parts.username or "")
        endpoint = cls(parts.scheme, host, port or default_port, user, password, tls, database or DATABASE, path)
        return replace(endpoint, is_direct=endpoint.is_loopback)

    @classmethod
    def parse_nodes(cls, urls: str, password: str = "", tls: TlsFiles = TlsFiles()) -> tuple[Self, ...]:
        """The nodes of a cluster: URLs with commas between them, all with one database. Raises ValueError."""
        parsed = (cls.parse(url.strip(), password, tls) for url in urls.split(","))
        nodes = tuple(replace(node, is_direct=False) for node in parsed)
        if len(databases := {node.database for node in nodes}) > 1:
            raise ValueError(f"the nodes of a cluster have one database, these have {', '.join(sorted(databases))}")
        return nodes

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def netloc(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The form that `parse` takes: with the user, without the password."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"{self.scheme}://{user}{self.netloc}{self.path}/{self.database}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The defaults are those of a single server."""

    cluster: str = ""  # name of the cluster in the servers' configuration; "": a single server
    quorum: str = "0"  # replicas that confirm an insert: 0 for one, a number, or `auto` for a majority
    compression: Compression = "none"  # of blocks on the wire
    retention_days: Mapping[str, int] = field(default_factory=dict)  # by table, for those that differ from the schema

    def client_settings(self) -> dict[str, str]:
        """What each connection sets. An insert into a Distributed table returns when the shards have its rows; what is
        joined or looked up is sent to all shards."""
        if not self.cluster:
            return {}
        quorum = {"insert_quorum": self.quorum, "insert_quorum_timeout": "60000"} if self.quorum != "0" else {}
        return {"distributed_foreground_insert": "1", "distributed_product_mode": "global", **quorum}


def proxy_of(endpoint: Endpoint) -> str:
    """The URL of the proxy by which the environment has the server reached, "" for none."""
    return "" if endpoint.is_direct else environment_proxy(str(endpoint))


def named_with_proxy(endpoint: Endpoint) -> str:
    """What errors name: the server, and the proxy by which it is asked, without its password."""
    return f"{endpoint}{through(proxy_of(endpoint))}"


def password_of(environment: Mapping[str, str]) -> str:
    """The password from the environment. Raises OSError when its file cannot be read, ValueError when both are set."""
    file = environment.get(PASSWORD_FILE)
    if not file:
        return environment.get(PASSWORD, "")
    if environment.get(PASSWORD):
        raise ValueError(f"set either {PASSWORD} or {PASSWORD_FILE}, not both")
    return read_secret(Path(file))


def tls_of(environment: Mapping[str, str]) -> TlsFiles:
    """The files that the environment names."""
    return TlsFiles(*(environment.get(name, "") for name in (TLS_CA, TLS_CERTIFICATE, TLS_KEY)))


def read_secret(file: Path) -> str:
    """The content without the trailing newline. Raises OSError, UnicodeDecodeError."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")
