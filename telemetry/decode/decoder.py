"""Decodes a Push from the spool to a DecodedPush: decompresses it and uses a template where one matches. Sans-I/O."""

import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import structlog

from exporters.model import DropReason, Push
from telemetry.decode.bounds import (
    DecodeError,
    DecompressError,
    OverBudget,
    PayloadLimits,
    TooLarge,
    decompress,
    over_budget,
)
from telemetry.decode.otlp import Decoded, check, decode
from telemetry.decode.series import ClientBudgets, KnownSeries, identity
from telemetry.decode.templates import GATHERABLE_MS, TemplateMatch, Templates, template_of
from telemetry.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

_NOTHING = Decoded()  # never written to

# Building a template costs as much as decoding a push. Each of the first 256 pushes of unknown structure builds one,
# later one in sixteen, so that clients that never repeat a structure cost little more than decoding.
_MAX_TEMPLATE_CREDIT = 256
_PUSHES_PER_TEMPLATE = 16

# The drop reason, and the code that Kafka would have answered.
_REFUSALS: dict[type[ValueError], tuple[DropReason, ErrorCode]] = {
    DecompressError: (DropReason.DECOMPRESS, ErrorCode.INVALID_RECORD),
    TooLarge: (DropReason.TOO_LARGE, ErrorCode.TELEMETRY_TOO_LARGE),
    DecodeError: (DropReason.DECODE, ErrorCode.INVALID_RECORD),
    OverBudget: (DropReason.OVER_BUDGET, ErrorCode.INVALID_RECORD),
}


def validate_payload(
    compression_type: int, payload: bytes, *, max_decompressed_bytes: int, limits: PayloadLimits
) -> ErrorCode:
    """Validates a non-empty payload before it is acknowledged; NONE when a Decoder accepts it.

    Codes as in Kafka's ClientMetricsManager: INVALID_RECORD (clients stop pushing) or TELEMETRY_TOO_LARGE. Only the
    Decoder checks budgets per client and minute.
    """
    try:
        limits = replace(limits, points=limits.points_of_push(len(payload)))
        check(decompress(compression_type, payload, max_bytes=max_decompressed_bytes), limits)
    except tuple(_REFUSALS) as exc:
        return _REFUSALS[type(exc)][1]
    return ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class DecodedPush:
    """A decoded push. The points are in `match` when there is one, else in `decoded`."""

    push: Push
    decoded: Decoded
    uncompressed_bytes: int
    error_code: int  # Kafka's; 0 when its points are kept
    match: TemplateMatch | None = None

    @property
    def points(self) -> int:
        """Rows of points and client_histograms."""
        if self.match is not None:
            return len(self.match.template)
        return len(self.decoded.points.value) + len(self.decoded.histograms)

    @property
    def has_replaced_texts(self) -> bool:
        """Whether some of its texts were not UTF-8."""
        return self.match.template.has_replaced_texts if self.match is not None else self.decoded.replaced_texts > 0


class Refusal(NamedTuple):
    """Why a push is dropped."""

    reason: DropReason
    cause: str


class Decoder:
    """Decodes pushes and caches templates (templates.py) of their structures.

    `known_series`: series that need not be described again. `client_budgets`: budgets per client and minute.
    """

    def __init__(
        self,
        *,
        max_decompressed_bytes: int,
        limits: PayloadLimits,
        known_series: KnownSeries,
        max_template_bytes: int,
        client_budgets: ClientBudgets,
    ) -> None:
        self.templates = Templates(max_template_bytes)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._limits = limits
        self._known_series = known_series
        self._template_credit = float(_MAX_TEMPLATE_CREDIT)
        self._budgets = client_budgets

    def outcome(self, push: Push) -> tuple[DecodedPush, Refusal | None]:
        """Decodes a push; the outcome has a Refusal when the push is dropped."""
        nbytes = 0
        try:
            if not push.payload:  # old versions of librdkafka send an empty payload without metrics, whatever the codec
                return DecodedPush(push, _NOTHING, 0, ErrorCode.NONE), None
            payload = decompress(push.compression_type, push.payload, max_bytes=self._max_decompressed_bytes)
            nbytes = len(payload)
            decoded, match = self._decode(push, payload)
            return DecodedPush(push, decoded, nbytes, ErrorCode.NONE, match), None
        except tuple(_REFUSALS) as exc:
            reason, code = _REFUSALS[type(exc)]
            cause = str(exc)
        except Exception as exc:  # an internal error: the push is quarantined, others are not affected
            log.exception("cannot decode a push", nbytes=nbytes, software=repr(push.connection.software_name))
            reason, code, cause = DropReason.DECODE, ErrorCode.INVALID_RECORD, repr(exc)
        return DecodedPush(push, _NOTHING, nbytes, code), Refusal(reason, cause)

    def _decode(self, push: Push, payload: bytes) -> tuple[Decoded, TemplateMatch | None]:
        client = identity(push)
        points_allowed = self._limits.points_of_push(len(push.payload))
        known_ids = self._known_series.of(client)
        sent = self.templates.find(client, payload)
        template = sent.template if sent is not None else self.templates.find_of_any_client(payload)
        if template is not None and len(template) > points_allowed:
            raise over_budget("points", points_allowed)
        if template is not None and push.received_at_ms in GATHERABLE_MS:
            if sent is not None and sent.is_described(known_ids):
                self._budgets.charge(client, push, len(template), 0)
                return _NOTHING, TemplateMatch(template, payload, sent.series_ids)
            if template.described is None and template.is_describable and (sent is None or template.users > 1):
                # Decoded as if no series were known, once for all clients of the structure.
                with contextlib.suppress(OverBudget):  # it may be within the budget only because its series are known
                    self.templates.describe(template, decode(payload, push, self._limits, ()))
                template.is_describable = template.described is not None
            if (described := template.described) is not None:
                # The structure of other clients, or of a client whose series expired: nothing is parsed.
                ids, series = described.of(client, frozenset(known_ids.tolist()))
                self._budgets.charge(client, push, len(template), len(series))
                self.templates.keep(client, payload, template, ids)
                return Decoded(series=series, text_bytes=described.text_bytes), TemplateMatch(template, payload, ids)
        limits = replace(self._limits, points=points_allowed)
        decoded = decode(payload, push, limits, frozenset(known_ids.tolist()))
        points = len(decoded.points.value) + len(decoded.histograms)
        self._budgets.charge(client, push, points, len(decoded.series))
        if sent is None:
            if template is None:
                self._template_credit = min(self._template_credit + 1 / _PUSHES_PER_TEMPLATE, _MAX_TEMPLATE_CREDIT)
                if self._template_credit >= 1:
                    self._template_credit -= 1
                    template = template_of(payload, decoded)
            if template is not None:
                self.templates.keep(client, payload, template, np.array(decoded.points.series_id, np.uint64))
        return decoded, None
