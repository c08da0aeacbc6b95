from __future__ import annotations

import pytest

from exporters.clickhouse.errors import code_and_message, is_permanent


def test_the_innermost_message_counts() -> None:
    inner = "Code: 73. DB::Exception: Unknown format Foo. (UNKNOWN_FORMAT)"
    assert code_and_message(f"Streaming query failed: Code: 73. DB::Exception: {inner}") == (73, inner)


def test_a_message_that_quotes_another_one() -> None:
    text = "Code: 395. DB::Exception: said 'Code: 1. DB::Exception: x'. (X)"
    assert code_and_message(text) == (395, text)


def test_what_is_not_clickhouse_has_no_code() -> None:
    assert code_and_message(" refused\n") == (0, "refused")


@pytest.mark.parametrize("code", [0, 8, 10, 16, 20, 32, 33, 44, 50, 53, 60, 159, 210, 241, 243, 252, 497, 516])
def test_what_may_be_mended_is_tried_again(code: int) -> None:
    assert not is_permanent(code, f"Code: {code}. DB::Exception: whatever")


@pytest.mark.parametrize("code", [6, 27, 41, 72, 117, 321, 349, 376, 469, 691])
def test_values_that_do_not_fit_are_refused_each_time(code: int) -> None:
    assert is_permanent(code, f"Code: {code}. DB::Exception: whatever")


def test_a_block_of_too_many_partitions_is_refused_each_time() -> None:
    text = "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 1000)."
    assert is_permanent(252, text)
