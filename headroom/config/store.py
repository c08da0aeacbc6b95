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

    program: Path | None = None  # a `clickhouse` executable; None: the one on PATH, else the one of headroom[embedded]
    native_port: int = Field(default=0, ge=0, le=65_535)  # of ClickHouse's own protocol, at the host of `sql`
    memory_bytes: Bytes = 2_147_483_648
    # Users in other places than this machine: headroom_reader with this password. Without it nobody comes from there.
    reader_password: SecretStr | None = None  # HEADROOM_STORE__SERVER__READER_PASSWORD
    reader_password_file: Path | None = None
    host_names: tuple[str, ...] = ()  # in Host headers, besides localhost and addresses: those of a reverse proxy, say

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

    ca: Path | None = None  # of the authority that signed the server's certificate; None: those that the system trusts
    certificate: Path | None = None  # the user of the URL logs in with it instead of a password
    key: Path | None = None  # of that certificate, when it is not in the same file

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

    name: str = ""  # in the servers' remote_servers; with it tables are replicated and sharded
    # Replicas that have an insert before it counts as written: 0 for the one that took it, a number, or `auto` for a
    # majority. Without a quorum the rows of a node that never comes back are lost if no other one had them yet.
    quorum: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = 0


class StoreConfig(Section):
    """Ingest: batches, rollups, quarantine, where rows go and how long they stay."""

    batch_ms: Millis = 1_000
    batch_records: int = Field(default=20_000, gt=0)
    batch_bytes: Bytes = 33_554_432
    rollup_ms: Millis = 60_000  # how long after its first new point an hour is computed again
    quarantine_records: int = Field(default=1_000, gt=0)  # pushes that could not be decoded: the newest are kept
    quarantine_bytes: Bytes = 67_108_864
    stalled_ms: Millis = 60_000  # not ready when nothing was written for so long while the spool holds records
    compression: Compression = "none"  # of inserts on their way: worth it where the network is slower than a core
    # How many days rows stay, by table (docs/tables.md), where it is to differ: {"points": 30}
    retention_days: dict[str, Annotated[int, Field(gt=0, le=36_500)]] = Field(default_factory=dict)
    cluster: ClickHouseClusterConfig = ClickHouseClusterConfig()
    server: ClickHouseServerConfig = ClickHouseServerConfig()

    @property
    def options(self) -> StoreOptions:
        return StoreOptions(self.cluster.name, str(self.cluster.quorum), self.compression, self.retention_days)
