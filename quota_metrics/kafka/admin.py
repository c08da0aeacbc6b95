"""An asyncio admin client: quotas, nodes, and any request that kio has classes for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast
from uuid import UUID

from kio.schema.alter_client_quotas.v1 import request as alter_request
from kio.schema.describe_client_quotas.v1 import request as describe_request
from kio.schema.describe_delegation_token import v1 as tokens_v1
from kio.schema.describe_delegation_token import v2 as tokens_v2
from kio.schema.describe_delegation_token import v3 as tokens_v3
from kio.schema.metadata.v8.request import MetadataRequest
from kio.schema.metadata.v12 import request as by_topic_id
from kio.static.primitive import f64, i8
from kio.static.protocol import RequestPayload

from quota_metrics.config.entities import Altered, Entity, FilterComponent, QuotaAlteration, entity_of
from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.bootstrap import first_to_answer
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.connection import ConnectionOptions, KafkaConnection
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, NotKafkaError, check

NOT_CONTROLLER = 41
_METADATA = MetadataRequest(
    topics=(),
    allow_auto_topic_creation=False,
    include_cluster_authorized_operations=False,
    include_topic_authorized_operations=False,
)


class KafkaAdmin:
    """Sends requests to a cluster through any broker that answers.

    Connects to a bootstrap address or a known node, keeps connections open and replaces broken ones. A request whose
    connection breaks is not retried: only the caller knows whether that is safe. All methods raise ClusterError
    (errors.py). For one event loop; calls may overlap.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "headroom",
        timeout_ms: int = 30_000,
        max_response_bytes: int = 64 * 2**20,
        security: Security | None = None,
    ) -> None:
        if not bootstrap:
            raise ValueError("a cluster needs at least one bootstrap address")
        self.bootstrap = list(bootstrap)
        self._learned: list[Node] = []
        self._options = ConnectionOptions(client_id, timeout_ms, max_response_bytes, security or Security())
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._connecting = asyncio.Lock()

    async def start(self) -> Cluster:
        """Connects and fetches the nodes."""
        return await self.describe_cluster()

    async def close(self) -> None:
        """Closes all connections; the client may be used again."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def refused_by(self, address: tuple[str, int]) -> str:
        """Why a bootstrap address does not answer; empty when it does."""
        try:
            connection = await KafkaConnection.open(*address, self._options, self._options.timeout_ms)
        except ClusterError as exc:
            return str(exc)
        await connection.close()
        return ""

    async def send(self, *versions: RequestPayload, node_id: int | None = None) -> Any:
        """Sends a kio request and returns kio's response; the caller must `check` its error codes.

        `versions`: the same request in the versions that the caller supports, best first. The first one that the broker
        supports is sent; UnsupportedError if there is none. It is sent to `node_id`, or to any live broker.
        """
        connection = await (self._any() if node_id is None else self._node(node_id))
        return await connection.send(versions)

    async def describe_cluster(self) -> Cluster:
        """The nodes as advertised in Metadata, which every vendor supports."""
        response = await self.send(_METADATA)
        nodes = tuple(Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers)
        if not nodes:
            raise NotKafkaError("the cluster answered Metadata without any broker")
        self._learned = list(nodes)
        return Cluster(response.cluster_id or "", nodes, response.controller_id)

    async def describe_node(self, node_id: int) -> None:
        """Sends Metadata to one broker at its advertised address. Raises ClusterError when it does not answer."""
        await self.send(_METADATA, node_id=node_id)

    async def topic_names(self, topic_ids: Iterable[bytes]) -> dict[bytes, str]:
        """The names of topics by their ids, of those that exist and that this user may describe (KIP-516)."""
        topics = (by_topic_id.MetadataRequestTopic(topic_id=UUID(bytes=one), name=None) for one in topic_ids)
        request = by_topic_id.MetadataRequest(
            topics=tuple(topics), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        response = await self.send(request)
        return {topic.topic_id.bytes: topic.name for topic in response.topics if topic.topic_id and topic.name}

    async def describe_token_owners(self) -> dict[str, str]:
        """Delegation token id -> name of its owner (KIP-48), of the tokens that this user may see: its own, those that
        it may renew, and with Describe on a token or DescribeTokens on its owner all others.

        The tokens' HMACs, which are passwords, are in the response and are dropped with it.
        """
        versions = (tokens_v3, tokens_v2, tokens_v1)
        response = await self.send(*(version.DescribeDelegationTokenRequest(owners=None) for version in versions))
        check("DescribeDelegationToken", response.error_code, None)
        return {token.token_id: token.principal_name for token in response.tokens}

    async def describe_client_quotas(
        self, components: Iterable[FilterComponent] = (), *, strict: bool = False
    ) -> dict[Entity, dict[str, float]]:
        """Configured quotas of the entities that match the filter; of all entities by default."""
        response = await self.send(_describe(components, strict))
        check("DescribeClientQuotas", response.error_code, response.error_message)
        return {
            entity_of({part.entity_type: part.entity_name for part in entry.entity}): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }

    async def alter_client_quotas(
        self, alterations: Iterable[QuotaAlteration], *, validate_only: bool = False
    ) -> list[Altered]:
        """Sets and removes quotas. Each entity succeeds or fails on its own: check every error_code."""
        request = _alter(alterations, validate_only)
        altered = _altered(await self.send(request))
        if any(result.error_code == NOT_CONTROLLER for result in altered):  # brokers with ZooKeeper do not forward
            cluster = await self.describe_cluster()
            altered = _altered(await self.send(request, node_id=cluster.controller_id))
        return altered

    async def _any(self) -> KafkaConnection:
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        learned = [(node.host, node.port) for node in self._learned]
        async with self._connecting:
            for connection in self._connections.values():
                if connection.is_open:
                    return connection
            address, connection = await first_to_answer(
                list(dict.fromkeys(learned + self.bootstrap)),
                lambda address: KafkaConnection.open(*address, self._options, self._options.timeout_ms),
            )
            broken = self._connections.pop(address, None)
            self._connections[address] = connection
        if broken is not None:
            await broken.close()
        return connection

    async def _node(self, node_id: int) -> KafkaConnection:
        for node in self._learned or (await self.describe_cluster()).nodes:
            if node.id == node_id:
                return await self._open((node.host, node.port), self._options.timeout_ms)
        raise BrokerUnreachableError(f"the cluster has no node {node_id}")

    async def _open(self, address: tuple[str, int], connect_timeout_ms: int) -> KafkaConnection:
        async with self._connecting:
            connection = self._connections.pop(address, None)
            if connection is not None and not connection.is_open:
                await connection.close()
                connection = None
            if connection is None:
                connection = await KafkaConnection.open(*address, self._options, connect_timeout_ms)
            self._connections[address] = connection
            return connection


def _describe(components: Iterable[FilterComponent], strict: bool) -> describe_request.DescribeClientQuotasRequest:
    return describe_request.DescribeClientQuotasRequest(
        components=tuple(
            describe_request.ComponentData(
                entity_type=component.entity_type, match_type=i8(component.match_type), match=component.name
            )
            for component in components
        ),
        strict=strict,
    )


def _alter(alterations: Iterable[QuotaAlteration], validate_only: bool) -> alter_request.AlterClientQuotasRequest:
    return alter_request.AlterClientQuotasRequest(
        entries=tuple(
            alter_request.EntryData(
                entity=tuple(
                    alter_request.EntityData(entity_type=kind, entity_name=name) for kind, name in alteration.entity
                ),
                ops=tuple(_op(key, value) for key, value in alteration.values.items()),
            )
            for alteration in alterations
        ),
        validate_only=validate_only,
    )


def _op(key: str, value: float | None) -> alter_request.OpData:
    # kio's f64 refuses infinity, which Kafka stores for request_percentage; the wire carries it.
    return alter_request.OpData(key=key, value=cast(f64, float(value or 0.0)), remove=value is None)


def _altered(response: Any) -> list[Altered]:
    return [
        Altered(
            entity_of({part.entity_type: part.entity_name for part in entry.entity}),
            entry.error_code,
            entry.error_message,
        )
        for entry in response.entries
    ]
