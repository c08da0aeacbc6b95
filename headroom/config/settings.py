"""The settings of `headroom serve` with their defaults; sources.py loads them.

Only headroom/ uses these classes; constructors elsewhere take single values.
"""

from __future__ import annotations

import re
import socket
import warnings
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from exporters.clickhouse.connection import Endpoint
from exporters.model import UNOWNED
from headroom.config.listener import FurtherListenerConfig, ListenerConfig
from headroom.config.quotas import LevelsConfig, QuotaConfig
from headroom.config.receivers import MIN_TOKEN_CHARS, GrpcConfig, OtlpConfig
from headroom.config.store import ClickHouseTlsConfig, StoreConfig
from headroom.config.types import (
    Address,
    Brokers,
    Bytes,
    Count,
    Directory,
    ListenAddress,
    Millis,
    Network,
    Section,
    check_secret,
    parse_http_url,
    secret_of,
)
from telemetry.forward.selection import ForwardSelection
from telemetry.gateway.networks import LOOPBACK

__all__ = ["Address", "LevelsConfig", "QuotaConfig", "StoreConfig"]


class ConfigError(Exception):
    """The configuration is invalid; each of `faults` is one line. `rest`: what it is without the settings of the names
    `wrong`, if it is one then."""

    def __init__(self, faults: list[str], rest: ServeConfig | None = None, wrong: frozenset[str] = frozenset()) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
        self.rest = rest
        self.wrong = wrong


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_GRPC_HEADER = re.compile(r"[0-9a-z_.-]+(?<!-bin)", re.IGNORECASE)  # names with -bin take bytes
_HTTP_PATH = "/v1/metrics"

# The setting shadows a deprecated method of BaseModel, which is not used.
warnings.filterwarnings("ignore", 'Field name "validate" in "TelemetryConfig" shadows', UserWarning)


class GatewayConfig(Section):
    """Connections to clients and brokers."""

    id: str = Field(default_factory=socket.gethostname, min_length=1, max_length=255)
    """Name of this gateway in quota_usage.gateway_id; by default the host name"""
    advertised_host: str | None = None
    """Host advertised to clients; none: the address that the client connected to"""
    connect_timeout_ms: Millis = 10_000
    """Timeout of a connection to a broker, for all addresses of its name together"""
    drain_ms: Millis = 5_000
    """At the end, maximum time to answer requests in flight"""
    max_request_bytes: Bytes = 104_857_600
    """Longer requests close the connection (socket.request.max.bytes)"""
    max_connections: Count = 20_000
    """Maximum number of client connections, in all processes; further reduced by the limit of open files"""
    max_connections_per_address: int | None = Field(default=None, gt=0)
    """Maximum number per IPv4 address or IPv6 /64; none: three quarters of max_connections"""
    max_held_bytes: Bytes = 67_108_864
    """Per process, bytes of incomplete requests that are not just forwarded"""
    frame_timeout_ms: Millis = 30_000
    """Maximum time from the first to the last byte of such a request"""
    handshake_timeout_ms: Millis = 10_000
    """Maximum time for TLS; and for SASL, from when a broker is reached"""
    idle_timeout_ms: Millis = 600_000
    """Connections without traffic are closed after it (connections.max.idle.ms)"""
    ip_quotas: Literal["off", "observe", "enforce"] = "enforce"
    """The cluster's max.connections.per.ip and connection_creation_rate for clients' own addresses, which the brokers
    do not see: not counted, measured only, or applied"""
    upstream_networks: tuple[Network, ...] = ()
    """Networks of the brokers; others are not connected to; empty: any"""
    metadata_refresh_ms: Millis = 5_000
    """Time between two readings of the cluster's brokers"""

    @field_validator("ip_quotas", mode="before")
    @classmethod
    def _is_a_word(cls, mode: object) -> object:
        return "off" if mode is False else mode  # what YAML reads for `off`


class AdministrationConfig(Section):
    """Who may alter a stand-alone sink's subscriptions with Kafka's tools. With a cluster, its brokers decide.

    Requests of others are refused with CLUSTER_AUTHORIZATION_FAILED per resource.
    """

    enabled: bool = True
    """Whether subscriptions can be altered over the Kafka protocol"""
    networks: tuple[Network, ...] = LOOPBACK
    """Networks of administrators"""
    principals: tuple[str, ...] = ()
    """Principals of administrators"""


class TelemetryConfig(Section):
    """KIP-714."""

    max_bytes: Bytes = 1_048_576
    """Maximum size of a compressed payload (Kafka's telemetry.max.bytes)"""
    max_decompressed_bytes: Bytes = 16_777_216
    """Maximum size of a decompressed payload"""
    max_instances: Count = 16_384
    """Maximum number of client instances in memory, per process"""
    max_client_points: Count = 2_000_000
    """Maximum number of data points of one client instance per minute; pushes over it are dropped as `over_budget`"""
    max_client_series: Count = 200_000
    """The same for new series"""
    payer_requests: Count = 2_000
    """Telemetry requests per second, in each network process, of one payer: of a principal, or of the source network of
    clients without one. One connection may use a quarter of it; bursts of 10 s are allowed. Clients over it are asked
    to wait (THROTTLING_QUOTA_EXCEEDED)"""
    payer_instances: Count = 200
    """The same for client instances that are new, with bursts of 100 s"""
    payer_bytes: Bytes = 33_554_432
    """The same for the bytes of payloads as they arrive, with bursts of 20 s"""
    refresh_ms: Millis = 2_000
    """Time between two readings of the cluster's CLIENT_METRICS resources, or of the subscription file"""
    validate: Literal["ingest", "receive"] = "ingest"  # type: ignore[assignment]  # shadows a method of BaseModel
    """When payloads are decompressed and decoded. `ingest`: after the acknowledgement; invalid ones go to the
    quarantine. `receive`: before it, so that clients get Kafka's error codes; a push then costs the network process ten
    times as much."""
    extra_selectors: bool = False
    """Whether subscriptions may match by principal, listener and cluster, which brokers do not support"""


class SpoolConfig(Section):
    """The spool between network and storage."""

    segment_bytes: Bytes = 67_108_864
    """Size of a segment. Up to 4 finished segments are kept in addition to `max_bytes`, because overwriting one is
    faster than writing a new one; those of at most a 16th of `max_bytes` are reused while three quarters of the spool
    are empty."""
    max_bytes: Bytes = 4_294_967_296
    """Size of the spool; when it is full, clients are asked to retry"""
    usage_bytes: Bytes | None = None
    """Part of `max_bytes` that is for usage and quotas; pushes have the rest, so that neither side can push the other
    out. Default: an eighth."""
    fsync: Literal["interval", "each"] = "interval"
    """When the spool is synced to disk: `each` syncs before every acknowledgement, which delays all requests;
    `interval` syncs every `sync_ms`. Only a power loss can lose unsynced records, a crash of Headroom cannot."""
    sync_ms: Millis = 1_000
    """Time between two syncs with `interval`"""

    @model_validator(mode="after")
    def _has_room_for_pushes(self) -> SpoolConfig:
        if self.usage_share >= self.max_bytes:
            raise ValueError("usage_bytes leaves no room for pushes in max_bytes")
        return self

    @property
    def usage_share(self) -> int:
        """Bytes for usage and quotas."""
        return self.max_bytes // 8 if self.usage_bytes is None else self.usage_bytes

    @property
    def push_share(self) -> int:
        """Bytes for pushes."""
        return self.max_bytes - self.usage_share


class ScopedTokenConfig(Section):
    """A token of an application, which sees the clients for which all that is given holds."""

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None
    token_file: Path | None = None
    user: str = ""
    client_id_prefix: str = ""
    team: str = ""

    @model_validator(mode="after")
    def _sees_some_clients(self) -> ScopedTokenConfig:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("set either token or token_file")
        if not (self.user or self.client_id_prefix or self.team):
            raise ValueError("set user, client_id_prefix or team: a token without them would see all clients")
        if self.team == UNOWNED:
            raise ValueError(f"{UNOWNED} is no team")
        return self


class WebConfig(Section):
    """Who may read the pages and `/api/v1/` at the HTTP address. /metrics and the probes need no token.

    On a loopback address every local user may; on other addresses a reader needs a token or a trusted proxy.
    """

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None
    """Bearer token, or password of any user; use HEADROOM_WEB__TOKEN"""
    token_file: Path | None = None
    """File of that token"""
    tokens: tuple[ScopedTokenConfig, ...] = Field(default=(), max_length=1_000)
    """Tokens of applications, which see their own clients at /api/v1/me and /me and reach nothing else: {token or
    token_file, user, client_id_prefix, team}; with them no reader goes without a token"""
    host_names: tuple[str, ...] = ()
    """Accepted Host headers at every path besides localhost and addresses, such as the name by which Prometheus
    scrapes"""
    user_header: str = "x-forwarded-user"
    """Header in which a trusted proxy names the user; any user may read"""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of trusted proxies"""

    @model_validator(mode="after")
    def _operators_can_read(self) -> WebConfig:
        if self.tokens and not (self.token or self.token_file or self.trusted_proxies):
            raise ValueError("tokens need token, token_file or trusted_proxies besides: operators could read nothing")
        if self.token and self.token_file:
            raise ValueError("set either token or token_file, not both")
        return self


def _forward_endpoint(value: str) -> str:
    parse_http_url(value)
    parts = urlsplit(value)
    if parts.username or parts.query or parts.fragment:
        raise ValueError("is not http(s)://host[:port][/path]")
    return value


def _header_value(value: SecretStr) -> SecretStr:
    """Without the line end of a file with a secret."""
    text = value.get_secret_value().strip()
    if not (text.isascii() and text.isprintable()):
        raise ValueError("is not printable ASCII")
    return SecretStr(text)


class ForwardConfig(Section):
    """Forwards what clients push to an OTLP endpoint. Off without `endpoint`."""

    endpoint: Annotated[str, AfterValidator(_forward_endpoint)] | None = None
    """http(s)://host[:port][/path]; none: no forwarding"""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP/gRPC (`grpc`), or OTLP/HTTP with protobuf (`http`)"""
    headers: dict[str, Annotated[SecretStr, AfterValidator(_header_value)]] = Field(default_factory=dict)
    """Headers of each request, for example authorization; values of printable ASCII, without spaces at their ends"""
    ca: Path | None = None
    """CA of the endpoint's certificate, PEM; by default the system's CAs"""
    certificate: Path | None = None
    """Client certificate for the endpoint, PEM"""
    private_key: Path | None = None
    """Private key of `certificate`, PEM"""
    compression: Literal["none", "gzip", "zstd"] = "gzip"
    """Compression of requests; zstd with HTTP only"""
    timeout_ms: Millis = 10_000
    """Timeout of a request"""
    metrics: str = "*"
    """Forwarded metrics: prefixes of metric names separated by commas, as in a subscription; `*`: all"""
    match: str = ""
    """Forwarded clients: key=pattern pairs separated by commas, as in a subscription; empty: all"""
    max_lag_bytes: Bytes = 1_073_741_824
    """Spool kept for a receiver that does not answer; the oldest records are dropped first"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ForwardSelection(self.metrics, self.match)
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key need each other")
        if (self.ca or self.certificate) and not (self.endpoint or "").startswith("https:"):
            raise ValueError("ca and certificate need an endpoint with https")
        if self.protocol == "grpc" and self.compression == "zstd":
            raise ValueError("zstd is for protocol http: gRPC has gzip")
        if self.protocol == "grpc" and urlsplit(self.endpoint or "").path.strip("/"):
            raise ValueError("a gRPC endpoint has no path")
        names = _GRPC_HEADER if self.protocol == "grpc" else _HEADER
        if wrong := [name for name in self.headers if not names.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a header of {self.protocol}")
        return self

    @property
    def url(self) -> str:
        """Where HTTP requests go: OTLP's own path unless the endpoint names one."""
        endpoint = self.endpoint or ""
        return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _HTTP_PATH

    @property
    def target(self) -> str:
        """HOST:PORT for gRPC; the port of the scheme unless the endpoint names one."""
        parts = urlsplit(self.endpoint or "")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


class ServeConfig(Section):
    """`headroom serve`."""

    model_config = ConfigDict(validate_default=True)  # endpoints clash with default ones, too

    listen: ListenAddress = Address(host="127.0.0.1", port=9092)
    """Address of the Kafka listener, the bootstrap address of clients; [::] takes IPv4 clients as well"""
    processes: int = Field(default=1, ge=1, le=64)
    """Network processes that accept clients at the same ports (SO_REUSEPORT)"""
    upstream: Brokers = ()
    """Brokers to proxy; empty: stand-alone sink"""
    observe: Brokers = ()
    """Brokers to observe without being in the data path, instead of `upstream`; no Kafka listener is opened."""
    cluster: str | None = None
    """Name of the cluster; none: the brokers' cluster id, or a generated one without brokers"""
    subscriptions: Path | None = None
    """Subscription file; none: the cluster's own, or a file in the data directory without brokers"""
    owners: Path | None = None
    """YAML file that says which team owns which users, client ids and topics; the pages, `headroom top`, the API and
    /metrics name the team; can be reloaded"""
    data: Directory = Path("headroom-data")
    """Directory of the spool and the managed ClickHouse server"""
    clickhouse: str | None = None
    """URL of an external ClickHouse server, or of the nodes of a cluster separated by commas; the path is the
    database"""
    clickhouse_password: SecretStr | None = None
    """Password of the URL's user; use HEADROOM_CLICKHOUSE_PASSWORD"""
    clickhouse_password_file: Path | None = None
    """File of that password"""
    clickhouse_tls: ClickHouseTlsConfig = ClickHouseTlsConfig()
    sql: ListenAddress = Address(host="127.0.0.1", port=8123)
    """HTTP address of the managed ClickHouse server"""
    http: ListenAddress = Address(host="127.0.0.1", port=9644)
    """Address of /metrics, /healthz, /readyz, /readyz/kafka, the pages and the API"""
    command_config: Path | None = None
    """Kafka client properties for Headroom's own connections to brokers; ssl.* also apply to upstream connections"""
    listener: ListenerConfig = ListenerConfig()
    listeners: tuple[FurtherListenerConfig, ...] = ()
    """Further listeners, as for external clients: {listen, name, advertised_host, advertised_port} and the settings of
    `listener`"""
    core_dumps: bool = False
    """Whether core dumps of network processes are written, and other processes of the same user read their memory, as
    debuggers do: it has passwords of clients"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of `headroom serve`'s own log; can be reloaded"""
    web: WebConfig = WebConfig()
    grpc: GrpcConfig = GrpcConfig()
    otlp: OtlpConfig = OtlpConfig()
    forward: ForwardConfig = ForwardConfig()
    gateway: GatewayConfig = GatewayConfig()
    administration: AdministrationConfig = AdministrationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    quotas: QuotaConfig = QuotaConfig()
    levels: LevelsConfig = LevelsConfig()
    spool: SpoolConfig = SpoolConfig()
    store: StoreConfig = StoreConfig()

    @field_validator("observe")
    @classmethod
    def _observes_or_proxies(cls, observe: tuple[Address, ...], earlier: ValidationInfo) -> tuple[Address, ...]:
        if observe and earlier.data.get("upstream"):
            raise ValueError("set either observe or upstream, not both")
        if observe and earlier.data.get("processes", 1) > 1:
            raise ValueError("observe takes no clients, and has no use for processes")
        return observe

    @field_validator("listener")
    @classmethod
    def _is_led_to_a_fixed_port(cls, listener: ListenerConfig, earlier: ValidationInfo) -> ListenerConfig:
        listen = earlier.data.get("listen")
        if listener.advertised_port is not None and isinstance(listen, Address) and not listen.port:
            raise ValueError("advertised_port needs a fixed port in `listen`: nothing leads to one that changes")
        return listener

    @field_validator("clickhouse")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None:
            Endpoint.parse_nodes(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> ServeConfig:
        check_secret("clickhouse_password", self.clickhouse_password, self.clickhouse_password_file)
        if self.store.cluster.name and self.clickhouse is None:
            raise ValueError("store.cluster needs `clickhouse`: the managed server is a single one")
        return self

    @property
    def usage_source(self) -> str:
        """Who measures the usage that pages and metrics show."""
        return "jmx" if self.observe else "gateway"

    @property
    def clickhouse_endpoints(self) -> tuple[Endpoint, ...]:
        """The configured ClickHouse servers; none for the managed one. Raises OSError."""
        if self.clickhouse is None:
            return ()
        password = secret_of(self.clickhouse_password, self.clickhouse_password_file)
        return Endpoint.parse_nodes(self.clickhouse, password, self.clickhouse_tls.files)

    @field_validator("sql", "http", "listeners", "grpc", "otlp")
    @classmethod
    def _has_an_address_of_its_own(cls, value: object, earlier: ValidationInfo) -> object:
        """A field validator, because pydantic does not run model validators when a field is invalid."""
        before = {name: earlier.data.get(name) for name in ("listen", "sql", "http", "listeners", "grpc")}
        unused = {"listen": earlier.data.get("observe"), "sql": earlier.data.get("clickhouse") is not None}
        taken = {
            address: name for name, other in before.items() if not unused.get(name) for address in _addresses(other)
        }
        field = earlier.field_name or ""
        for address in () if unused.get(field) else _addresses(value):
            if address in taken:
                raise ValueError(f"needs an address of its own: {address} is that of {taken[address]}")
            taken[address] = field
        return value


def _addresses(section: object) -> list[Address]:
    """The addresses that a setting opens, without those that take a free port."""
    if isinstance(section, tuple):
        return [address for part in section for address in _addresses(part)]
    parts = (section, *(getattr(section, name, None) for name in ("listen", "grpc", "http")))
    return [address for address in parts if isinstance(address, Address) and address.port]
