"""Settings of ClickHouse: the managed server, a cluster, TLS to it, batches and retention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from exporters.clickhouse.connection import Tls
from exporters.clickhouse.options import Compression, StoreOptions
from headroom.config.types import Bytes, Millis, Section, check_secret, secret_of


class ClickHouseServerConfig(Section):
    """The ClickHouse server that runs over the data directory; unused with `clickhouse`."""

    # a `clickhouse` executable; None: `clickhouse` on PATH, else the server of headroom[embedded]
    program: Path | None = None
    # port of ClickHouse's native protocol, at the host of `sql`; 0: any free port
    native_port: int = Field(default=0, ge=0, le=65_535)
    memory_bytes: int = Field(default=2_147_483_648, ge=536_870_912)  # memory limit of the server
    # Password of headroom_reader; without it, readers on other machines cannot connect. Use
    # HEADROOM_STORE__SERVER__READER_PASSWORD.
    reader_password: SecretStr | None = None
    reader_password_file: Path | None = None  # file of that password
    # accepted Host headers besides localhost and addresses, for example of a reverse proxy
    host_names: tuple[str, ...] = ()

    @property
    def password_of_readers(self) -> str:
        """The password, or ''. Raises OSError."""
        return secret_of(self.reader_password, self.reader_password_file)

    @model_validator(mode="after")
    def _fits(self) -> ClickHouseServerConfig:
        check_secret("reader_password", self.reader_password, self.reader_password_file)
        return self


class ClickHouseTlsConfig(Section):
    """PEM files for `https` URLs. Other commands read them from the same variables of the environment."""

    ca: Path | None = None  # CA of the server's certificate, PEM; None: the system's CAs
    certificate: Path | None = None  # client certificate with which the user of the URL logs in instead of a password
    key: Path | None = None  # private key of `certificate`, if it is not in the same file

    @property
    def files(self) -> Tls:
        return Tls(*(str(file) if file else "" for file in (self.ca, self.certificate, self.key)))

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

    name: str = ""  # the cluster in the servers' remote_servers; with it tables are replicated and sharded
    # Replicas that must confirm an insert: 0 (one replica), a number, or `auto` (a majority). Without a quorum, rows
    # are lost if the node that took them is lost before another one has copied them.
    quorum: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = 0


class StoreConfig(Section):
    """Ingest: batches, rollups, quarantine, where rows go and how long they stay."""

    batch_ms: Millis = 1_000  # time to collect a batch; twice as long from 100,000 points a second on
    batch_records: int = Field(default=20_000, gt=0)  # maximum number of records in a batch
    batch_bytes: Bytes = 33_554_432  # maximum size of a batch in the spool
    rollup_ms: Millis = 300_000  # delay of the hourly rollup after the first new point of an hour
    # number of pushes that the quarantine keeps; the oldest are removed
    quarantine_records: int = Field(default=1_000, gt=0)
    quarantine_bytes: Bytes = 67_108_864  # size of the quarantine
    stalled_ms: Millis = 60_000  # /readyz fails when nothing was written for this long although the spool holds records
    compression: Compression = "none"  # compression of inserts; useful if the network is slower than a core
    # Days that rows are kept, by table (docs/tables.md), where it differs from the default: {"points": 30}
    retention_days: dict[str, Annotated[int, Field(gt=0, le=36_500)]] = Field(default_factory=dict)
    cluster: ClickHouseClusterConfig = ClickHouseClusterConfig()
    server: ClickHouseServerConfig = ClickHouseServerConfig()

    @property
    def options(self) -> StoreOptions:
        return StoreOptions(self.cluster.name, str(self.cluster.quorum), self.compression, self.retention_days)
