"""The nodes of the store as a part of the first message to a child process, which asks them as its parent does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from exporters.clickhouse.connection import Endpoint, TlsFiles
from exporters.clickhouse.options import StoreOptions


@dataclass(frozen=True, slots=True)
class StoreNodes:
    """`endpoints` are those of the parent, and `store_options` its options."""

    urls: str  # with the user, without the password; commas between nodes
    password: str
    tls: tuple[str, str, str]  # fields of TlsFiles
    is_managed: bool  # no proxy is asked for a server that Headroom runs
    options: dict[str, Any]  # fields of StoreOptions

    @classmethod
    def of(cls, nodes: Sequence[Endpoint], options: StoreOptions) -> StoreNodes:
        """All nodes have the password, the TLS files and the owner of the first one."""
        urls = ",".join(node.url for node in nodes)
        return cls(urls, nodes[0].password, astuple(nodes[0].tls), nodes[0].is_direct, asdict(options))

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return Endpoint.parse_nodes(self.urls, self.password, TlsFiles(*self.tls), direct=self.is_managed)

    @property
    def store_options(self) -> StoreOptions:
        return StoreOptions(**self.options)
