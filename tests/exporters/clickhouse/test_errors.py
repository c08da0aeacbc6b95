from __future__ import annotations

from exporters.clickhouse.errors import code_and_message, status_of


def test_the_innermost_message_counts() -> None:
    inner = "Code: 73. DB::Exception: Unknown format Foo. (UNKNOWN_FORMAT)"
    assert code_and_message(f"Streaming query failed: Code: 73. DB::Exception: {inner}") == (73, inner)


def test_a_message_that_quotes_another_one() -> None:
    text = "Code: 395. DB::Exception: said 'Code: 1. DB::Exception: x'. (X)"
    assert code_and_message(text) == (395, text)


def test_what_is_not_clickhouse_has_no_code() -> None:
    assert code_and_message(" refused\n") == (0, "refused")


def test_statuses() -> None:
    assert [status_of(code) for code in (62, 497, 60, 159, 552, 48, 202, 241, 0)] == [
        400, 403, 404, 408, 413, 501, 503, 500, 500,
    ]  # fmt: skip
