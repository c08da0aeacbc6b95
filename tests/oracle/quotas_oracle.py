"""Compares our quota rules with Kafka's own classes on random configurations, records and measurements, digit by digit.

Subjects: `resolution` (ClientQuotaManager: limits, metric tags), `rate` (Rate over SampledStat),
`token_bucket` (TokenBucket), `throttle` (QuotaUtils), `connections` (ConnectionQuotas:
which connections of addresses are admitted, delayed and refused), `mutations` (mutations_oracle.py).
"""

import math
import random
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from quota_metrics.config.entities import Entity, entity_of, sanitize
from quota_metrics.config.resolution import Resolver
from quota_metrics.measure.connection_quotas import ADMITTED, NO_LIMIT, TOO_MANY, ConnectionQuotas, address_limits
from quota_metrics.windows import UNLIMITED, QuotaWindow, Rate, TokenBucket, bounded_throttle_time_ms, throttle_time_ms
from tests.oracle.mutations_oracle import run_mutations
from tests.oracle.subjects import Finding, Subject, of_cases, run_subjects

KEY = "producer_byte_rate"
NAMES = ["a", "b", "a b", "ü*~", "%41+x.y-z_@R", "<default>", "CN=x,O=y", "absent"]
CASES_PER_MANAGER = 50  # its sensors stay for an hour
PAIRS_PER_CASE = 5
STEPS = 40


def resolution_case(jvm: Jvm, rng: random.Random, manager: Any) -> Finding:
    """One random configuration, set rule by rule, and some clients; all rules are removed at the end."""
    names = rng.sample(NAMES, rng.randrange(1, 4))
    rules = {_entity(rng, names): float(rng.randrange(1, 10**6)) for _ in range(rng.randrange(0, 9))}
    quota = jvm.classes.org.apache.kafka.common.metrics.Quota
    optional = jvm.classes.java.util.Optional
    for entity, value in rules.items():
        manager.updateQuota(*java_entity(jvm, entity), optional.of(quota(value, True)))
    resolver = Resolver({entity: {KEY: value} for entity, value in rules.items()})
    differences = []
    for _ in range(PAIRS_PER_CASE):
        user, client_id = rng.choice([*names, "other", ""]), rng.choice([*names, "other", ""])
        theirs, ours = their_quota(jvm, manager, user, client_id), _our_quota(resolver, user, client_id)
        if theirs != ours:
            differences.append(f"{rules} for {(user, client_id)}: Kafka {theirs}, ours {ours}")
    for entity in rules:
        manager.updateQuota(*java_entity(jvm, entity), optional.empty())
    return differences


def _entity(rng: random.Random, names: list[str]) -> Entity:
    kinds = rng.choice([("user",), ("client-id",), ("user", "client-id")])
    return entity_of({kind: rng.choice([*names, None, None, ""]) for kind in kinds})


def java_entity(jvm: Jvm, entity: Entity) -> tuple[Any, Any]:
    """User and client-id of the entity, as the arguments of updateQuota."""
    optional = jvm.classes.java.util.Optional
    kinds = jvm.classes.org.apache.kafka.server.quota.ClientQuotaManager
    names = dict(entity)
    user, client_id = optional.empty(), optional.empty()
    if "user" in names:
        name = names["user"]
        user = optional.of(kinds.DEFAULT_USER_ENTITY if name is None else kinds.UserEntity(sanitize(name)))
    if "client-id" in names:
        name = names["client-id"]
        client_id = optional.of(kinds.DEFAULT_USER_CLIENT_ID if name is None else kinds.ClientIdEntity(name))
    return user, client_id


def their_quota(jvm: Jvm, manager: Any, user: str, client_id: str) -> tuple[float, dict[str, str]]:
    """The limit (UNLIMITED without a quota) and the metric tags, the user sanitized in them."""
    kafka = jvm.classes.org.apache.kafka
    session = kafka.network.Session(
        kafka.common.security.auth.KafkaPrincipal("User", user), jvm.classes.java.net.InetAddress.getLoopbackAddress()
    )
    tags = manager.getOrCreateQuotaSensors(session, client_id).metricTags()
    return manager.quota(user, client_id).bound(), {str(tag): str(tags[tag]) for tag in tags}


def _our_quota(resolver: Resolver, user: str, client_id: str) -> tuple[float, dict[str, str]]:
    tags = dict(resolver.metric_tags(KEY, user, client_id))
    resolution = resolver.resolve(user, client_id).get(KEY)
    rule = resolver.limit_of_tags(KEY, tags)
    limit = UNLIMITED if resolution is None else resolution.value
    if resolution is not None and (rule != resolution[1::-1] or tags != resolution.metric_tags):
        return math.nan, {"tags lead back to": str(rule)}
    return limit, tags


def run_resolution(jvm: Jvm, seed: int, cases: int) -> Finding:
    differences = []
    kafka = jvm.classes.org.apache.kafka
    for first in range(0, cases, CASES_PER_MANAGER):
        manager = kafka.server.quota.ClientQuotaManager(
            kafka.server.config.ClientQuotaManagerConfig(),
            kafka.common.metrics.Metrics(),
            kafka.server.quota.QuotaType.PRODUCE,
            kafka.common.utils.Time.SYSTEM,
            "",
        )
        for number in range(first, min(first + CASES_PER_MANAGER, cases)):
            rng = random.Random(f"resolution/{seed}/{number}")
            differences += [f"case {number}: {what}" for what in resolution_case(jvm, rng, manager)]
        manager.shutdown()
    return differences


def _times(rng: random.Random, window_ms: int, start_ms: int) -> Callable[[], int]:
    """A clock that advances in steps of all sizes, often exactly to a window's edge, and rarely goes back."""
    now_ms = start_ms
    steps = [0, 0, 1, window_ms - 1, window_ms, window_ms + 1, 2 * window_ms, 12 * window_ms, 100 * window_ms]

    def step() -> int:
        nonlocal now_ms
        if rng.random() < 0.5:
            now_ms += rng.choice(steps)
        elif rng.random() < 0.97:
            now_ms += rng.randrange(window_ms)
        else:
            now_ms -= rng.randrange(window_ms)
        return now_ms

    return step


def _value(rng: random.Random) -> float:
    whole = float(rng.randrange(-1000, 10**7))
    return rng.choice([0.0, 1.0, whole, whole, rng.uniform(-10.0, 1e6), rng.random() * 1e-9, 1e15, 0.1])


def _config(jvm: Jvm, samples: int, window_ms: int, bound: float | None) -> Any:
    kafka = jvm.classes.org.apache.kafka
    config = kafka.common.metrics.MetricConfig().samples(samples)
    config.timeWindow(window_ms, jvm.classes.java.util.concurrent.TimeUnit.MILLISECONDS)
    if bound is not None:
        config.quota(kafka.common.metrics.Quota(bound, True))
    return config


def rate_case(jvm: Jvm, rng: random.Random) -> Finding:
    """One Rate through records and measurements; throttle times at each."""
    samples, window_ms = rng.choice([1, 2, 3, 11]), rng.choice([1, 10, 1000, 30_000])
    config = _config(jvm, samples, window_ms, None)
    theirs, ours = jvm.classes.org.apache.kafka.common.metrics.stats.Rate(), Rate(samples, window_ms)
    step = _times(rng, window_ms, rng.choice([0, 1_700_000_000_000]))
    for _ in range(STEPS):
        now_ms = step()
        if rng.random() < 0.6:
            value = _value(rng)
            theirs.record(config, value, now_ms)
            ours.record(value, now_ms)
        else:
            measured = (theirs.measure(config, now_ms), theirs.windowSize(config, now_ms))
            if measured != (ours.measure(now_ms), ours.elapsed_ms(now_ms)):
                return [f"{samples} x {window_ms} ms at {now_ms}: Kafka {measured}, ours {ours.measure(now_ms)}"]
    return []


def token_bucket_case(jvm: Jvm, rng: random.Random) -> Finding:
    """One TokenBucket through records, measurements and changes of its quota."""
    samples, window_ms = rng.choice([1, 2, 11]), rng.choice([10, 1000, 2000])
    bound = rng.choice([None, 5.0, 10.0, 0.1, rng.uniform(0.01, 1000.0)])
    config = _config(jvm, samples, window_ms, bound)
    theirs = jvm.classes.org.apache.kafka.common.metrics.stats.TokenBucket()
    ours = TokenBucket(samples, window_ms, bound)
    step = _times(rng, window_ms, rng.choice([0, 1_700_000_000_000]))
    for _ in range(STEPS):
        now_ms = step()
        if rng.random() < 0.5:
            value = rng.choice([1.0, 5.0, 60.0, -60.0, rng.uniform(-100.0, 1000.0)])
            theirs.record(config, value, now_ms)
            ours.record(value, now_ms)
        elif bound is not None and rng.random() < 0.1:
            ours.quota = rng.uniform(0.01, 1000.0)
            config = _config(jvm, samples, window_ms, ours.quota)
        left = theirs.measure(config, now_ms)
        if left != ours.measure(now_ms):
            return [f"{samples} x {window_ms} ms, quota {ours.quota}: Kafka {left}, ours {ours.measure(now_ms)}"]
    return []


def throttle_case(jvm: Jvm, rng: random.Random) -> Finding:
    """The three throttle times of one violation of a random bound."""
    kafka = jvm.classes.org.apache.kafka
    metrics = kafka.common.metrics
    bound, observed = abs(_value(rng)) or 0.5, _value(rng)
    samples, window_ms, now_ms, max_ms = rng.choice([2, 11]), rng.choice([1000, 30_000]), rng.randrange(10**6), 1000
    config = _config(jvm, samples, window_ms, bound)
    name = metrics.Metrics().metricName("n", "g")

    def violation(stat: Any) -> Any:
        metric = metrics.KafkaMetric(jvm.classes.java.lang.Object(), name, stat, config, kafka.common.utils.Time.SYSTEM)
        return metrics.QuotaViolationException(metric, observed, bound)

    theirs_rate, ours_rate = metrics.stats.Rate(), Rate(samples, window_ms)
    theirs_rate.record(config, observed, now_ms)
    ours_rate.record(observed, now_ms)
    now_ms += rng.randrange(20 * window_ms)
    of_rate = violation(theirs_rate)
    elapsed_ms = ours_rate.elapsed_ms(now_ms)
    theirs = (
        kafka.server.quota.QuotaUtils.throttleTime(of_rate, now_ms),
        kafka.server.quota.QuotaUtils.boundedThrottleTime(of_rate, max_ms, now_ms),
    )
    ours = (
        throttle_time_ms(observed, bound, elapsed_ms),
        bounded_throttle_time_ms(observed, bound, elapsed_ms, max_ms),
    )
    return [] if theirs == ours else [f"{observed} over {bound}: Kafka {theirs}, ours {ours}"]


ADDRESSES = ["127.0.0.1", "127.0.0.2", "10.1.2.3", "::1", "2001:db8::7"]
CONNECTIONS = 60


def connections_case(jvm: Jvm, rng: random.Random) -> Finding:
    """One broker's limits of addresses, which change meanwhile, and connections that come and go."""
    most, of_one = rng.choice([2, 5, 1000, NO_LIMIT]), rng.randrange(0, 5)
    samples, size_s = rng.choice([(2, 1), (11, 1), (3, 2)])
    configs = {"max.connections.per.ip": str(most), "max.connections.per.ip.overrides": f"127.0.0.2:{of_one}"}
    rates: dict[str | None, float] = {}
    ours = ConnectionQuotas(lambda _: address_limits(configs, rates), lambda _: QuotaWindow(samples, size_s * 1000))
    theirs = _KafkasConnections(jvm, configs, samples, size_s)
    step = _times(rng, 1000, 1_700_000_000_000)
    admitted: list[str] = []
    with closing(theirs):
        for number in range(CONNECTIONS):
            now_ms = step()
            if rng.random() < 0.1:
                address = rng.choice([None, *ADDRESSES])
                rate = rng.choice([None, 1, 2, 20])
                rates.pop(address, None)
                rates |= {} if rate is None else {address: float(rate)}
                theirs.limit_rate(address, rate)
            if admitted and rng.random() < 0.3:
                gone = admitted.pop(rng.randrange(len(admitted)))
                ours.disconnect(gone, 1)
                theirs.disconnect(gone)
                continue
            address = rng.choice(ADDRESSES)
            decided, expected = ours.connect(address, 1, now_ms), theirs.connect(address, now_ms)
            if decided != expected:
                return [
                    f"{configs} {rates} {samples} x {size_s} s, {number} {address}: Kafka {expected}, ours {decided}"
                ]
            admitted += [address] if decided == ADMITTED else []
    return []


class _KafkasConnections:
    """kafka.network.ConnectionQuotas with a clock of ours, as SocketServer uses it."""

    def __init__(self, jvm: Jvm, configs: dict[str, str], samples: int, size_s: int) -> None:
        java, kafka = jvm.classes.java, jvm.classes.org.apache.kafka
        properties = {
            "process.roles": "broker",
            "node.id": "1",
            "controller.quorum.voters": "2@127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "quota.window.num": str(samples),
            "quota.window.size.seconds": str(size_s),
            **configs,
        }
        config = jvm.classes.kafka.server.KafkaConfig(jvm.properties(properties))
        self._clock = java.util.concurrent.atomic.AtomicReference(0)
        clock = java.beans.EventHandler.create(
            java.lang.Class.forName("org.apache.kafka.common.utils.Time"), self._clock, "get"
        )
        self._metrics = kafka.common.metrics.Metrics()
        self._quotas = jvm.classes.kafka.network.ConnectionQuotas(config, clock, self._metrics)
        self._listener = kafka.common.network.ListenerName("PLAINTEXT")
        self._quotas.addListener(config, self._listener)
        self._option = jvm.classes.scala.Option.apply
        self._address = java.net.InetAddress.getByName
        throttled = java.lang.Class.forName("org.apache.kafka.network.ConnectionThrottledException")
        self._throttle_ms = throttled.getField("throttleTimeMs").get

    def limit_rate(self, address: str | None, rate: int | None) -> None:
        where = self._option(None if address is None else self._address(address))
        self._quotas.updateIpConnectionRateQuota(where, self._option(rate))

    def connect(self, address: str, now_ms: int) -> int:
        self._clock.set(now_ms)
        try:
            self._quotas.inc(self._listener, self._address(address), None)
        except Py4JJavaError as exc:
            error = exc.java_exception
            match error.getClass().getSimpleName():
                case "TooManyConnectionsException":
                    self.disconnect(address)  # SocketServer closes it at once
                    return TOO_MANY
                case "ConnectionThrottledException":
                    return int(self._throttle_ms(error))
                case _:
                    raise
        return ADMITTED

    def disconnect(self, address: str) -> None:
        self._quotas.dec(self._listener, self._address(address))

    def close(self) -> None:
        self._quotas.close()
        self._metrics.close()


SUBJECTS: dict[str, Subject] = {
    "resolution": run_resolution,
    "rate": of_cases(rate_case),
    "token_bucket": of_cases(token_bucket_case),
    "throttle": of_cases(throttle_case),
    "connections": of_cases(connections_case),
    "mutations": run_mutations,
}


if __name__ == "__main__":
    sys.exit(1 if run_subjects(SUBJECTS, int(sys.argv[1]), int(sys.argv[2])) else 0)
