"""An asyncio admin client: quotas, nodes, and any request that kio has classes for."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from quota_metrics.config.entities import Altered, Entity, FilterComponent, QuotaAlteration, entity_of
from quota_metrics.kafka.authentication import Security, sasl_handshake
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.connection import ConnectionOptions, KafkaConnection
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, check
from quota_metrics.kafka.frames import NegotiatedRequest, ReadBody

Address: TypeAlias = tuple[str, int]

NOT_CONTROLLER = 41
METADATA: Final = 3
_DESCRIBE_CONFIGS: Final = 32
_DESCRIBE_TOKENS: Final = 41
_DESCRIBE_QUOTAS: Final = 48
_ALTER_QUOTAS: Final = 49
_NEXT_BROKER_AFTER_S: Final = 1.0
_TOPIC_IDS_FROM: Final = 12  # a broker answers topics by their ids from this version of Metadata on


def metadata_request(topics: Sequence[Mapping[str, Any]] | None, **version: Any) -> NegotiatedRequest:
    """Metadata of these topics, None: of all; without creating any."""
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return NegotiatedRequest(METADATA, fields, **version)


def describe_configs(kind: int, names: Iterable[str], keys: Sequence[str] | None = None) -> NegotiatedRequest:
    """DescribeConfigs of resources of one type (ConfigResource.Type); all of their keys by default."""
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
    return NegotiatedRequest(_DESCRIBE_CONFIGS, {"resources": resources})


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
        timeout_ms: int = 30_000,
        max_response_bytes: int = 64 * 2**20,
        security: Security | None = None,
        is_paced: bool = False,
    ) -> None:
        """`is_paced`: large responses are decoded slowly, because the loop has more urgent work."""
        self.bootstrap = list(bootstrap)
        self.is_paced = is_paced
        self._learned: list[Node] = []
        self._options = ConnectionOptions(timeout_ms, max_response_bytes, security or Security())
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._connecting = asyncio.Lock()

    async def aclose(self) -> None:
        """Closes all connections; the client may be used again."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def refused_by(self, address: tuple[str, int]) -> str:
        """Why a bootstrap address does not answer; empty when it does."""
        try:
            connection = await KafkaConnection.open(*address, self._options)
        except ClusterError as exc:
            return str(exc)
        await connection.close()
        return ""

    async def offered_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms of the listener that we use, as its first broker names them; none without SASL."""
        security = self._options.security
        if security.sasl is None or not self._learned:
            return ()
        options = replace(self._options, security=replace(security, sasl=None))
        node = self._learned[0]
        try:
            connection = await KafkaConnection.open(node.host, node.port, options)
            try:
                handshake = await connection.send(sasl_handshake("NONE"))  # refused with the names of those that it has
            finally:
                await connection.close()
        except ClusterError:  # as other checks say
            return ()
        return tuple(handshake.mechanisms)

    async def send(
        self, request: NegotiatedRequest, *, node_id: int | None = None, read: ReadBody | None = None
    ) -> Any:
        """Sends a request to `node_id`, or to any live broker, and returns kio's response, or what `read` takes of it;
        the caller must `check` its error codes, and expect that a version lacks fields. UnsupportedError when the
        broker has no such version."""
        connection = await (self._any_connection() if node_id is None else self._connection_to(node_id))
        return await connection.send(request, read=read, is_paced=self.is_paced)

    async def describe_cluster(self) -> Cluster:
        """The nodes as advertised in Metadata, which every vendor supports."""
        response = await self.send(metadata_request(()))
        check("Metadata", getattr(response, "error_code", 0))  # from version 13 on
        by_id = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, getattr(broker, "rack", None))
            for broker in response.brokers
            if broker.node_id >= 0 and broker.host and 0 < broker.port < 65_536
        }
        nodes = tuple(by_id.values())
        if not nodes:
            raise ClusterError("the cluster answered Metadata without any broker that has an address")
        self._learned = list(nodes)
        return Cluster(getattr(response, "cluster_id", None) or "", nodes, getattr(response, "controller_id", -1))

    async def topic_names(self, topic_ids: Iterable[bytes]) -> dict[bytes, str]:
        """The names of topics by their ids, of those that exist and that this user may describe (KIP-516)."""
        topics = [{"topic_id": UUID(bytes=topic_id), "name": None} for topic_id in topic_ids]
        response = await self.send(metadata_request(topics, least=_TOPIC_IDS_FROM))
        return {topic.topic_id.bytes: topic.name for topic in response.topics if topic.topic_id and topic.name}

    async def describe_token_owners(self) -> dict[str, str]:
        """Delegation token id -> name of its owner (KIP-48), of the tokens that this user may see: its own, those that
        it may renew, and with Describe on a token or DescribeTokens on its owner all others.

        The tokens' HMACs, which are passwords, are in the response and are dropped with it.
        """
        response = await self.send(NegotiatedRequest(_DESCRIBE_TOKENS, {"owners": None}))
        check("DescribeDelegationToken", response.error_code, None)
        return {token.token_id: token.principal_name for token in response.tokens}

    async def describe_client_quotas(
        self, components: Iterable[FilterComponent] = (), *, strict: bool = False
    ) -> dict[Entity, dict[str, float]]:
        """Configured quotas of the entities that match the filter; of all entities by default."""
        filters = [
            {"entity_type": component.entity_type, "match_type": int(component.match_type), "match": component.name}
            for component in components
        ]
        response = await self.send(NegotiatedRequest(_DESCRIBE_QUOTAS, {"components": filters, "strict": strict}))
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
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in alteration.entity],
                "ops": [
                    {"key": key, "value": float(value or 0.0), "remove": value is None}
                    for key, value in alteration.values.items()
                ],
            }
            for alteration in alterations
        ]
        request = NegotiatedRequest(_ALTER_QUOTAS, {"entries": entries, "validate_only": validate_only})
        altered = _altered(await self.send(request))
        if any(result.error_code == NOT_CONTROLLER for result in altered):  # brokers with ZooKeeper do not forward
            cluster = await self.describe_cluster()
            altered = _altered(await self.send(request, node_id=cluster.controller_id))
        return altered

    async def _any_connection(self) -> KafkaConnection:
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
                lambda address: KafkaConnection.open(*address, self._options),
            )
            broken = self._connections.pop(address, None)
            self._connections[address] = connection
        if broken is not None:
            await broken.close()
        return connection

    async def _connection_to(self, node_id: int) -> KafkaConnection:
        nodes = self._learned or (await self.describe_cluster()).nodes
        address = next(((node.host, node.port) for node in nodes if node.id == node_id), None)
        if address is None:
            raise BrokerUnreachableError(f"the cluster has no node {node_id}")
        async with self._connecting:
            connection = self._connections.pop(address, None)
            if connection is not None and not connection.is_open:
                await connection.close()
                connection = None
            if connection is None:
                connection = await KafkaConnection.open(*address, self._options)
            self._connections[address] = connection
            return connection


def _altered(response: Any) -> list[Altered]:
    return [
        Altered(
            entity_of({part.entity_type: part.entity_name for part in entry.entity}),
            entry.error_code,
            entry.error_message,
        )
        for entry in response.entries
    ]


async def first_to_answer(
    addresses: Sequence[Address], connect: Callable[[Address], Awaitable[KafkaConnection]]
) -> tuple[Address, KafkaConnection]:
    """Tries the addresses in order; starts the next attempt when one fails or has not answered for a second (RFC 8305).
    Each attempt has the full timeout.

    Raises ClusterError when none answers: the error of the only broker, or one that names all.
    """
    waiting = list(addresses)
    running: dict[asyncio.Future[KafkaConnection], Address] = {}
    failures: list[ClusterError] = []
    try:
        while waiting or running:
            if waiting:
                address = waiting.pop(0)
                running[asyncio.ensure_future(connect(address))] = address
            done, _ = await asyncio.wait(
                running, timeout=_NEXT_BROKER_AFTER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                address = running.pop(attempt)
                try:
                    return address, attempt.result()
                except ClusterError as exc:
                    failures.append(exc)
    finally:
        for attempt in running:
            attempt.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, KafkaConnection):  # it was established in the meantime
                await result.close()
    if len(failures) == 1:
        raise failures[0]
    raise BrokerUnreachableError("no broker answers: " + "; ".join(map(str, failures)))
