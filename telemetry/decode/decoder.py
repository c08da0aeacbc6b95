"""A push as it stood in the spool -> an Outcome: decompressed, and decoded by template where one fits. Sans-I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import structlog

from exporters.model import DropReason, Push
from telemetry.decode.compression import DecompressError, TooLarge, decompress
from telemetry.decode.otlp import Decoded, DecodeError, Limits, TooManyPoints, check, decode
from telemetry.decode.point_columns import GATHERABLE_MS
from telemetry.decode.series import identity
from telemetry.decode.series_cache import KnownSeries
from telemetry.decode.templates import Match, Template, Templates, template_of
from telemetry.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

_NOTHING = Decoded()  # never written to

# Making a template costs as much as decoding does, so of pushes that nothing is known of one in sixteen at most is
# learned from, once the first few hundred are: clients that never send the same structure cost little more.
_LEARNED_AT_FIRST = 256
_PUSHES_PER_TEMPLATE = 16

# What a push that cannot be kept is counted as, and the code that Kafka would have answered.
_REFUSALS: dict[type[ValueError], tuple[DropReason, ErrorCode]] = {
    DecompressError: (DropReason.DECOMPRESS, ErrorCode.INVALID_RECORD),
    TooLarge: (DropReason.TOO_LARGE, ErrorCode.TELEMETRY_TOO_LARGE),
    DecodeError: (DropReason.DECODE, ErrorCode.INVALID_RECORD),
    TooManyPoints: (DropReason.TOO_LARGE, ErrorCode.TELEMETRY_TOO_LARGE),
}


def validate_payload(
    compression_type: int, payload: bytes, *, max_decompressed_bytes: int, limits: Limits
) -> ErrorCode:
    """The code for a payload that is not empty, before it is acknowledged: NONE when a Decoder can take it.

    As ClientMetricsManager answers: INVALID_RECORD, at which clients stop for good, TELEMETRY_TOO_LARGE.
    """
    try:
        check(decompress(compression_type, payload, max_bytes=max_decompressed_bytes), limits)
    except tuple(_REFUSALS) as exc:
        return _REFUSALS[type(exc)][1]
    return ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Outcome:
    """A push and what became of it. With a `match` its points are in that, and `decoded` has nothing."""

    push: Push
    decoded: Decoded
    uncompressed_bytes: int
    error_code: int  # Kafka's; 0 when its points are kept
    match: Match | None = None

    @property
    def points(self) -> int:
        """How many rows they make, histograms among them."""
        if self.match is not None:
            return len(self.match.template)
        return len(self.decoded.points.value) + len(self.decoded.histograms)


class Refusal(NamedTuple):
    """Why a push is not kept."""

    reason: DropReason
    cause: str


class Decoder:
    """Remembers structures (templates.py). `known`: series that need not be described again."""

    def __init__(
        self, *, max_decompressed_bytes: int, limits: Limits, known: KnownSeries, max_template_bytes: int
    ) -> None:
        self.templates = Templates(max_template_bytes)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._limits = limits
        self._known = known
        self._learn_budget = float(_LEARNED_AT_FIRST)

    def outcome(self, push: Push) -> tuple[Outcome, Refusal | None]:
        """What became of a push; and why it is not kept, if it is not."""
        nbytes = 0
        try:
            if not push.payload:  # an old librdkafka sends nothing when it has nothing, whatever the codec
                return Outcome(push, _NOTHING, 0, ErrorCode.NONE), None
            payload = decompress(push.compression_type, push.payload, max_bytes=self._max_decompressed_bytes)
            nbytes = len(payload)
            decoded, match = self._decode(push, payload)
            return Outcome(push, decoded, nbytes, ErrorCode.NONE, match), None
        except tuple(_REFUSALS) as exc:
            reason, code = _REFUSALS[type(exc)]
            cause = str(exc)
        except Exception as exc:  # a bug of ours: it costs this push, and must not stop all others for ever
            log.exception("cannot decode a push", nbytes=nbytes, software=repr(push.connection.software_name))
            reason, code, cause = DropReason.DECODE, ErrorCode.INVALID_RECORD, repr(exc)
        return Outcome(push, _NOTHING, nbytes, code), Refusal(reason, cause)

    def _decode(self, push: Push, payload: bytes) -> tuple[Decoded, Match | None]:
        client = identity(push)
        known = self._known.of(client)
        sent = self.templates.find(client, payload)
        if sent is not None and sent.is_described(known) and push.received_at_ms in GATHERABLE_MS:
            return _NOTHING, Match(sent.template, payload, sent.series_ids)
        decoded = decode(payload, push, self._limits, frozenset(known.tolist()))
        if sent is None:
            template = self.templates.known(payload) or self._new_template(payload, decoded)
            if template is not None:
                self.templates.keep(client, payload, template, decoded)
        return decoded, None

    def _new_template(self, payload: bytes, decoded: Decoded) -> Template | None:
        self._learn_budget = min(self._learn_budget + 1 / _PUSHES_PER_TEMPLATE, _LEARNED_AT_FIRST)
        if self._learn_budget < 1:
            return None
        self._learn_budget -= 1
        return template_of(payload, decoded)
