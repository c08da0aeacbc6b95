"""Kafka's error codes, and exceptions for invalid subscriptions and invalid patterns."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The error codes used here (org.apache.kafka.common.protocol.Errors)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    KAFKA_STORAGE_ERROR = 56
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    UNKNOWN_TOPIC_ID = 100
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118


class InvalidSubscriptionError(ValueError):
    """A CLIENT_METRICS resource that Kafka refuses, with Kafka's code and message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class JavaPatternError(ValueError):
    """Not a valid Java pattern."""


class UntranslatableError(JavaPatternError):
    """A pattern that Java may accept and RE2 reads otherwise. The message names the construct."""
