"""Pages whose examples are true: figures of performance.md, levels of levels.md, properties of managed-clusters.md."""

import re
from pathlib import Path

import pytest

from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.properties import read_properties, security
from quota_metrics.verdict.evaluate import evaluate
from quota_metrics.verdict.thresholds import LEVELS, Thresholds
from quota_metrics.verdict.window import Memory, Surroundings
from tests.bench.performance import PAGE, ROWS, Figure, page
from tests.docs.reference_pages import DOCS
from tests.kit.certificates import CertificateAuthority
from tests.kit.client_windows import LIMIT, MINUTE_MS, client_window


def rows_of(text: str) -> list[list[str]]:
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines()[2:] if line.startswith("| ")][1:]


def figure(name: str, value: float, ratio: float, baseline: str = "bare") -> Figure:
    return Figure(name, value, "us", ratio, baseline, "abc1234")


def test_a_row_shows_the_figure_that_is_worst_for_its_goal() -> None:
    fast = [figure("frames_16kB_produce", 900, 0.95, "blind:950"), figure("frames_1MB_fetch", 20, 0.92, "blind:22")]
    (row,) = rows_of(page(fast, ""))
    assert row == [
        "frames from 16 kB up, beside a blind copy",
        "20.0 us",
        "0.92 of blind",
        "at least 0.91",
        "met",
        "`abc1234`",
    ]
    (row,) = rows_of(page([*fast, figure("frames_100kB_fetch", 1_200, 0.5, "blind:2400")], ""))
    assert row[1:5] == ["1,200 us", "0.50 of blind", "at least 0.91", "**not met**"]


def test_a_limit_on_the_value() -> None:
    (row,) = rows_of(page([figure("view_near_limit_p50_ms", 101, 1.01, "goal_100_ms")], ""))
    assert row[1:5] == ["101.0 us", "", "at most 100 us", "**not met**"]
    (row,) = rows_of(page([figure("view_near_limit_p50_ms", 99, 0.99, "goal_100_ms")], ""))
    assert row[4] == "met"


def test_what_was_never_measured_has_no_row_and_what_was_keeps_it() -> None:
    assert rows_of(page([], "")) == []
    assert rows_of(page([figure("load_average", 3, 1)], "")) == []
    before = page([figure("view_near_limit_p50_ms", 99, 0.99), figure("minute_of_0", 9, 0.1)], "")
    after = page([figure("minute_of_0", 5, 0.05)], before)
    assert [row[1] for row in rows_of(after)] == ["5.00 us", "99.0 us"]


def test_the_page_has_rows_of_the_table_only() -> None:
    shown = [row[0] for row in rows_of(PAGE.read_text())]
    assert shown == [row.what for row in ROWS if row.what in shown]
    assert 0 < len(shown) <= len(ROWS) <= 36


_CLASS = re.compile(r"the brokers use ([\w.]+)")
_IMPLIED = re.compile(r"implied limit ([\d.]+) kB/s")
_EXAMPLE = re.compile(r"^\| `(\w+)` \| ([\w. %]+) \| ([\w. %-]+) \| `(.+)` \|$", re.MULTILINE)


def examples() -> list[tuple[str, str, str, str]]:
    """Level, `mean and p95`, muted, reason."""
    return _EXAMPLE.findall((DOCS / "levels.md").read_text())


def test_each_level_has_an_example() -> None:
    assert {level for level, *_ in examples()} == set(LEVELS)


@pytest.mark.parametrize(("level", "used", "muted", "reason"), examples())
def test_an_example_of_a_level(level: str, used: str, muted: str, reason: str) -> None:
    is_limited, is_unexplained = "%" in used, "not explained" in reason
    mean, p95 = (float(part) / 100 for part in re.findall(r"[\d.]+", used)) if is_limited else (0.0, 0.0)
    muted_s, longest_ms = (float(part) for part in re.findall(r"[\d.]+", muted)) if muted != "-" else (0.0, 0.0)
    implied = _IMPLIED.search(reason)
    window = client_window(
        mean,
        p95,
        state="unknown" if level == "unknown" or is_unexplained else "limited" if is_limited else "none",
        limit=LIMIT if is_limited else None,
        rule_limit=LIMIT if is_limited or is_unexplained else None,
        decided_by="".join(_CLASS.findall(reason)),
        implied_limit=1000 * float(implied[1]) if implied else None,
        muted_ms=muted_s * 1000,
        throttle_ms=longest_ms,
    )
    (verdict,), _ = evaluate([window], Surroundings(), Memory(), Thresholds(), MINUTE_MS)
    assert (verdict.level, verdict.reason) == (level, reason)


MANAGED = (DOCS / "managed-clusters.md").read_text()
BLOCKS = re.findall(r"^```properties\n(.*?)^```", MANAGED, re.MULTILINE | re.DOTALL)
OWN = [block for block in BLOCKS if not block.startswith("# a Java client")]


def written(directory: Path, block: str) -> Path:
    """With the files that the block names."""
    authority = CertificateAuthority(directory)
    certificate, key = authority.issue("service")
    authority.trust_store("CA_PASSWORD")
    block = block.replace("ca.pem", str(authority.ca)).replace("ca.p12", str(authority.ca.with_suffix(".p12")))
    file = directory / "client.properties"
    file.write_text(block.replace("service.cert", str(certificate)).replace("service.key", str(key)))
    return file


@pytest.mark.parametrize("block", OWN)
def test_properties_of_the_page_are_headrooms(tmp_path: Path, block: str) -> None:
    how = security(read_properties(written(tmp_path, block)))
    assert how.tls is not None
    assert (how.sasl is not None) == ("SASL_SSL" in block)
    if how.sasl is not None:
        assert f"sasl.mechanism={how.sasl.name}\n" in block


def test_properties_of_other_clients_are_refused_by_name(tmp_path: Path) -> None:
    assert len(OWN) == len(BLOCKS) - 1 == 8
    (other,) = set(BLOCKS) - set(OWN)
    with pytest.raises(PropertiesError, match="IAMOAuthBearerLoginCallbackHandler has no effect here"):
        read_properties(written(tmp_path, other))
