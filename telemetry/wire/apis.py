"""The Kafka APIs: newest version, first flexible version, and where the response has its throttle time.

Source: the message definitions of Apache Kafka 4.3 and, for versions that it removed, of earlier releases. APIs that no
broker offers to clients, but only controllers to each other and to brokers, are not in it.
Tests compare this table with their classes (ApiMessageType) and with kio's generated schema.
"""

from collections.abc import Iterable
from typing import Final

from quota_metrics.kafka.primitives import INT16_MAX, ProtocolError

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
INIT_PRODUCER_ID: Final = 22
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
INCREMENTAL_ALTER_CONFIGS: Final = 44
LIST_CONFIG_RESOURCES: Final = 74
GET_TELEMETRY_SUBSCRIPTIONS: Final = 71
PUSH_TELEMETRY: Final = 72
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79

_NEVER: Final = 1 << 15  # above each version


class Api:
    """One API.

    `max_version`: the newest supported version. `first_flexible`: from here on request header 2 and response header 1
    (KIP-482). `throttle_first_from`: from here on the response body begins with throttle_time_ms.
    `response_tags_from`: from here on the response header has tagged fields; never for ApiVersions, whose responses
    keep header version 0, so that clients can read them before they know the broker's versions (KIP-511).
    """

    def __init__(
        self, key: int, name: str, max_version: int, first_flexible: int | None, throttle_first_from: int | None
    ) -> None:
        self.key = key
        self.name = name
        self.max_version = max_version
        self.first_flexible = first_flexible
        self.throttle_first_from = throttle_first_from
        self.response_tags_from = _NEVER if first_flexible is None or key == API_VERSIONS else first_flexible

    def flexible(self, version: int) -> bool:
        """Whether this version has compact types and tagged fields."""
        return self.first_flexible is not None and version >= self.first_flexible

    def throttle_first(self, version: int) -> bool:
        """Whether the response body begins with throttle_time_ms."""
        return self.throttle_first_from is not None and version >= self.throttle_first_from


_TABLE: Final = (
    Api(0, "Produce", 13, 9, None),
    Api(1, "Fetch", 18, 12, 1),
    Api(2, "ListOffsets", 11, 6, 2),
    Api(3, "Metadata", 13, 9, 3),
    Api(8, "OffsetCommit", 10, 8, 3),
    Api(9, "OffsetFetch", 10, 6, 3),
    Api(10, "FindCoordinator", 6, 3, 1),
    Api(11, "JoinGroup", 9, 6, 2),
    Api(12, "Heartbeat", 4, 4, 1),
    Api(13, "LeaveGroup", 5, 4, 1),
    Api(14, "SyncGroup", 5, 4, 1),
    Api(15, "DescribeGroups", 6, 5, 1),
    Api(16, "ListGroups", 5, 3, 1),
    Api(17, "SaslHandshake", 1, None, None),
    Api(18, "ApiVersions", 4, 3, None),
    Api(19, "CreateTopics", 7, 5, 2),
    Api(20, "DeleteTopics", 6, 4, 1),
    Api(21, "DeleteRecords", 2, 2, 0),
    Api(22, "InitProducerId", 6, 2, 0),
    Api(23, "OffsetForLeaderEpoch", 4, 4, 2),
    Api(24, "AddPartitionsToTxn", 5, 3, 0),
    Api(25, "AddOffsetsToTxn", 4, 3, 0),
    Api(26, "EndTxn", 5, 3, 0),
    Api(27, "WriteTxnMarkers", 2, 1, None),
    Api(28, "TxnOffsetCommit", 5, 3, 0),
    Api(29, "DescribeAcls", 3, 2, 0),
    Api(30, "CreateAcls", 3, 2, 0),
    Api(31, "DeleteAcls", 3, 2, 0),
    Api(32, "DescribeConfigs", 4, 4, 0),
    Api(33, "AlterConfigs", 2, 2, 0),
    Api(34, "AlterReplicaLogDirs", 2, 2, 0),
    Api(35, "DescribeLogDirs", 5, 2, 0),
    Api(36, "SaslAuthenticate", 2, 2, None),
    Api(37, "CreatePartitions", 3, 2, 0),
    Api(38, "CreateDelegationToken", 3, 2, None),
    Api(39, "RenewDelegationToken", 2, 2, None),
    Api(40, "ExpireDelegationToken", 2, 2, None),
    Api(41, "DescribeDelegationToken", 3, 2, None),
    Api(42, "DeleteGroups", 2, 2, 0),
    Api(43, "ElectLeaders", 2, 2, 0),
    Api(44, "IncrementalAlterConfigs", 1, 1, 0),
    Api(45, "AlterPartitionReassignments", 1, 0, 0),
    Api(46, "ListPartitionReassignments", 0, 0, 0),
    Api(47, "OffsetDelete", 0, None, None),
    Api(48, "DescribeClientQuotas", 1, 1, 0),
    Api(49, "AlterClientQuotas", 1, 1, 0),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0, 0),
    Api(55, "DescribeQuorum", 2, 0, None),
    Api(57, "UpdateFeatures", 2, 0, 0),
    Api(60, "DescribeCluster", 2, 0, 0),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(64, "UnregisterBroker", 0, 0, 0),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 2, 0, 0),
    Api(68, "ConsumerGroupHeartbeat", 1, 0, 0),
    Api(69, "ConsumerGroupDescribe", 1, 0, 0),
    Api(71, "GetTelemetrySubscriptions", 0, 0, 0),
    Api(72, "PushTelemetry", 0, 0, 0),
    Api(74, "ListConfigResources", 1, 0, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
    Api(76, "ShareGroupHeartbeat", 1, 0, 0),
    Api(77, "ShareGroupDescribe", 1, 0, 0),
    Api(78, "ShareFetch", 2, 0, 0),
    Api(79, "ShareAcknowledge", 2, 0, 0),
    Api(80, "AddRaftVoter", 1, 0, 0),
    Api(81, "RemoveRaftVoter", 0, 0, 0),
    Api(83, "InitializeShareGroupState", 0, 0, None),
    Api(84, "ReadShareGroupState", 0, 0, None),
    Api(85, "WriteShareGroupState", 1, 0, None),
    Api(86, "DeleteShareGroupState", 0, 0, None),
    Api(87, "ReadShareGroupStateSummary", 1, 0, None),
    Api(88, "StreamsGroupHeartbeat", 0, 0, 0),
    Api(89, "StreamsGroupDescribe", 0, 0, 0),
    Api(90, "DescribeShareGroupOffsets", 1, 0, 0),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _TABLE}


def api_of(key_and_version: int) -> Api:
    """The API of a request by the first four bytes of its header. Raises ProtocolError."""
    key, version = key_and_version >> 16, key_and_version & 0xFFFF
    api = APIS.get(key)
    if api is None or version > (INT16_MAX if key == API_VERSIONS else api.max_version):
        raise ProtocolError(f"cannot forward a request of API {key} version {version}")
    return api


def flags_of(keys: Iterable[int]) -> bytes:
    """A byte for each API key of APIS, 1 for those of `keys`: faster to look up than a set in compiled code."""
    return bytes(key in set(keys) for key in range(max(APIS) + 1))
