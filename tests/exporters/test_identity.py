"""Names as they are stored, and who pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.identity import CLAIMED, MAX_NAME_CHARS, UNREAD_PRINCIPAL, payer_of, stored_name
from exporters.model import ANONYMOUS

names = st.text(max_size=20) | st.text(st.characters(codec=None), min_size=200, max_size=300)


@given(names)
def test_stored_names_are_bounded_and_stay(name: str) -> None:
    stored = stored_name(name)
    assert len(stored) <= MAX_NAME_CHARS
    assert stored_name(stored) == stored
    assert (stored == name) == (len(name) <= MAX_NAME_CHARS)


@given(names, names)
def test_different_names_stay_different(name: str, other: str) -> None:
    assert (stored_name(name) == stored_name(other)) == (name == other)


def test_a_long_name_keeps_its_beginning() -> None:
    """Rows of earlier versions are compared with it, so the spelling is permanent."""
    assert stored_name("x" * 32_000) == "x" * 238 + "~87de94d76d2ebe9b"
    assert stored_name("x" * 255) == "x" * 255


@pytest.mark.parametrize(
    ("principal", "address", "payer"),
    [
        ("alice", "10.0.0.1", "alice"),
        (ANONYMOUS, "10.0.0.1", "10.0.0.1"),
        (ANONYMOUS, "2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002"),
        (ANONYMOUS, "fe80::1%eth0", "fe80:0000:0000:0000"),
        (ANONYMOUS, "::ffff:10.0.0.1", "10.0.0.1"),
        (ANONYMOUS, "", ""),
        (ANONYMOUS, "a:b", "a:b"),
        (f"{UNREAD_PRINCIPAL}GSSAPI principal>", "10.0.0.1", "10.0.0.1"),
        (f"{CLAIMED}alice", "10.0.0.1", "10.0.0.1"),
    ],
)
def test_who_pays(principal: str, address: str, payer: str) -> None:
    assert payer_of(principal, address) == payer
