"""Which pushes and metrics are forwarded: one subscription's `metrics` and `match`. Sans-I/O."""

from exporters.model import OTLP_LISTENERS, Push
from telemetry.subscriptions.kip714_rules import attributes_of
from telemetry.subscriptions.subscription import (
    ALL_METRICS,
    EXTRA_MATCH_KEYS,
    Subscription,
    is_match,
    parse_subscription,
)
from telemetry.wire.errors import InvalidSubscriptionError

_OTLP = frozenset(OTLP_LISTENERS.values())


class ForwardSelection:
    """`metrics`: prefixes separated by commas, `*` for all. `match`: key=pattern pairs, as in subscriptions."""

    def __init__(self, metrics: str = ALL_METRICS, match: str = "") -> None:
        """Raises ValueError if a value is not valid in a subscription."""
        try:
            self._subscription: Subscription = parse_subscription(
                "forward", {"metrics": metrics, "match": match}, EXTRA_MATCH_KEYS
            )
        except InvalidSubscriptionError as exc:
            raise ValueError(str(exc)) from exc
        self._prefixes = ("",) if ALL_METRICS in self._subscription.metrics else self._subscription.metrics

    def takes_push(self, push: Push) -> bool:
        """Whether a push is forwarded. Pushes over OTLP are not: their sender may be the endpoint itself."""
        if push.connection.listener in _OTLP or not push.payload:
            return False
        return is_match(self._subscription, attributes_of(push.client_instance_id, push.connection, push.client_id))

    def takes_metric(self, name: str) -> bool:
        """Whether one of the prefixes matches the metric name."""
        return name.startswith(self._prefixes)
