"""Names as they are stored and who pays, then text on a terminal: no cut number, cut short name or wrapped command."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from exporters.identity import CLAIMED, MAX_NAME_CHARS, UNREAD_PRINCIPAL, payer_of, stored_name
from exporters.model import ANONYMOUS
from exporters.printable import json_text
from exporters.text_table import NAME_CHARS, Layout, table_lines, wrapped

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


HEADINGS = ("level", "client", "user", "usage", "reason", "command")
LAYOUT = Layout(numbers=("usage",), names=("client", "user"), leave=("user",), below=("reason",), commands=("command",))
LONG_COMMAND = "kafka-configs.sh --alter --entity-type users --entity-name alice --add-config producer_byte_rate=410204"
ROW = ("throttled", "java-producer-throttled", "alice", "302.4 kB/s", "wants more than 200.0 kB/s", LONG_COMMAND)


def texts(row: tuple[str, ...], width: int | None, layout: Layout = LAYOUT) -> list[str]:
    return [line.text for line in table_lines(HEADINGS, [row], width, layout)]


def test_lines_of_any_length_have_all_columns_and_no_boxes() -> None:
    assert texts(ROW, None) == [
        "level      client                   user        usage  reason",
        "throttled  java-producer-throttled  alice  302.4 kB/s  wants more than 200.0 kB/s",
        LONG_COMMAND,
    ]


def test_sentences_go_below_their_row_before_columns_leave() -> None:
    assert texts(ROW, 60) == [
        "level      client                   user        usage",
        "throttled  java-producer-throttled  alice  302.4 kB/s",
        "    wants more than 200.0 kB/s",
        LONG_COMMAND,
    ]


def test_a_column_that_leaves_is_named() -> None:
    lines = texts(ROW, 50)
    assert lines[1] == "throttled  java-producer-throttled  302.4 kB/s"
    assert lines[-1] == "(no room in 50 columns for: user)"


def test_each_row_is_a_block_where_not_even_the_needed_columns_fit() -> None:
    assert texts(ROW, 40)[:4] == [
        "level    throttled",
        "client   java-producer-throttled",
        "user     alice",
        "usage    302.4 kB/s",
    ]


def test_one_long_name_does_not_drive_columns_out() -> None:
    lines = texts(("ok", "c" * 60, "bob", "1.0 kB/s", "-", "-"), 60)
    assert lines[0].split() == ["level", "client", "user", "usage"]
    assert lines[1] == f"ok     {'c' * 36}\N{HORIZONTAL ELLIPSIS}  bob   1.0 kB/s"


def test_empty_cells_and_control_characters_are_visible() -> None:
    assert texts(("ok", "", "a\x1b[2Jb\nc", "1.0 B/s", "", ""), None)[1] == "ok     -       a\\x1b[2Jb\\nc  1.0 B/s  -"


def test_wide_characters_are_aligned_by_what_a_terminal_shows() -> None:
    lines = [line.text for line in table_lines(("a", "b"), [("東京", "1"), ("x", "2")])]
    assert lines == ["a     b", "東京  1", "x     2"]


def test_a_sentence_is_not_broken_between_a_number_and_its_unit() -> None:
    assert wrapped("it wants 200.0 kB/s and more", 19, "") == ["it wants 200.0 kB/s", "and more"]
    assert wrapped("it wants 200.0 kB/s and more", 18, "") == ["it wants", "200.0 kB/s and", "more"]


NAMES = st.text("abc-", min_size=1, max_size=NAME_CHARS)
NUMBERS = st.floats(0, 999).map(lambda value: f"{value:.1f} kB/s")


@given(rows=st.lists(st.tuples(NAMES, NAMES, NUMBERS, NUMBERS), min_size=1, max_size=4), width=st.integers(40, 200))
def test_nothing_that_is_read_as_a_whole_is_cut(rows: list[tuple[str, str, str, str]], width: int) -> None:
    headings = ("client", "user", "usage", "limit")
    layout = Layout(numbers=("usage", "limit"), names=("client", "user"), leave=("user", "limit"))
    lines = table_lines(headings, rows, width, layout)
    assert all(len(line.text) <= width for line in lines)
    gone = [name for name in layout.leave if lines[-1].text.endswith((f" {name})", f" {name}, limit)"))]
    for number, row in enumerate(rows):
        shown = "\n".join(line.text for line in lines if line.row == number)
        whole = [cell for name, cell in zip(headings, row, strict=True) if name not in gone and name != "limit"]
        assert all(cell in shown for cell in whole)


def test_wide_names_are_cut_by_what_a_terminal_shows() -> None:
    lines = texts(("ok", "東" * 60, "bob", "1.0 kB/s", "-", "-"), 60)
    assert max(map(cell_len, lines)) <= 60
    assert "東" * 17 + "\N{HORIZONTAL ELLIPSIS}" in lines[1]


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
