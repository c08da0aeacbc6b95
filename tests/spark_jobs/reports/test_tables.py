"""Reports that are tables of rows, and the file of quota-suggest, which the parser of `headroom quotas plan` reads."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import entity_of_names
from spark_jobs.reports.suggestions import REPORT, to_yaml
from spark_jobs.reports.tables import FORECAST, FORECAST_COLUMNS, TEAMS
from tests.kit.kafka.quota_files import quotas_of

PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
MOMENT = datetime(2026, 11, 20, 10, tzinfo=UTC)


def row(user: str, key: str = PRODUCE, limit: float | None = 1000.0, **more: Any) -> dict[str, Any]:
    times = dict.fromkeys(("made_at", "from_time", "to_time"), MOMENT)
    said = {"kind": "own", "confidence": "low", "reason": "it wants 800 B/s"}
    return {
        "cluster": "c",
        "user": user,
        "client_id": "",
        "quota_key": key,
        "suggested_limit": limit,
        "replay_client_ids": [],
        "replay_before_s": [],
        "replay_after_s": [],
        **times,
        **said,
        **more,
    }


def test_keys_of_an_entity_are_one_entry_and_findings_are_none() -> None:
    rows = [
        row(DEFAULT_ENTITY, kind="default"),
        row("a", limit=5000.0),
        row("b", kind="too-high"),
        row("c", kind="never-used", limit=None),
        row("unnameable", limit=None),
        row(DEFAULT_ENTITY, CONSUME, 2000.0, kind="default"),
    ]
    default, own = quotas_of(to_yaml(rows))
    assert default.values == {PRODUCE: 1000.0, CONSUME: 2000.0}
    assert default.comment == (
        "producer_byte_rate, confidence low: it wants 800 B/s; consumer_byte_rate, confidence low: it wants 800 B/s"
    )
    assert (own.entity, own.values) == ((("user", "a"),), {PRODUCE: 5000.0})


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name != DEFAULT_ENTITY)


@given(st.lists(st.tuples(NAMES, NAMES), unique=True, max_size=5), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_name_and_reason_is_read_back(names: list[tuple[str, str]], said: str) -> None:
    rows = [row(user, client_id=client_id, reason=said * 50, cluster=said) for user, client_id in names]
    quotas = quotas_of(to_yaml(rows))
    assert [quota.entity for quota in quotas] == [entity_of_names(*name) for name in names]
    assert all(quota.values == {PRODUCE: 1000.0} for quota in quotas)


def test_a_file_is_of_one_cluster() -> None:
    with pytest.raises(ValueError, match="a file is of one cluster, choose one by --cluster: c, d"):
        to_yaml([row("a"), row("b", cluster="d")])


def test_nothing_to_suggest_is_an_empty_file_and_says_so_in_a_table() -> None:
    assert quotas_of(to_yaml([])) == []
    assert [line.plain for line in REPORT.to_table([], 80)][1:] == [
        "No client has usage of a quota that could be suggested."
    ]


def test_limits_have_units_and_small_shares_are_not_0() -> None:
    rows = [
        row("a", limit=180_000.0, throttled_share=0.0004),
        row("b", "request_percentage", 12.5, throttled_share=None),
    ]
    heading, first, second = (line.plain for line in REPORT.to_table(rows, None)[1:])
    assert ["suggested limit" in heading, "180.0 kB/s" in first, "0.04 %" in first, "12.5 %" in second] == [True] * 4
    assert "180.0 kB/s" in REPORT.to_html(rows)
    team = {"team": "t", "share": 0.25, "peak_bytes_per_s": 1.5e6, "capacity_share": None}
    line = TEAMS.to_table([team], None)[-1].plain
    assert [text.strip() for text in line.split("  ") if text.strip(" -")] == ["t", "25.0 %", "1.5 MB/s"]


def test_page_says_of_which_usage_it_is() -> None:
    made = "<p>Made 2026-11-20 10:00 UTC, of the usage from 2026-11-20 05:00 UTC to 2026-11-20 10:00 UTC.</p>"
    assert made in REPORT.to_html([row("a", from_time=datetime(2026, 11, 20, 5, tzinfo=UTC))])
    assert "<p>Made" not in REPORT.to_html([])


def test_reason_replay_and_command_stand_below_their_row() -> None:
    command = "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type users --entity-name batch"
    replayed: dict[str, Any] = {
        "replay_client_ids": ["<b>", ""],
        "replay_before_s": [4140.76, 2.0],
        "replay_after_s": [0.0, 0.5],
    }
    rows = [{**row("a", command=command), **replayed}, row("b", command="")]
    page = REPORT.to_html(rows)
    assert page.count("<tbody>") == 2
    replay_sentence = (
        "{} was throttled for 1.2 h, with the suggested limit for 0 ms; a client without an id was throttled for 2.0 s"
    )
    below = re.findall(r'<div class="below">(.*)</div>', page)
    assert below == [
        "it wants 800 B/s",
        f"{replay_sentence.format('&lt;b&gt;')}, with the suggested limit for 500 ms",
        f"<code>{command}</code>",
        "it wants 800 B/s",
    ]
    assert replay_sentence.format("<b>") in "".join(line.plain for line in REPORT.to_table(rows, None))


def forecast(**changed: Any) -> dict[str, Any]:
    row = dict.fromkeys(FORECAST_COLUMNS.names) | {"cluster": "c", "quota_key": "producer_byte_rate", "user": "batch"}
    row |= {
        "client_id": "",
        "broker_id": 1,
        "made_at": MOMENT,
        "utilization": 0.8174,
        "confidence": 1.0,
        "reason": "why",
    }
    return {**row, "p10": [], "p50": [], "p90": [], **changed}


def test_shares_are_percentages_and_times_have_their_zone() -> None:
    (_, _, line) = [text.plain for text in FORECAST.to_table([forecast(hits_limit_at=MOMENT)], None)]
    assert re.split(r"\s{2,}", line) == [
        "c", "producer_byte_rate", "batch", "-", "1", "81.7 %", "2026-11-20 10:00 UTC", "100.0 %", "-", "why",
    ]  # fmt: skip
    page = FORECAST.to_html([forecast(hits_limit_at=MOMENT)])
    assert "<p>Made 2026-11-20 10:00 UTC.</p>" in page
    assert '<td class="time">2026-11-20 10:00 UTC</td><td class="number">100.0 %</td><td class="number">-</td>' in page
    assert re.findall(r'<div class="below">(.*)</div>', page) == ["why"]
