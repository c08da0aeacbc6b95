"""Settings of ClickHouse: the managed server, a cluster, TLS to it, batches and retention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from exporters.clickhouse.connection import TlsFiles
from exporters.clickhouse.options import Compression, StoreOptions
from headroom.config.types import Bytes, Millis, Section, check_secret


class ClickHouseServerConfig(Section):
    """The ClickHouse server that runs over the data directory; unused with `clickhouse`."""

    program: Path | None = Field(
        default=None,
        description="A `clickhouse` executable; none: `clickhouse` on PATH, else the server of headroom[embedded]",
    )
    native_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port of ClickHouse's native protocol, at the host of `sql`; 0: any free port",
    )
    memory_bytes: int = Field(default=2_147_483_648, ge=536_870_912, description="Memory limit of the server")
    reader_password: SecretStr | None = Field(
        default=None,
        description="Password of headroom_reader; without it, readers on other machines cannot connect. Use "
        "HEADROOM_STORE__SERVER__READER_PASSWORD.",
    )
    reader_password_file: Path | None = Field(default=None, description="File of that password")
    host_names: tuple[str, ...] = Field(
        default=(), description="Accepted Host headers besides localhost and addresses, for example of a reverse proxy"
    )

    @model_validator(mode="after")
    def _fits(self) -> ClickHouseServerConfig:
        check_secret("reader_password", self.reader_password, self.reader_password_file)
        return self


class ClickHouseTlsConfig(Section):
    """PEM files for `https` URLs. Other commands read them from the same variables of the environment."""

    ca: Path | None = Field(default=None, description="CA of the server's certificate, PEM; none: the system's CAs")
    certificate: Path | None = Field(
        default=None, description="Client certificate with which the user of the URL logs in instead of a password"
    )
    key: Path | None = Field(default=None, description="Private key of `certificate`, if it is not in the same file")

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(*(str(file) if file else "" for file in (self.ca, self.certificate, self.key)))

    @model_validator(mode="after")
    def _can_be_read(self) -> ClickHouseTlsConfig:
        if self.key and not self.certificate:
            raise ValueError("key needs certificate")
        try:
            self.files.context()
        except OSError as exc:
            raise ValueError(f"cannot use these PEM files: {exc}") from exc
        return self


class ClickHouseClusterConfig(Section):
    """A cluster of ClickHouse servers; `clickhouse` names its nodes."""

    name: str = Field(
        default="", description="The cluster in the servers' remote_servers; with it tables are replicated and sharded"
    )
    quorum: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = Field(
        default=0,
        description="Replicas that must confirm an insert: 0 (one replica), a number, or `auto` (a majority). "
        "Without a quorum, rows are lost if the node that took them is lost before another one has "
        "copied them.",
    )


class StoreConfig(Section):
    """Ingest: batches, rollups, quarantine, where rows go and how long they stay."""

    batch_ms: Millis = Field(
        default=1_000, description="Time to collect a batch; twice as long from 100,000 points a second on"
    )
    batch_records: int = Field(default=20_000, gt=0, description="Maximum number of records in a batch")
    batch_bytes: Bytes = Field(default=33_554_432, description="Maximum size of a batch in the spool")
    rollup_ms: Millis = Field(
        default=300_000, description="Delay of the hourly rollup after the first new point of an hour"
    )
    quarantine_records: int = Field(
        default=1_000, gt=0, description="Number of pushes that the quarantine keeps; the oldest are removed"
    )
    quarantine_bytes: Bytes = Field(default=67_108_864, description="Size of the quarantine")
    stalled_ms: Millis = Field(
        default=60_000,
        description="/readyz fails when nothing was written for this long although the spool holds records; "
        "/readyz/kafka, by which clients are sent here, does not",
    )
    late_ms: Millis = Field(
        default=30_000,
        description="Data is late, and `headroom status` exits with 1, when a record waits for longer to be stored",
    )
    compression: Compression = Field(
        default="none", description="Compression of inserts; useful if the network is slower than a core"
    )
    retention_days: dict[str, Annotated[int, Field(gt=0, le=36_500)]] = Field(
        default_factory=dict,
        description="Days that rows are kept, by table (docs/tables.md), where it differs from the default: "
        '{"points": 30}',
    )
    cluster: ClickHouseClusterConfig = ClickHouseClusterConfig()
    server: ClickHouseServerConfig = ClickHouseServerConfig()

    @property
    def options(self) -> StoreOptions:
        return StoreOptions(self.cluster.name, str(self.cluster.quorum), self.compression, self.retention_days)
