"""Quotas as JSON, shaped like KIP-546: {"entries": [{"entity": {type: name or null}, "values": {key: number}}]}.

A null name is the type's default entity, a missing type is not part of the entity, and an empty string is a name. An
infinite quota, which a broker accepts and JSON has no number for, is the string "Infinity", as in protobuf's JSON.
"""

import json
import math
import re
import sys
from typing import Any, Final, NamedTuple

from quota_metrics.config.broker_refusals import KEYS_OF_CLIENTS, KEYS_OF_IPS, SCRAM_IS_IGNORED, SCRAM_MECHANISMS
from quota_metrics.config.entities import IP, TYPES, Entity, Rules, entity_of, text

INFINITY: Final = "Infinity"


class QuotaFileError(ValueError):
    """The document is invalid; the message says where, in one line."""


class QuotaDocument(NamedTuple):
    """The rules of a document. `faults` has a line for each part that is invalid and left out, `ignored` one for each
    part that is not Headroom's."""

    rules: dict[Entity, dict[str, float]]
    faults: list[str]
    ignored: list[str]


def parse_rules(content: str | bytes) -> QuotaDocument:
    """Raises QuotaFileError when the content is not such a document."""
    document = _json(content)
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise QuotaFileError('not an object with "entries", a list')
    read = QuotaDocument({}, [], [])
    if "scram_users" in document:
        read.ignored.append(f"scram_users: {SCRAM_IS_IGNORED}")
    lines: list[int] = []
    for number, entry in enumerate(entries):
        count = len(read.faults)
        try:
            _read_entry(entry, read)
        except QuotaFileError as exc:
            read.faults.append(str(exc))
        if len(read.faults) > count:
            lines = lines or _lines_of_entries(content)
            where = f"line {lines[number]}: entries[{number}]"
            read.faults[count:] = [f"{where}: {fault}" for fault in read.faults[count:]]
    return read


def _read_entry(entry: Any, read: QuotaDocument) -> None:
    """Adds the valid values of an entry and names the others. Raises QuotaFileError when it has none."""
    if not isinstance(entry, dict) or not entry.keys() <= {"entity", "values"}:
        raise QuotaFileError('not an object with "entity" and "values" alone')
    entity, written = _entity(entry.get("entity")), entry.get("values")
    if not isinstance(written, dict):
        raise QuotaFileError('"values" is not an object')
    credentials = [key for key in SCRAM_MECHANISMS if key in written]
    if credentials:
        read.ignored.append(f"{' and '.join(credentials)} of {text(entity)}: {SCRAM_IS_IGNORED}")
    keys = KEYS_OF_IPS if entity[0][0] == IP else KEYS_OF_CLIENTS
    for key, value in written.items():
        try:
            if key in credentials:
                continue
            if key not in keys:
                raise QuotaFileError(f"unknown key {key!r}, not one of {', '.join(keys)}")
            if key in read.rules.get(entity, {}):
                raise QuotaFileError(f"{key} of {text(entity)} a second time")
            if value != INFINITY and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise QuotaFileError(f"{key} is not a number")
            if value != INFINITY and not 0 < value <= sys.float_info.max:  # false for NaN, too
                raise QuotaFileError(f"{key} is {value}, not a number greater than 0")
            read.rules.setdefault(entity, {})[key] = math.inf if value == INFINITY else float(value)
        except QuotaFileError as exc:
            read.faults.append(str(exc))


def _lines_of_entries(content: str | bytes) -> list[int]:
    """The line on which each entry of a document begins."""
    document = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
    decoder, lines = json.JSONDecoder(), list[int]()

    def after(pattern: str, at: int) -> int:
        match = re.compile(rf"\s*{pattern}\s*").match(document, at)
        return match.end() if match else at

    at = after("\\{", 0)
    while at < len(document) and document[at] == '"':
        key, at = decoder.raw_decode(document, at)
        at = after(":", at)
        if key != "entries" or document[at] != "[":
            at = after(",", decoder.raw_decode(document, at)[1])
            continue
        lines, at, line, counted = [], after("\\[", at), 1, 0
        while document[at] != "]":
            line += document.count("\n", counted, at)
            counted = at
            lines.append(line)
            at = after(",", decoder.raw_decode(document, at)[1])
        at = after(",", at + 1)
    return lines


def document(rules: Rules) -> dict[str, Any]:
    """The document that `parse_rules` reads, before JSON encoding."""
    return {
        "entries": [
            {"entity": dict(entity), "values": {key: json_number(value) for key, value in values.items()}}
            for entity, values in rules.items()
        ]
    }


def json_number(value: float) -> float | str:
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


def _entity(components: Any) -> Entity:
    if not isinstance(components, dict) or not components:
        raise QuotaFileError(f'"entity" is not an object with at least one of {", ".join(TYPES)}')
    for kind, name in components.items():
        if kind not in TYPES:
            raise QuotaFileError(f"unknown entity type {kind!r}, not one of {', '.join(TYPES)}")
        if not _is_name(name):
            raise QuotaFileError(f"the name of {kind} is neither a string nor null")
    if IP in components and len(components) > 1:
        raise QuotaFileError("ip goes with neither user nor client-id")
    return entity_of(components)


def _is_name(name: Any) -> bool:
    """A string or null. JSON's escapes can spell half of a surrogate pair, which is no character."""
    return name is None or (isinstance(name, str) and not re.search("[\ud800-\udfff]", name))
