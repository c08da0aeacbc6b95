"""What an answer warns of: record batches that a new limit keeps from consumers."""

import pytest

from headroom.cli.output.quota_plan import PlanReport
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.config.quota_plan import QuotaPlan
from quota_metrics.what_if.answer import Coverage, WhatIfAnswer, WhatIfQuestion
from quota_metrics.what_if.document import document


@pytest.mark.parametrize(
    ("key", "values", "window_s", "largest"),
    [
        ("consumer_byte_rate", [None, 50_000.0, 3700.0], 11.0, 40700),
        ("consumer_byte_rate", [95_300.0], 11.0, 1048300),
        ("consumer_byte_rate", [95_400.0], 11.0, None),
        ("consumer_byte_rate", [95_400.0], 5.0, 477000),
        ("producer_byte_rate", [3700.0], 11.0, None),
    ],
)
def test_batches_that_are_too_large(key: str, values: list[float | None], window_s: float, largest: int | None) -> None:
    question = WhatIfQuestion([QuotaAlteration(entity_of({"user": "u"}), {key: value}) for value in values], 0, 60_000)
    answer = WhatIfAnswer(question, [], 0, Coverage(0, 0, 1.0), 0, window_s)
    warning, summary = document(answer)["warning"], PlanReport(QuotaPlan("", [], []), None, answer=answer).summary
    assert f"record batches above {largest} bytes would never be delivered" in warning or not (largest or warning)
    assert (warning in summary) == bool(largest)
