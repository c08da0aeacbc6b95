"""Settings of ClickHouse: the managed server, a cluster, TLS to it, batches and retention."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from exporters.clickhouse.connection import Compression, StoreOptions, TlsFiles
from headroom.config.types import Bytes, Count, Millis, Section, check_secret


class ClickHouseServerConfig(Section):
    """The ClickHouse server that runs over the data directory; unused with `clickhouse`."""

    program: Path | None = None
    """A `clickhouse` executable; none: `clickhouse` on PATH, else the server of headroom[embedded]"""
    native_port: int = Field(default=0, ge=0, le=65_535)
    """Port of ClickHouse's native protocol, at the host of `sql`; 0: any free port"""
    memory_bytes: int = Field(default=2_147_483_648, ge=536_870_912)
    """Memory limit of the server"""
    reader_password: SecretStr | None = None
    """Password of headroom_reader; without it, readers on other machines cannot connect. Use
    HEADROOM_STORE__SERVER__READER_PASSWORD."""
    reader_password_file: Path | None = None
    """File of that password"""
    host_names: tuple[str, ...] = ()
    """Accepted Host headers besides localhost and addresses, for example of a reverse proxy"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_secret("reader_password", self.reader_password, self.reader_password_file)
        return self


class ClickHouseTlsConfig(Section):
    """PEM files for `https` URLs. Other commands read them from the same variables of the environment."""

    ca: Path | None = None
    """CA of the server's certificate, PEM; none: the system's CAs"""
    certificate: Path | None = None
    """Client certificate with which the user of the URL logs in instead of a password"""
    key: Path | None = None
    """Private key of `certificate`, if it is not in the same file"""

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(*(str(file) if file else "" for file in (self.ca, self.certificate, self.key)))

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("key needs certificate")
        try:
            self.files.context()
        except OSError as exc:
            raise ValueError(f"cannot use these PEM files: {exc}") from exc
        return self


class ClickHouseClusterConfig(Section):
    """A cluster of ClickHouse servers; `clickhouse` names its nodes."""

    name: str = ""
    """The cluster in the servers' remote_servers; with it tables are replicated and sharded"""
    quorum: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = 0
    """Replicas that must confirm an insert: 0 (one replica), a number, or `auto` (a majority). Without a quorum, rows
    are lost if the node that took them is lost before another one has copied them."""


class StoreConfig(Section):
    """Ingest: batches, rollups, quarantine, where rows go and how long they stay."""

    batch_ms: Millis = 1_000
    """Time to collect a batch; twice as long from 100,000 points a second on"""
    batch_records: Count = 20_000
    """Maximum number of records in a batch"""
    batch_bytes: Bytes = 33_554_432
    """Maximum size of a batch in the spool"""
    rollup_ms: Millis = 300_000
    """Delay of the hourly rollup after the first new point of an hour"""
    quarantine_records: Count = 1_000
    """Number of pushes that the quarantine keeps; the oldest are removed"""
    quarantine_bytes: Bytes = 67_108_864
    """Size of the quarantine"""
    stalled_ms: Millis = 60_000
    """/readyz fails when nothing was written for this long although the spool holds records; /readyz/kafka, by which
    clients are sent here, does not"""
    late_ms: Millis = 30_000
    """Data is late, and `headroom status` exits with 1, when a record waits for longer to be stored"""
    compression: Compression = "none"
    """Compression of inserts; useful if the network is slower than a core"""
    retention_days: dict[str, Annotated[int, Field(gt=0, le=36_500)]] = Field(default_factory=dict)
    """Days that rows are kept, by table (docs/tables.md), where it differs from the default: {"points": 30}"""
    cluster: ClickHouseClusterConfig = ClickHouseClusterConfig()
    server: ClickHouseServerConfig = ClickHouseServerConfig()

    @property
    def options(self) -> StoreOptions:
        return StoreOptions(self.cluster.name, str(self.cluster.quorum), self.compression, self.retention_days)
