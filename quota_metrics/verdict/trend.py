"""Lines through a few windows: how a consumer's lag grows, and when a bucket reaches its limit."""

from collections.abc import Sequence
from typing import Final

_LAG_WINDOWS: Final = 3  # of the last ten, for a trend of the lag: clients push every some minutes
_LAG_FIT: Final = 0.5  # coefficient of determination
_USAGE_WINDOWS: Final = 5  # of the last ten, for a trend of usage
_USAGE_FIT: Final = 0.7  # a start-up ramp followed by steady usage is no trend
_REACH_S: Final = 86_400.0  # a trend over minutes does not extend to tomorrow


def lag_per_min(minutes: Sequence[float], records: Sequence[float]) -> float | None:
    """The change of a consumer's lag per minute; None with fewer than three windows, or when the line explains less
    than half. `minutes` are relative to the newest window, so that a trend does not depend on where a range begins."""
    if len(records) < _LAG_WINDOWS:
        return None
    covariance, x_variance, y_variance = _moments(minutes, records)
    is_line = x_variance > 0 and covariance * covariance >= _LAG_FIT * y_variance * x_variance
    return covariance / x_variance if is_line else None


def usage_trend(
    seconds: Sequence[float], usage: Sequence[float], limit: float | None
) -> tuple[float | None, float | None]:
    """Seconds until the bucket reaches its limit if the trend holds, and the change of its usage per minute. None
    without a limit, for what is not in sight, and with fewer than five windows or a poor fit."""
    if len(usage) < _USAGE_WINDOWS:
        return None, None
    covariance, x_variance, y_variance = _moments(seconds, usage)
    slope = covariance / x_variance if x_variance > 0 else 0.0
    if slope != 0 and not covariance * covariance >= _USAGE_FIT * y_variance * x_variance:
        return None, None
    eta_s = max(limit - usage[-1], 0.0) / slope if limit is not None and slope > 0 else None
    return eta_s if eta_s is not None and eta_s <= _REACH_S else None, slope * 60


def _moments(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Covariance, and the variances of `xs` and `ys`."""
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    covariance = x_variance = y_variance = 0.0
    for x, y in zip(xs, ys, strict=True):
        from_mean_x, from_mean_y = x - mean_x, y - mean_y
        covariance += from_mean_x * from_mean_y
        x_variance += from_mean_x * from_mean_x
        y_variance += from_mean_y * from_mean_y
    return covariance / count, x_variance / count, y_variance / count
