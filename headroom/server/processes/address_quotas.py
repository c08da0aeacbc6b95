"""The brokers' quotas on addresses, decided in one place for all network processes of this gateway.

Brokers behind a gateway see its address instead of the clients', so the gateway applies max.connections.per.ip and
connection_creation_rate to the clients' own addresses.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache

from exporters.model import QuotaKey, UsageSample
from headroom.clock import now_ms
from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.config.entities import IP, Rules
from quota_metrics.measure.connection_quotas import (
    AddressLimits,
    AddressUse,
    ConnectionQuotas,
    address_limits,
    normal_address,
)
from quota_metrics.measure.quota_in_force import entity_text
from quota_metrics.windows import QuotaWindow
from telemetry.gateway.address_gate import AddressGate

_KEY = QuotaKey.CONNECTION_CREATION_RATE.value
_NONE = AddressLimits()


class AddressQuotas:
    """`gate` is what the gateway asks; `changed` is called when it begins or ceases to be asked."""

    def __init__(
        self, cluster: str, gateway_id: str, window_at: Callable[[int], QuotaWindow], *, enforced: bool
    ) -> None:
        self.gate = AddressGate(self._ask, self.left)
        self.changed: Callable[[], None] = lambda: None
        self._cluster = cluster
        self._gateway_id = gateway_id
        self._enforced = enforced
        self._configs: Mapping[int, Mapping[str, str]] = {}
        self._rates: dict[str | None, float] = {}
        self._limits: dict[int, AddressLimits] = {}
        self._quotas = ConnectionQuotas(lambda broker_id: self._limits.get(broker_id, _NONE), window_at)

    def follow_facts(self, facts: ClusterFacts) -> None:
        """The brokers' configurations."""
        # A broker that restarts is missing from one reading; its limits stay, for clients come back to it at once.
        self._configs = {**self._configs, **{broker.broker_id: broker.configs for broker in facts.brokers}}
        self._follow()

    def follow_rules(self, rules: Rules) -> None:
        """The cluster's quotas, those of addresses among them."""
        rates = {
            entity[0][1]: values[_KEY]
            for entity, values in rules.items()
            if len(entity) == 1 and entity[0][0] == IP and math.isfinite(values.get(_KEY, math.nan))
        }
        if rates != self._rates:
            self._rates = rates
            self._follow()

    def connect(self, address: str, broker_id: int) -> int:
        """See ConnectionQuotas.connect."""
        return self._quotas.connect(normal_address(address), broker_id, now_ms())

    def left(self, address: str, broker_id: int) -> None:
        """See ConnectionQuotas.disconnect."""
        self._quotas.disconnect(normal_address(address), broker_id)

    def samples(self, at_ms: int) -> list[UsageSample]:
        """Rows of usage: the address stands for the client-id, because connections are counted before there is one."""
        return [self._row(use, at_ms) for use in self._quotas.uses(at_ms)]

    def _row(self, use: AddressUse, at_ms: int) -> UsageSample:
        entity = entity_text(((IP, use.address if use.is_override else None),))
        return UsageSample(
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
            matched_entity=entity,
            bucket_user="",
            bucket_client_id=use.address,
            muted_ms=use.muted_ms,
        )

    async def _ask(self, address: str, broker_id: int) -> int:
        return self.connect(address, broker_id)

    def _follow(self) -> None:
        if self._enforced:
            self._limits = {
                broker_id: address_limits(configs, self._rates, _addresses)
                for broker_id, configs in self._configs.items()
            }
        is_limited = any(limits.is_limited for limits in self._limits.values())
        if is_limited != self.gate.is_limited:
            self.gate.is_limited = is_limited
            self.changed()


@lru_cache(maxsize=1024)
def _name_addresses(name: str) -> tuple[str, ...]:
    try:
        return tuple({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    except OSError:
        return ()


def _addresses(name: str) -> list[str]:
    """Of a host name in max.connections.per.ip.overrides; looked up once."""
    return [name] if normal_address(name) != name or _is_address(name) else list(_name_addresses(name))


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name
