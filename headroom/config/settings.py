"""The settings of `headroom serve` with their defaults; sources.py loads them.

Only headroom/ uses these classes; constructors elsewhere take single values.
"""

from __future__ import annotations

import socket
import warnings
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from exporters.clickhouse.connection import Endpoint
from headroom.config.forward import ForwardConfig
from headroom.config.listener import ListenerConfig
from headroom.config.quotas import JmxConfig, JmxTarget, QuotaConfig, QuotaMetricsConfig
from headroom.config.receivers import GrpcConfig, OtlpConfig
from headroom.config.store import ClickHouseServerConfig, ClickHouseTlsConfig, StoreConfig
from headroom.config.types import (
    Address,
    Bytes,
    ListenAddress,
    Millis,
    Section,
    check_secret,
    parse_addresses,
    secret_of,
)
from headroom.config.web import WebConfig
from telemetry.gateway.networks import LOOPBACK, networks_of

__all__ = [
    "Address",
    "ClickHouseServerConfig",
    "ConfigError",
    "GatewayConfig",
    "GrpcConfig",
    "JmxConfig",
    "JmxTarget",
    "OtlpConfig",
    "QuotaConfig",
    "QuotaMetricsConfig",
    "ServeConfig",
    "SpoolConfig",
    "StoreConfig",
    "TelemetryConfig",
]


class ConfigError(Exception):
    """The configuration is invalid; each of `faults` is one line."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


# The setting shadows a deprecated method of BaseModel, which is not used.
warnings.filterwarnings("ignore", 'Field name "validate" in "TelemetryConfig" shadows', UserWarning)


def _network(value: str) -> str:
    networks_of([value])
    return value


Network = Annotated[str, AfterValidator(_network)]


class GatewayConfig(Section):
    """Connections to clients and brokers."""

    id: str = Field(default_factory=socket.gethostname, min_length=1, max_length=255)  # quota_usage.gateway_id
    advertised_host: str | None = None  # None: clients are sent to the address at which they found us
    connect_timeout_ms: Millis = 10_000
    drain_ms: Millis = 5_000
    max_request_bytes: Bytes = 104_857_600
    max_connections: int = Field(default=20_000, gt=0)  # no more than the limit of open files leaves room for
    max_connections_per_address: int | None = Field(default=None, gt=0)  # None: three quarters of all
    max_held_bytes: Bytes = 67_108_864  # of unfinished requests that are not just forwarded; of each process
    frame_timeout_ms: Millis = 30_000  # from the first byte of such a request to its last
    handshake_timeout_ms: Millis = 10_000  # TLS and SASL
    idle_timeout_ms: Millis = 600_000  # connections.max.idle.ms
    upstream_networks: tuple[Network, ...] = ()  # where brokers are; empty: wherever the cluster's metadata says
    metadata_refresh_ms: Millis = 5_000  # how often the brokers that have a listener are read from the cluster


class AdministrationConfig(Section):
    """Who may alter a stand-alone sink's subscriptions with Kafka's tools. With a cluster, its brokers decide.

    Requests of others are refused with CLUSTER_AUTHORIZATION_FAILED per resource.
    """

    enabled: bool = True
    networks: tuple[Network, ...] = LOOPBACK
    principals: tuple[str, ...] = ()


class TelemetryConfig(Section):
    """KIP-714."""

    max_bytes: Bytes = 1_048_576  # telemetry.max.bytes
    max_decompressed_bytes: Bytes = 16_777_216
    max_instances: int = Field(default=16_384, gt=0)
    refresh_ms: Millis = 2_000  # how often the cluster's CLIENT_METRICS resources, or the file of them, are looked at
    # Where payloads are decompressed and decoded. At the endpoint clients get Kafka's codes before the
    # acknowledgement, and
    # each push costs the network process ten times as much; the worker drops what it cannot decode, into quarantine.
    validate: Literal["ingest", "receive"] = "ingest"  # type: ignore[assignment]  # shadows a method of BaseModel
    extra_selectors: bool = False  # subscriptions may match by principal, listener and cluster, which no broker knows


class SpoolConfig(Section):
    """The spool between network and storage."""

    # Up to 4 finished segments stay on disk besides `max_bytes`, because overwriting one is faster than writing a new
    # one: segments of at most a 16th of `max_bytes` are reused while three quarters of the spool are empty.
    segment_bytes: Bytes = 67_108_864
    max_bytes: Bytes = 4_294_967_296
    # When the spool is synced to disk: `each` syncs before every acknowledgement, and delays all requests by it;
    # `interval` syncs every `sync_ms`. Only a power loss can lose unsynced records, a crash of Headroom cannot.
    fsync: Literal["interval", "each"] = "interval"
    sync_ms: Millis = 1_000


class ServeConfig(Section):
    """`headroom serve`."""

    model_config = ConfigDict(validate_default=True)  # endpoints clash with default ones, too

    listen: ListenAddress = Address(host="127.0.0.1", port=9092)
    processes: int = Field(default=1, ge=1, le=64)  # that take clients, at the same ports (SO_REUSEPORT)
    upstream: Annotated[tuple[ListenAddress, ...], NoDecode, BeforeValidator(parse_addresses)] = ()
    # Brokers to observe from beside the data path, instead of `upstream`: no listener is opened.
    observe: Annotated[tuple[ListenAddress, ...], NoDecode, BeforeValidator(parse_addresses)] = ()
    cluster: str | None = None  # None: the brokers' cluster id; without brokers a generated one
    subscriptions: Path | None = None  # None: the cluster's own; without brokers a file in the data directory
    data: Path = Path("headroom-data")
    clickhouse: str | None = None  # URL of a server, instead of the managed one; nodes of a cluster with commas
    clickhouse_password: SecretStr | None = None  # HEADROOM_CLICKHOUSE_PASSWORD; a URL takes none
    clickhouse_password_file: Path | None = None
    clickhouse_tls: ClickHouseTlsConfig = ClickHouseTlsConfig()
    sql: ListenAddress = Address(host="127.0.0.1", port=8123)
    http: ListenAddress = Address(host="127.0.0.1", port=9644)
    # Kafka client properties: how Headroom reaches the brokers. Their ssl.* apply to upstream connections, too.
    command_config: Path | None = None
    listener: ListenerConfig = ListenerConfig()
    web: WebConfig = WebConfig()
    grpc: GrpcConfig = GrpcConfig()
    otlp: OtlpConfig = OtlpConfig()
    forward: ForwardConfig = ForwardConfig()
    gateway: GatewayConfig = GatewayConfig()
    administration: AdministrationConfig = AdministrationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    quotas: QuotaConfig = QuotaConfig()
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

    @field_validator("clickhouse")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None:
            Endpoint.parse_nodes(value)
        return value

    @model_validator(mode="after")
    def _has_one_password(self) -> ServeConfig:
        check_secret("clickhouse_password", self.clickhouse_password, self.clickhouse_password_file)
        return self

    @model_validator(mode="after")
    def _has_a_server_of_its_own(self) -> ServeConfig:
        if self.store.cluster.name and self.clickhouse is None:
            raise ValueError("store.cluster needs `clickhouse`: the managed server is a single one")
        return self

    @property
    def clickhouse_endpoints(self) -> tuple[Endpoint, ...]:
        """The configured ClickHouse servers; none for the managed one. Raises OSError."""
        if self.clickhouse is None:
            return ()
        password = secret_of(self.clickhouse_password, self.clickhouse_password_file)
        return Endpoint.parse_nodes(self.clickhouse, password, self.clickhouse_tls.files)

    @field_validator("sql", "http", "grpc")
    @classmethod
    def _has_an_address_of_its_own(
        cls, endpoint: Address | GrpcConfig, earlier: ValidationInfo
    ) -> Address | GrpcConfig:
        """A field validator, because pydantic does not run model validators when a field is invalid."""
        address = endpoint.listen if isinstance(endpoint, GrpcConfig) else endpoint
        opened = [name for name in ("listen", "sql", "http") if name != "sql" or earlier.data.get("clickhouse") is None]
        if address is None or not address.port or (earlier.field_name == "sql" and "sql" not in opened):
            return endpoint
        for name in opened:
            if earlier.data.get(name) == address:
                raise ValueError(f"needs an address of its own: {address} is that of {name}")
        return endpoint
