"""telemetry/subscriptions/java/characters.py: sets of characters."""

from __future__ import annotations

import re2
from hypothesis import given
from hypothesis import strategies as st

from telemetry.subscriptions.java.characters import ANY, POSIX, PREDEFINED, Ranges, complement, either_case, source

POINTS = st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF)
RANGES = st.lists(st.tuples(POINTS, POINTS).map(lambda pair: (min(pair), max(pair))), max_size=5)


def members(ranges: Ranges, point: int) -> bool:
    return any(first <= point <= last for first, last in ranges)


@given(RANGES, POINTS)
def test_complement_contains_exactly_the_other_points(ranges: Ranges, point: int) -> None:
    assert members(complement(ranges), point) != members(ranges, point)


@given(RANGES, POINTS)
def test_regex_source_matches_exactly_the_members(ranges: Ranges, point: int) -> None:
    assert bool(re2.fullmatch(source(ranges), chr(point))) == members(ranges, point)


def test_empty_and_full_sets() -> None:
    assert re2.fullmatch(source([]), "a") is None
    assert complement(ANY) == []
    assert complement([]) == ANY


def test_case_folding_covers_ascii_letters_only() -> None:
    folded = either_case([(ord("Y"), ord("b")), (ord("é"), ord("é"))])
    assert {chr(point) for point in range(256) if members(folded, point)} == set("YZ[\\]^_`abyzABé")


def test_posix_classes_match_python_predicates() -> None:
    ascii_text = [chr(point) for point in range(128)]
    for name, expected in {
        "Alpha": str.isalpha,
        "Alnum": str.isalnum,
        "Lower": str.islower,
        "Upper": str.isupper,
        "Digit": str.isdigit,
        "Print": str.isprintable,
    }.items():
        assert [members(POSIX[name], ord(c)) for c in ascii_text] == [expected(c) for c in ascii_text], name


def test_upper_case_class_is_complement_of_lower_case_class() -> None:
    for letter in "dhsvw":
        assert PREDEFINED[letter.upper()] == complement(PREDEFINED[letter])
