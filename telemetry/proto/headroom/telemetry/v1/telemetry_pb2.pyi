from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Connection(_message.Message):
    __slots__ = ("client_id", "cluster", "listener", "principal", "client_source_address", "client_source_port", "client_software_name", "client_software_version", "broker_id", "connection_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOURCE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOURCE_PORT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOFTWARE_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    cluster: str
    listener: str
    principal: str
    client_source_address: str
    client_source_port: int
    client_software_name: str
    client_software_version: str
    broker_id: int
    connection_id: str
    def __init__(self, client_id: _Optional[str] = ..., cluster: _Optional[str] = ..., listener: _Optional[str] = ..., principal: _Optional[str] = ..., client_source_address: _Optional[str] = ..., client_source_port: _Optional[int] = ..., client_software_name: _Optional[str] = ..., client_software_version: _Optional[str] = ..., broker_id: _Optional[int] = ..., connection_id: _Optional[str] = ...) -> None: ...

class GetTelemetrySubscriptionsRequest(_message.Message):
    __slots__ = ("client_instance_id", "connection")
    CLIENT_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    client_instance_id: bytes
    connection: Connection
    def __init__(self, client_instance_id: _Optional[bytes] = ..., connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...

class GetTelemetrySubscriptionsResponse(_message.Message):
    __slots__ = ("throttle_time_ms", "error_code", "client_instance_id", "subscription_id", "accepted_compression_types", "push_interval_ms", "telemetry_max_bytes", "delta_temporality", "requested_metrics")
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COMPRESSION_TYPES_FIELD_NUMBER: _ClassVar[int]
    PUSH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELTA_TEMPORALITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_METRICS_FIELD_NUMBER: _ClassVar[int]
    throttle_time_ms: int
    error_code: int
    client_instance_id: bytes
    subscription_id: int
    accepted_compression_types: _containers.RepeatedScalarFieldContainer[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, throttle_time_ms: _Optional[int] = ..., error_code: _Optional[int] = ..., client_instance_id: _Optional[bytes] = ..., subscription_id: _Optional[int] = ..., accepted_compression_types: _Optional[_Iterable[int]] = ..., push_interval_ms: _Optional[int] = ..., telemetry_max_bytes: _Optional[int] = ..., delta_temporality: bool = ..., requested_metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class PushTelemetryRequest(_message.Message):
    __slots__ = ("client_instance_id", "subscription_id", "terminating", "compression_type", "metrics", "connection")
    CLIENT_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TERMINATING_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    client_instance_id: bytes
    subscription_id: int
    terminating: bool
    compression_type: int
    metrics: bytes
    connection: Connection
    def __init__(self, client_instance_id: _Optional[bytes] = ..., subscription_id: _Optional[int] = ..., terminating: bool = ..., compression_type: _Optional[int] = ..., metrics: _Optional[bytes] = ..., connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...

class PushTelemetryResponse(_message.Message):
    __slots__ = ("throttle_time_ms", "error_code")
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    throttle_time_ms: int
    error_code: int
    def __init__(self, throttle_time_ms: _Optional[int] = ..., error_code: _Optional[int] = ...) -> None: ...
