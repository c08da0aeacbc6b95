"""How a Store writes: cluster, quorum, compression, retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Compression = Literal["none", "lz4", "zstd"]


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
