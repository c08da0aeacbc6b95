"""Administration of CLIENT_METRICS resources by a broker's rules: encoded requests in, encoded responses out.

Sans-I/O. Source, in Kafka 4.3: ConfigAdminManager (the broker's checks before it forwards), ConfigurationControlManager
and ControllerConfigurationValidator (the controller's checks), ConfigHelper and KafkaApis (describe and list); order,
codes and messages are theirs. Deliberate differences:

- Resources of other types do not exist: there are no topics, and a broker's configuration cannot be described.
- A resource named twice in an AlterConfigs request is refused; a broker never answers that request.
- All resources together have at most MAX_CHARS.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from telemetry.subscriptions.java.hash import ConcurrentMapKeys, hash_set
from telemetry.subscriptions.subscription import INTERVAL_MS, MATCH, METRICS, described, parse_subscription
from telemetry.wire.apis import ALTER_CONFIGS
from telemetry.wire.config_messages import (
    ConfigEntry,
    DescribedResource,
    Operation,
    ResourceChange,
    ResourceResult,
    ResourceType,
    read_alter,
    read_describe,
    read_list,
    write_altered,
    write_described,
    write_list,
)
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError

MAX_CHARS: Final = 1 << 20  # enough for some thousand resources; each change rewrites the whole file

Resources = Mapping[str, Mapping[str, str]]  # name -> set keys and values

_SET_CONFIG, _DEFAULT_CONFIG = 7, 5  # DescribeConfigsResponse.ConfigSource: CLIENT_METRICS_CONFIG, DEFAULT_CONFIG
_INT, _LIST = 3, 7  # DescribeConfigsResponse.ConfigType
_KEYS = {
    INTERVAL_MS: (_INT, "Metrics push interval in milliseconds"),
    MATCH: (_LIST, "Client match criteria"),
    METRICS: (_LIST, "Telemetry metric name prefix list"),
}
_KINDS = frozenset(ResourceType)
_OPERATIONS = frozenset(Operation)
_INVALID_REQUEST_MESSAGE = (  # Errors.INVALID_REQUEST.message()
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an"
    " incompatible broker. See the broker logs for more details."
)


class Alteration(NamedTuple):
    """The result of an alter request. `changes`: name -> all keys and values after it; {} deletes the resource."""

    api_key: int
    version: int
    changes: dict[str, dict[str, str]]
    results: list[ResourceResult]

    def answer(self) -> bytes:
        """The response after the changes were stored."""
        return write_altered(self.api_key, self.version, self.results)

    def not_kept(self, message: str) -> bytes:
        """The response after storing them failed."""
        results = [
            result._replace(code=ErrorCode.KAFKA_STORAGE_ERROR, message=message)
            if result.name in self.changes and result.code is ErrorCode.NONE
            else result
            for result in self.results
        ]
        return write_altered(self.api_key, self.version, results)


def alter(
    api_key: int,
    version: int,
    body: bytes,
    resources: Resources,
    match_keys: Collection[str],
    *,
    is_authorized: bool = True,
) -> Alteration:
    """IncrementalAlterConfigs, or AlterConfigs, which sets all keys of a resource. Raises ProtocolError.

    Without `is_authorized` each resource is refused like by a controller whose authorizer denies ALTER_CONFIGS.
    """
    request = read_alter(api_key, version, body)
    occurrences = Counter((change.kind, change.name) for change in request.resources)
    refusals = [
        _refusal(change, occurrences[change.kind, change.name], is_authorized=is_authorized)
        for change in request.resources
    ]
    forwarded = [change for change, refusal in zip(request.resources, refusals, strict=True) if refusal is None]
    if any(key.operation not in _OPERATIONS for change in forwarded for key in change.keys):
        # An operation unknown to the controller fails all resources that the broker forwards in that request.
        fault = InvalidSubscriptionError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        refusals = [refusal or fault for refusal in refusals]
    changes: dict[str, dict[str, str]] = {}
    results = []
    for change, refusal in zip(request.resources, refusals, strict=True):
        before = resources.get(change.name, {})
        code, message = ErrorCode.NONE, None
        try:
            if refusal:
                raise refusal
            after = _apply(change, before, match_keys, replace=api_key == ALTER_CONFIGS)
            if after != before:
                afterwards = {**resources, **changes, change.name: after}
                if sum(len(name) + sum(map(len, keys.values())) for name, keys in afterwards.items()) > MAX_CHARS:
                    too_many = f"All client metrics resources together have at most {MAX_CHARS} characters."
                    raise InvalidSubscriptionError(ErrorCode.POLICY_VIOLATION, too_many)
                changes[change.name] = after
        except InvalidSubscriptionError as exc:
            code, message = exc.code, str(exc) or None
        results.append(ResourceResult(change.kind, change.name, code, message))
    return Alteration(api_key, version, {} if request.validate_only else changes, results)


def _refusal(change: ResourceChange, occurrences: int, *, is_authorized: bool) -> InvalidSubscriptionError | None:
    """ConfigAdminManager.preprocess, and ControllerApis.authorizeAlterResource with Errors' messages."""
    nulls = [key.key for key in change.keys if key.value is None and key.operation != Operation.DELETE]
    if occurrences > 1:
        message = "Each resource must appear at most once."
    elif len({key.key for key in change.keys}) < len(change.keys):
        message = "Error due to duplicate config keys"
    elif nulls:
        message = f"Null value not supported for : {', '.join(nulls)}"
    elif change.kind not in (ResourceType.CLIENT_METRICS, ResourceType.TOPIC):
        message = f"Unknown resource type {change.kind}"
    elif is_authorized:
        return None
    elif change.kind == ResourceType.TOPIC:
        return InvalidSubscriptionError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    else:
        return InvalidSubscriptionError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    return InvalidSubscriptionError(ErrorCode.INVALID_REQUEST, message)


def _apply(
    change: ResourceChange, before: Mapping[str, str], match_keys: Collection[str], *, replace: bool
) -> dict[str, str]:
    """The keys and values after a change, by ConfigurationControlManager. One invalid key fails the whole resource."""
    if change.kind == ResourceType.TOPIC:
        raise InvalidSubscriptionError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{change.name}' does not exist."
        )
    after = {} if replace else dict(before)
    by_name = {key.key: key for key in change.keys}
    for name in hash_set(by_name):  # the order decides which of several errors is reported
        _, operation, value = by_name[name]
        if operation in (Operation.APPEND, Operation.SUBTRACT):
            message = f"Can't {Operation(operation).name} to key {name} because its type is not LIST."
            raise InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, message)
        if operation == Operation.DELETE or value is None:
            after.pop(name, None)
        else:
            after[name] = value
    properties = ConcurrentMapKeys()  # in the order of java.util.Properties
    for name in after:
        properties.put(name)
    parse_subscription(change.name, {name: after[name] for name in properties}, match_keys)
    return after


def describe(version: int, body: bytes, resources: Resources) -> bytes:
    """DescribeConfigs. A resource that does not exist is described with defaults. Raises ProtocolError."""
    request = read_describe(version, body)
    if all(resource.kind in _KINDS for resource in request.resources):
        results = [_describe_resource(resource, resources) for resource in request.resources]
    else:  # an unexpected error fails the whole request
        code, message = ErrorCode.INVALID_REQUEST, _INVALID_REQUEST_MESSAGE
        results = [ResourceResult(kind, name, code, message) for kind, name, _ in request.resources]
    return write_described(version, request, results)


def _describe_resource(asked: DescribedResource, resources: Resources) -> ResourceResult:
    kind, name, keys = asked
    if kind == ResourceType.TOPIC:
        return ResourceResult(kind, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    if kind != ResourceType.CLIENT_METRICS:
        unsupported = f"Unsupported resource type: {ResourceType(kind).name}"
        return ResourceResult(kind, name, ErrorCode.INVALID_REQUEST, unsupported)
    if not name:
        empty = "Client metrics subscription name must not be empty"
        return ResourceResult(kind, name, ErrorCode.INVALID_REQUEST, empty)
    values = resources.get(name, {})
    entries = []
    for key, value in described(values).items():
        if not keys or key in keys:
            source = _SET_CONFIG if key in values else _DEFAULT_CONFIG
            type_, documentation = _KEYS[key]
            entries.append(ConfigEntry(key, value, source, key in values, type_, documentation))
    return ResourceResult(kind, name, ErrorCode.NONE, "", entries)


def list_resources(version: int, body: bytes, names: Iterable[str]) -> bytes:
    """ListConfigResources. `names`: of all resources, in the order of the response. Raises ProtocolError."""
    kinds = read_list(version, body)
    if any(kind not in _KINDS for kind in kinds):
        return write_list(version, ErrorCode.UNSUPPORTED_VERSION, ())
    wanted = not kinds or ResourceType.CLIENT_METRICS in kinds
    return write_list(version, ErrorCode.NONE, list(names) if wanted else ())
