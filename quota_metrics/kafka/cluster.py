"""A cluster's nodes, as values. Imports nothing, so that processes without an admin client can use them."""

from typing import NamedTuple


class Node(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None


class Cluster(NamedTuple):
    """A cluster's nodes. In KRaft, `controller_id` is any broker, which forwards to the controller."""

    cluster_id: str
    nodes: tuple[Node, ...]
    controller_id: int
