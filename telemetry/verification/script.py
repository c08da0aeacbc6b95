"""What a client that is checked is offered and answered, stage by stage. Data only."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import ACCEPTED_COMPRESSION_TYPES

_GZIP: Final = b"\x01"


class Wanted(Enum):
    """The metrics that a stage requests. ONE_NAME: one of those that the client sent before."""

    ALL = 0
    ONE_NAME = 1
    NOTHING = 2


class ScriptStage(NamedTuple):
    """A subscription, and the codes of the answers to the pushes under it; the next stage begins with the next
    GetTelemetrySubscriptions. `hang_up`: the connection is closed after the last answer, once."""

    wanted: Wanted
    answers: tuple[ErrorCode, ...]
    codecs: bytes = ACCEPTED_COMPRESSION_TYPES
    delta: bool = True
    hang_up: bool = False


_OK: Final = ErrorCode.NONE
# Thirteen to fourteen intervals for a client that does all right. After the last stage pushes are accepted until the
# client is closed.
SCRIPT: Final = (
    ScriptStage(Wanted.ALL, (_OK, _OK, ErrorCode.UNKNOWN_SUBSCRIPTION_ID)),
    ScriptStage(Wanted.ONE_NAME, (_OK, ErrorCode.THROTTLING_QUOTA_EXCEEDED), codecs=_GZIP),
    ScriptStage(Wanted.ALL, (ErrorCode.TELEMETRY_TOO_LARGE,)),
    ScriptStage(Wanted.ALL, (_OK, _OK, ErrorCode.UNKNOWN_SUBSCRIPTION_ID), delta=False),
    ScriptStage(Wanted.NOTHING, ()),
    ScriptStage(Wanted.ALL, (_OK,), hang_up=True),
)
