"""Formatted byte counts, rates, shares and durations."""

import pytest

from quota_metrics.amounts import (
    STYLES,
    bytes_text,
    count_text,
    duration_text,
    exact_share_text,
    of_limit_text,
    rate_text,
    share_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.96, "1.0 kB"), (1000, "1.0 kB"), (85_000, "85.0 kB"), (-1.5e6, "-1.5 MB"),
     (1e15, "1.0 PB"), (1e19, "10000.0 PB")],
)  # fmt: skip
def test_bytes_text_uses_decimal_units(value: float, text: str) -> None:
    assert bytes_text(value) == text


def test_one_thing_is_no_plural() -> None:
    assert [count_text(count, "value") for count in (0, 1, 2)] == ["0 values", "1 value", "2 values"]


def test_rate_text_uses_the_unit_of_the_quota() -> None:
    assert rate_text(85_000.0, "producer_byte_rate") == "85.0 kB/s"
    assert [rate_text(value, "consumer_byte_rate") for value in (0.0, 999.0, 2.5e6)] == ["0 B/s", "999 B/s", "2.5 MB/s"]
    assert rate_text(12.5, "request_percentage") == "12.5 %"
    assert rate_text(3.0, "controller_mutation_rate") == "3.0 mutations/s"
    assert rate_text(3.0, "connection_creation_rate") == "3.0 connections/s"
    assert rate_text(None, "producer_byte_rate") == "-"


def test_a_unit_that_usage_and_limit_share_stands_once() -> None:
    assert of_limit_text(85_000.0, 200_000.0, "producer_byte_rate") == "85.0 / 200.0 kB/s"
    assert of_limit_text(85_000.0, 1e6, "producer_byte_rate") == "85.0 kB/s / 1.0 MB/s"
    assert of_limit_text(2.8, 10.0, "controller_mutation_rate") == "2.8 / 10.0 mutations/s"
    assert of_limit_text(2.8, None, "controller_mutation_rate") == "2.8 mutations/s / -"


def test_share_and_duration_texts() -> None:
    assert [share_text(value) for value in (None, 0.0, 0.8511, 1.234)] == ["-", "0.0 %", "85.1 %", "123.4 %"]
    exact = [exact_share_text(value) for value in (None, 0.0, 0.0004, 0.00001, 0.0005, 0.8511)]
    assert exact == ["-", "0.0 %", "0.04 %", "0.001 %", "0.1 %", "85.1 %"]
    assert [duration_text(ms) for ms in (None, 0, 999, 1000, 90_000, 5_400_000)] == [
        "-", "0 ms", "999 ms", "1.0 s", "1.5 min", "1.5 h",
    ]  # fmt: skip


@pytest.mark.parametrize("level", STYLES)
def test_white_text_can_be_read_on_the_colour_of_each_level(level: str) -> None:
    """By the relative luminance of WCAG 2.1."""
    colour = STYLES[level].light
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 4.5
