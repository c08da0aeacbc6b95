from __future__ import annotations

import pytest

from exporters.clickhouse.errors import (
    StoreAwayError,
    StoreError,
    StoreTooLargeError,
    code_and_message,
    is_permanent,
    store_error,
)


def test_innermost_message_is_reported() -> None:
    inner = "Code: 73. DB::Exception: Unknown format Foo. (UNKNOWN_FORMAT)"
    assert code_and_message(f"Streaming query failed: Code: 73. DB::Exception: {inner}") == (73, inner)


def test_quoted_message_is_not_the_innermost() -> None:
    text = "Code: 395. DB::Exception: said 'Code: 1. DB::Exception: x'. (X)"
    assert code_and_message(text) == (395, text)


def test_text_without_clickhouse_error_has_code_zero() -> None:
    assert code_and_message(" refused\n") == (0, "refused")


@pytest.mark.parametrize("code", [0, 8, 10, 16, 20, 32, 33, 44, 50, 53, 60, 159, 210, 241, 243, 252, 497, 516])
def test_recoverable_errors_are_transient(code: int) -> None:
    assert not is_permanent(code, f"Code: {code}. DB::Exception: whatever")


@pytest.mark.parametrize("code", [6, 27, 41, 72, 117, 321, 349, 376, 469, 691])
def test_invalid_value_errors_are_permanent(code: int) -> None:
    assert is_permanent(code, f"Code: {code}. DB::Exception: whatever")


def test_too_many_partitions_per_block_is_permanent() -> None:
    text = "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 1000)."
    assert is_permanent(252, text)


@pytest.mark.parametrize(
    ("text", "is_of_a_proxy"),
    [
        ("HTTP driver received HTTP status 413, server response: <html>413 Request Entity Too Large</html>", True),
        ("HTTP driver received HTTP status 413", True),
        ("HTTP driver received HTTP status 502, server response: 413", False),
        ("Received ClickHouse exception, code: 62, server response: Code: 62. DB::Exception: 413", False),
    ],
)
def test_only_a_size_that_a_proxy_refuses_is_too_large(text: str, is_of_a_proxy: bool) -> None:
    error = store_error(ValueError(text), "http://store:8123", "")
    assert isinstance(error, StoreError)
    assert isinstance(error, StoreTooLargeError) == is_of_a_proxy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "HTTP driver received HTTP status 502, server response: <html>Bad Gateway</html>",
            "a proxy before {} answers",
        ),
        ("HTTP driver received HTTP status 503, server response: no healthy upstream", "a proxy before {} answers"),
        ("HTTP driver received HTTP status 401", "a proxy before {} answers"),
        ("HTTP driver received HTTP status 404, server response: <html>", "{} answers, but not as ClickHouse"),
        ("Unexpected response to server version query: '<html>login</html'", "{} answers, but not as ClickHouse"),
    ],
)
def test_who_answers_is_named_when_it_is_not_clickhouse(text: str, said: str) -> None:
    error = store_error(ValueError(text), "http://store:8123", "")
    assert isinstance(error, StoreAwayError)
    assert str(error).startswith(said.format("http://store:8123"))
