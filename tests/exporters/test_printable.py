"""Text of clients on a terminal."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.printable import json_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("\x1b]0;owned\x07\x7f\x9b2J", r'"\u001b]0;owned\u0007\u007f\u009b2J"'),
        ("\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe\u2028\U000e0001", r'"\u202egpj.exe\u2028\udb40\udc01"'),
        ('Zo\u00eb "\\"', '"Zo\u00eb \\"\\\\\\""'),
    ],
)
def test_unprintable_characters_are_escaped(name: str, written: str) -> None:
    assert json_text(name) == written


@given(JSON)
def test_json_is_the_same_value_and_printable(value: object) -> None:
    text = json_text(value)
    assert orjson.loads(text) == value
    assert text.replace("\n", "").isprintable()


def test_infinity_is_null() -> None:
    assert json_text([float("inf")], 0) == "[null]"
