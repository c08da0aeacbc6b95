"""Names the extra that installs a missing module."""

from __future__ import annotations

_EXTRA_OF = {
    "chdb": "embedded",
    "altair": "spark",
    "pandas": "spark",
    "py4j": "spark",
    "pyspark": "spark",
    "vl_convert": "spark",
    "confluent_kafka": "demo",
}


def missing_extra(exc: ModuleNotFoundError) -> str | None:
    """The advice for a missing optional dependency; None when the module belongs to no extra."""
    module = (exc.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    return extra and f"{module} is not installed: pip install 'headroom[{extra}]'"
