"""The brokers' quotas on addresses, decided in one place for all network processes of this gateway.

Brokers behind a gateway see its address instead of the clients', so the gateway applies max.connections.per.ip and
connection_creation_rate to the clients' own addresses.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Literal, TypeAlias

import structlog

from exporters.identity import normal_address
from exporters.model import QuotaKey, UsageSample
from exporters.printable import printable
from headroom.clock import monotonic_ms
from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.config.entities import IP, Rules, address_rates, entity_text
from quota_metrics.measure.connection_quotas import (
    ADMITTED,
    NO_LIMIT,
    AddressLimits,
    ConnectionQuotas,
    address_limits,
    host_names,
    overridden_hosts,
)
from quota_metrics.windows import QuotaWindow
from telemetry.gateway.connection_limits import AddressGate

_KEY = QuotaKey.CONNECTION_CREATION_RATE.value
_RESOLVE_TIMEOUT_S = 5.0
_MOST_HOSTS = 256

log = structlog.get_logger(__name__)

Mode: TypeAlias = Literal["off", "observe", "enforce"]


class AddressQuotas:
    """`gate` is what the gateway asks. `mode`: `observe` measures rates and admits everybody; then nobody counts
    connections, which would not be right."""

    def __init__(
        self, cluster: str, gateway_id: str, window_at: Callable[[int], QuotaWindow], mode: Mode = "enforce"
    ) -> None:
        self.gate = AddressGate(self._ask, self.left)
        self._cluster = cluster
        self._gateway_id = gateway_id
        self._mode = mode
        self._configs: Mapping[int, Mapping[str, str]] = {}
        self._hosts: dict[str, Sequence[str]] = {}  # addresses of host names in the configurations
        self._rates: dict[str | None, float] = {}
        self._limits: dict[int, AddressLimits] = {}
        self._of_unseen = AddressLimits()  # of a broker whose configuration was never read: rates are the cluster's
        self._quotas = ConnectionQuotas(lambda broker_id: self._limits.get(broker_id, self._of_unseen), window_at)

    @property
    def left_out(self) -> int:
        return self._quotas.left_out

    async def follow_facts(self, facts: ClusterFacts) -> None:
        """The brokers' configurations. Host names in them and in quotas are resolved once, as Kafka does; one without
        an address again at the next call."""
        # A broker that restarts is missing from one reading; its limits stay, for clients come back to it at once.
        configs = {**self._configs, **{broker.broker_id: broker.configs for broker in facts.brokers}}
        wanted = host_names(self._rates) if self._mode != "off" else set()
        if self._mode == "enforce":
            wanted.update(*map(overridden_hosts, configs.values()))
        unresolved = islice((name for name in wanted if not self._hosts.get(name)), _MOST_HOSTS)
        resolved = dict(await asyncio.gather(*map(_addresses, unresolved)))
        for name in [name for name, addresses in resolved.items() if not addresses and name not in self._hosts]:
            log.warning("a host with a limit on its connections has no address yet", host=printable(name))
        hosts = {name: addresses for name, addresses in {**self._hosts, **resolved}.items() if name in wanted}
        if (configs, hosts) != (self._configs, self._hosts):
            self._configs, self._hosts = configs, hosts
            self._follow()

    def follow_rules(self, rules: Rules) -> None:
        rates = address_rates(rules)
        if rates != self._rates:
            self._rates = rates
            self._follow()

    def connect(self, address: str, broker_id: int) -> int:
        """See ConnectionQuotas.connect; who only observes admits everybody."""
        verdict = self._quotas.connect(normal_address(address), broker_id, monotonic_ms())
        return verdict if self._mode == "enforce" else ADMITTED

    def left(self, address: str, broker_id: int) -> None:
        """See ConnectionQuotas.disconnect."""
        self._quotas.disconnect(normal_address(address), broker_id)

    def samples(self, at_ms: int) -> list[UsageSample]:
        """Rows of usage: the address stands for the client-id, because connections are counted before there is one."""
        return [
            UsageSample(
                cluster=self._cluster,
                quota_key=_KEY,
                ts_ms=at_ms,
                user="",
                client_id=use.address,
                ip=use.address,
                broker_id=use.broker_id,
                bytes=0,
                rate=use.rate,
                throttle_ms=use.throttle_ms,
                throttled_requests=use.throttled,
                source="gateway",
                gateway_id=self._gateway_id,
                interval_ms=use.interval_ms,
                limit=use.limit,
                limit_known=True,
                matched_entity=entity_text(((IP, use.address if use.is_override else None),)),
                muted_ms=use.muted_ms,
            )
            for use in self._quotas.uses(monotonic_ms())
        ]

    async def _ask(self, address: str, broker_id: int) -> int:
        return self.connect(address, broker_id)

    def _limits_of(self, configs: Mapping[str, str]) -> AddressLimits:
        limits = address_limits(configs, self._rates, self._hosts)
        return limits if self._mode == "enforce" else limits._replace(most=NO_LIMIT, most_of={})

    def _follow(self) -> None:
        if self._mode != "off":
            self._of_unseen = self._limits_of({})
            self._limits = {broker_id: self._limits_of(configs) for broker_id, configs in self._configs.items()}
        self.gate.is_limited = any(limits.is_limited for limits in (self._of_unseen, *self._limits.values()))


async def _addresses(name: str) -> tuple[str, Sequence[str]]:
    loop = asyncio.get_running_loop()
    try:
        infos = await asyncio.wait_for(loop.getaddrinfo(name, None), _RESOLVE_TIMEOUT_S)
    except (OSError, UnicodeError, TimeoutError):
        return name, ()
    return name, sorted({str(address[0]) for *_, address in infos})
