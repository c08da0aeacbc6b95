"""What each client uses at each broker, from the requests and answers that pass, as the broker's window rate. Sans-I/O.

The rules of what counts are KafkaApis': Produce is charged with the whole request, Fetch with the response, and a
response that announces a throttle time carries no records and was un-recorded by the broker (ClientQuotaManager.
unrecordQuotaSensor). Of requests that have no byte rate only the throttling can be seen from outside.
"""

from __future__ import annotations

from exporters.model import QuotaKey, UsageSample
from quota_metrics.windows import Rate

PRODUCE, FETCH, SHARE_FETCH = 0, 1, 78

# Plain strings: the hash of an enum's member is a Python call.
_PRODUCER = QuotaKey.PRODUCER_BYTE_RATE.value
_CONSUMER = QuotaKey.CONSUMER_BYTE_RATE.value
_REQUEST = QuotaKey.REQUEST_PERCENTAGE.value
_MUTATION = QuotaKey.CONTROLLER_MUTATION_RATE.value
# CreateTopics, DeleteTopics, CreatePartitions: throttled by the controller's token bucket (KIP-599).
_THROTTLED_BY = {19: _MUTATION, 20: _MUTATION, 37: _MUTATION}

_NAME_CHARS_PER_CLIENT = 256  # on average: a client that invents names of 32 kB fills the table sooner


class UsageMeter:
    """Usage and throttling per (quota key, user, client-id, broker) of one cluster.

    Bounded: at most `max_clients` at a time, and what came from others is counted in `left_out`. A client leaves
    when its windows are empty, which loses nothing: the windows of a newcomer measure the same.
    """

    def __init__(self, cluster: str, *, samples: int = 11, window_ms: int = 1000, max_clients: int = 50_000) -> None:
        self.cluster = cluster
        self.left_out = 0  # exchanges of clients for whom there was no room
        self._samples = samples
        self._window_ms = window_ms
        self._max_clients = max_clients
        self._max_name_chars = max_clients * _NAME_CHARS_PER_CLIENT
        self._name_chars = 0
        self._clients: dict[tuple[str, str, str, int], _Usage] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def clients(self) -> set[tuple[str, str]]:
        """User and client-id of those that are measured."""
        return {(user, client_id) for _quota_key, user, client_id, _broker_id in self._clients}

    def exchange(
        self,
        *,
        principal: str,
        client_id: str,
        address: str,
        broker_id: int,
        api_key: int,
        request_bytes: int,
        response_bytes: int,
        throttle_ms: int,
        now_ms: int,
    ) -> None:
        """One request that was answered, or an acks=0 Produce (response_bytes 0), which never is.

        `request_bytes` and `response_bytes` are frames without their 4-byte length. `principal` is the user's name,
        `address` is for quotas on ip, of which none has to do with bytes.
        """
        counted_bytes = 0
        if api_key == PRODUCE:
            quota_key, counted_bytes = _PRODUCER, request_bytes
        elif api_key in (FETCH, SHARE_FETCH):
            quota_key = _CONSUMER
            if throttle_ms <= 0:
                counted_bytes = response_bytes
        elif throttle_ms > 0:
            quota_key = _THROTTLED_BY.get(api_key, _REQUEST)
        else:
            return
        client = (quota_key, principal, client_id, broker_id)
        usage = self._clients.get(client) or self._admit(client)
        if usage is None:
            self.left_out += 1
        else:
            usage.add(counted_bytes, throttle_ms, now_ms)

    def samples(self, now_ms: int) -> list[UsageSample]:
        """One row per client that was active since the last call or whose rate is still above 0.

        The rate of request_percentage and controller_mutation_rate is 0: neither thread time nor partitions show on
        the wire, throttle times do.
        """
        rows = []
        emptied = []
        for client, usage in self._clients.items():
            rate = usage.rate.measure(now_ms)
            if usage.active or rate > 0:
                rows.append(self._row(client, usage, rate, now_ms))
                usage.begin_interval()
            if now_ms - usage.last_ms >= self._samples * self._window_ms:
                emptied.append(client)
        for client in emptied:
            self._forget(client)
        return rows

    def _row(self, client: tuple[str, str, str, int], usage: _Usage, rate: float, now_ms: int) -> UsageSample:
        quota_key, user, client_id, broker_id = client
        return UsageSample(
            cluster=self.cluster,
            quota_key=quota_key,
            ts_ms=now_ms,
            user=user,
            client_id=client_id,
            ip="",
            broker_id=broker_id,
            bytes=usage.bytes,
            rate=rate,
            throttle_ms=usage.throttle_ms,
            throttled_requests=usage.throttled_requests,
            source="gateway",
        )

    def _admit(self, client: tuple[str, str, str, int]) -> _Usage | None:
        chars = len(client[1]) + len(client[2])
        if len(self._clients) >= self._max_clients or self._name_chars + chars > self._max_name_chars:
            return None
        self._name_chars += chars
        usage = self._clients[client] = _Usage(Rate(self._samples, self._window_ms))
        return usage

    def _forget(self, client: tuple[str, str, str, int]) -> None:
        del self._clients[client]
        self._name_chars -= len(client[1]) + len(client[2])


class _Usage:
    """One client's window, and its interval so far."""

    __slots__ = ("active", "bytes", "last_ms", "rate", "throttle_ms", "throttled_requests")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.last_ms = 0
        self.begin_interval()

    def begin_interval(self) -> None:
        self.active = False
        self.bytes = 0
        self.throttle_ms = 0
        self.throttled_requests = 0

    def add(self, counted_bytes: int, throttle_ms: int, now_ms: int) -> None:
        self.active = True
        self.last_ms = now_ms
        self.bytes += counted_bytes
        # Also when nothing is counted: the broker recorded and un-recorded, which keeps the sample alive.
        self.rate.record(counted_bytes, now_ms)
        if throttle_ms > 0:
            self.throttled_requests += 1
            if throttle_ms > self.throttle_ms:
                self.throttle_ms = throttle_ms
