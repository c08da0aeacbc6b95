"""Quotas as JSON, shaped like KIP-546: {"entries": [{"entity": {type: name or null}, "values": {key: number}}]}.

A null name is the type's default entity, a missing type is not part of the entity, and an empty string is a name. An
infinite quota, which a broker accepts and JSON has no number for, is the string "Infinity", as in protobuf's JSON.
Sans-I/O.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from quota_metrics.config.entities import IP, TYPES, Entity, Rules, entity_of, text
from quota_metrics.config.validation import KEYS_OF_CLIENTS, KEYS_OF_IPS, SCRAM_IS_IGNORED, SCRAM_MECHANISMS

INFINITY: Final = "Infinity"


class QuotaFileError(ValueError):
    """The document is invalid; the message says where, in one line."""


class QuotaDocument(NamedTuple):
    """The rules of a document. `ignored`: what is not Headroom's, one sentence each."""

    rules: dict[Entity, dict[str, float]]
    ignored: list[str]


def parse_rules(content: str | bytes) -> QuotaDocument:
    """Raises QuotaFileError."""
    rules: dict[Entity, dict[str, float]] = {}
    ignored: list[str] = []
    document = _json(content)
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise QuotaFileError('not an object with "entries", a list')
    if "scram_users" in document:
        ignored.append(f"scram_users: {SCRAM_IS_IGNORED}")
    for number, entry in enumerate(entries):
        where = f"entries[{number}]"
        if not isinstance(entry, dict) or not entry.keys() <= {"entity", "values"}:
            raise QuotaFileError(f'{where}: not an object with "entity" and "values" alone')
        entity = _entity(where, entry.get("entity"))
        written = entry.get("values")
        if isinstance(written, dict) and (credentials := [key for key in SCRAM_MECHANISMS if key in written]):
            ignored.append(f"{where}: {' and '.join(credentials)} of {text(entity)}: {SCRAM_IS_IGNORED}")
            written = {key: value for key, value in written.items() if key not in credentials}
            if not written:
                continue
        values = rules.setdefault(entity, {})
        for key, value in _values(where, entity, written):
            if key in values:
                raise QuotaFileError(f"{where}: {key} of {text(entity)} a second time")
            values[key] = value
    return QuotaDocument(rules, ignored)


def document(rules: Rules) -> dict[str, Any]:
    """The document that `parse_rules` reads, before JSON encoding."""
    return {
        "entries": [
            {"entity": dict(entity), "values": {key: json_number(value) for key, value in values.items()}}
            for entity, values in rules.items()
        ]
    }


def json_number(value: float) -> float | str:
    """A quota as JSON has it."""
    return INFINITY if value == math.inf else value


def parse_pairs(content: str | bytes) -> list[tuple[str | None, str | None, str | None]]:
    """Parses a list of [user, client-id] or [user, client-id, ip]; null means unknown. Raises QuotaFileError."""
    pairs = _json(content)
    if not isinstance(pairs, list):
        raise QuotaFileError("not a list of [user, client-id] or [user, client-id, ip]")
    triples = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) not in (2, 3) or not all(map(_is_name, pair)):
            raise QuotaFileError(f"[{number}]: not [user, client-id] or [user, client-id, ip] of strings and nulls")
        triples.append((pair[0], pair[1], pair[2] if len(pair) == 3 else None))
    return triples


def _json(content: str | bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError as exc:
        raise QuotaFileError("not JSON that can be read: nested too deep") from exc
    except ValueError as exc:  # includes UnicodeDecodeError
        raise QuotaFileError(f"not JSON: {exc}") from exc


def _entity(where: str, components: Any) -> Entity:
    if not isinstance(components, dict) or not components:
        raise QuotaFileError(f'{where}: "entity" is not an object with at least one of {", ".join(TYPES)}')
    for kind, name in components.items():
        if kind not in TYPES:
            raise QuotaFileError(f"{where}: unknown entity type {kind!r}, not one of {', '.join(TYPES)}")
        if not _is_name(name):
            raise QuotaFileError(f"{where}: the name of {kind} is neither a string nor null")
    if IP in components and len(components) > 1:
        raise QuotaFileError(f"{where}: ip goes with neither user nor client-id")
    return entity_of(components)


def _is_name(name: Any) -> bool:
    """A string or null. JSON's escapes can spell half of a surrogate pair, which is no character."""
    return name is None or (isinstance(name, str) and not re.search("[\ud800-\udfff]", name))


def _values(where: str, entity: Entity, values: Any) -> Iterator[tuple[str, float]]:
    if not isinstance(values, dict):
        raise QuotaFileError(f'{where}: "values" is not an object')
    known = KEYS_OF_IPS if entity[0][0] == IP else KEYS_OF_CLIENTS
    for key, value in values.items():
        if key not in known:
            raise QuotaFileError(f"{where}: unknown key {key!r}, not one of {', '.join(known)}")
        if value == INFINITY:
            yield key, math.inf
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise QuotaFileError(f"{where}: {key} is not a number")
        if not 0 < value <= sys.float_info.max:  # false for NaN, too
            raise QuotaFileError(f"{where}: {key} is {value}, not a number greater than 0")
        yield key, float(value)
