"""Usage of each client at each broker, from the requests and responses that pass through the gateway. Sans-I/O.

What counts follows KafkaApis: a Produce request counts with its whole size, a Fetch with its response. A Fetch response
that announces a throttle time carries no records and was un-recorded by the broker (ClientQuotaManager.
unrecordQuotaSensor); one of a broker that throttles what comes after it (Redpanda, Event Hubs) carries records, and
counts. Requests that change topics count with their partitions, at the controller, which meters them.
Of other requests only the throttling is visible on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from exporters.identity import is_shortened, payer_of
from exporters.model import CONTROLLER, Changes, ExchangeValues, QuotaKey, UsageSample
from quota_metrics.measure.places_by_payer import CountByPayer, PlacesByPayer
from quota_metrics.measure.quota_in_force import QuotaInForce, QuotaOf, unknown_quota
from quota_metrics.measure.throttle_times import ImpliedLimit, MutedTime
from quota_metrics.measure.topic_partitions import TopicPartitions
from quota_metrics.verdict.thresholds import MUTED_LOOKBACK_MS, UNEXPLAINED
from quota_metrics.windows import QuotaWindow

_EMPTY_FETCH_BYTES: Final = 64  # a Fetch or ShareFetch response without a topic has half as many
PRODUCE: Final = 0
FETCH: Final = 1
SHARE_FETCH: Final = 78

# Plain strings, because hashing an enum member is a Python call.
_PRODUCER: Final = QuotaKey.PRODUCER_BYTE_RATE.value
_CONSUMER: Final = QuotaKey.CONSUMER_BYTE_RATE.value
_REQUEST: Final = QuotaKey.REQUEST_PERCENTAGE.value
_MUTATION: Final = QuotaKey.CONTROLLER_MUTATION_RATE.value
# CreateTopics, DeleteTopics, CreatePartitions: throttled by the controller's token bucket (KIP-599).
MUTATING: Final = (19, 20, 37)

MAX_CLIENTS: Final = 50_000  # 10,000 clients that produce to and fetch from two brokers each have room
_NAME_CHARS_PER_CLIENT: Final = 256  # on average: a client that invents names of 32 kB reaches the limit sooner
_MAX_LATE_MS: Final = 2_000  # other network processes report each 100 ms: rows do not go on long after a mute
_MAX_UNDECIDED: Final = 1_000

# A byte rate further below its limit has not caused a throttle time. The remaining tenth covers requests in flight,
# which the broker has counted already.
_BELOW_LIMIT: Final = 0.9

_KAFKAS_DEFAULT: Final = QuotaWindow()

_Client: TypeAlias = tuple[str, str, str, int]  # quota key, user, client-id, broker
Bucket: TypeAlias = tuple[str, str, str, int]  # quota key, user and client-id of the metric tags, broker


class UsageMeter:
    """Usage and throttling per (quota key, user, client-id, broker) of one cluster.

    Bounded: at most `max_clients` at a time. A further client takes the place of one whose payer holds most; if that is
    its own payer, it is left out. What was left out is counted by payer. A client is forgotten when its window is
    empty, which loses nothing: an empty window measures the same as a new one.
    """

    def __init__(
        self,
        cluster: str,
        *,
        gateway_id: str = "",
        quota_of: QuotaOf = unknown_quota,
        window_at: Callable[[int], QuotaWindow] = lambda _broker_id: _KAFKAS_DEFAULT,
        interval_ms: int = 1000,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        """`window_at` returns the quota window of a broker or the CONTROLLER; `interval_ms` is how often `samples()` is
        called."""
        self.cluster = cluster
        self.left_out = CountByPayer()
        self.long_names = CountByPayer()  # rows of clients whose names were shortened
        self.topics = TopicPartitions()
        self._gateway_id = gateway_id
        self._quota_of = quota_of
        self._window_at = window_at
        self._interval_ms = interval_ms
        self._sampled_ms: int | None = None
        self._taken = (0, 0)  # the last interval
        self._began_ms: int | None = None
        self._max_clients = max_clients
        self._max_name_chars = max_clients * _NAME_CHARS_PER_CLIENT
        self._name_chars = 0
        self._clients: dict[_Client, _Usage] = {}
        self._places: PlacesByPayer[_Client] = PlacesByPayer()
        self._long_named: dict[_Client, str] = {}  # the payers of clients whose names were shortened
        self._bucket_rates: dict[Bucket, float] = {}  # of the last interval
        self._has_others = False
        self._others: dict[Bucket, float] = {}
        self._undecided: set[Bucket] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def clients(self) -> set[tuple[str, str]]:
        return {(user, client_id) for _quota_key, user, client_id, _broker_id in self._clients}

    def exchange(self, exchange: ExchangeValues) -> None:
        """Counts one exporters.model.Exchange. Its address only says who pays: quotas on ip do not limit bytes."""
        (
            principal,
            client_id,
            address,
            broker_id,
            api_key,
            request_bytes,
            response_bytes,
            throttle_ms,
            now_ms,
            changes,
            from_ms,
        ) = exchange
        from_ms = max(from_ms, now_ms)
        if self._began_ms is None:
            self._began_ms = now_ms
        if api_key == PRODUCE:
            client = (_PRODUCER, principal, client_id, broker_id)
            self._byte_usage(client, address, request_bytes, throttle_ms, now_ms, from_ms)
        elif api_key in (FETCH, SHARE_FETCH):
            client = (_CONSUMER, principal, client_id, broker_id)
            counted_bytes = response_bytes if throttle_ms <= 0 or response_bytes > _EMPTY_FETCH_BYTES else 0
            self._byte_usage(client, address, counted_bytes, throttle_ms, now_ms, from_ms)
        elif api_key in MUTATING:
            client = (_MUTATION, principal, client_id, CONTROLLER)
            self._mutations(client, address, changes, now_ms)
            if throttle_ms > 0:  # the longer of this quota's and the request quota's (RequestHandlerHelper)
                quota, request = self._quota_of(*client), (_REQUEST, principal, client_id, broker_id)
                is_requests = quota.limit_known and quota.limit is None and self._quota_of(*request).limit is not None
                self._throttled(request if is_requests else client, address, throttle_ms, now_ms, from_ms)
        elif throttle_ms > 0:
            client = (_REQUEST, principal, client_id, broker_id)
            self._throttled(client, address, throttle_ms, now_ms, from_ms)

    def take_undecided(self) -> list[Bucket]:
        """The buckets whose throttling this gateway cannot explain alone, since the last call; at most 1,000."""
        undecided, self._undecided = list(self._undecided), set()
        return undecided

    def others_have(self, rates: Mapping[Bucket, float]) -> None:
        """There are other gateways, which measured these rates of such buckets."""
        self._has_others = True
        if len(self._others) + len(rates) > _MAX_UNDECIDED:
            self._others = {}
        self._others.update(rates)

    def is_alone(self) -> None:
        """No other gateway measures a part of any rate."""
        self._has_others = False
        self._others = {}

    def samples(self, now_ms: int) -> list[UsageSample]:
        """One row per client that was active or muted since the last call, or whose rate is above 0.

        The rate of request_percentage is 0: thread time does not show on the wire, throttle times do. A clock that was
        set back ends all windows; the usage since the last call is then in no row.
        """
        if self._sampled_ms is not None and now_ms < self._sampled_ms:  # set back: windows would not move for that long
            self._sampled_ms = self._began_ms = None
            for client in list(self._clients):
                self._forget(client)
        # A row's interval is no longer than its window, because a rate does not cover the time before it.
        elapsed_ms = max(self._interval_ms if self._sampled_ms is None else now_ms - self._sampled_ms, 1)
        self._sampled_ms = now_ms
        self._taken = (now_ms - elapsed_ms, now_ms)
        rows = []
        emptied = []
        self._bucket_rates = {}
        for client, usage in self._clients.items():
            usage.follow(self._window_at(client[3]))
            interval_ms = min(elapsed_ms, usage.window.length_ms)
            rate = usage.rate.measure(now_ms)
            muted_ms = usage.take_muted_ms(now_ms - interval_ms, now_ms)
            if usage.active or rate > 0 or muted_ms > 0:
                rows.append(self._row(client, usage, rate, now_ms, interval_ms, muted_ms))
                if client in self._long_named:
                    self.long_names.add(self._long_named[client], now_ms)
                usage.begin_interval(rate)
            is_over = (usage.muted is None or now_ms >= usage.muted.until_ms) and usage.late_ms < 1
            if is_over and now_ms - usage.last_ms >= usage.window.length_ms:
                emptied.append(client)
        for client in emptied:
            self._forget(client)
        return rows

    def _row(
        self, client: _Client, usage: _Usage, rate: float, now_ms: int, interval_ms: int, muted_ms: int
    ) -> UsageSample:
        quota_key, user, client_id, broker_id = client
        quota = self._quota_of(quota_key, user, client_id, broker_id)
        bucket = (quota_key, quota.bucket_user, quota.bucket_client_id, broker_id)
        self._bucket_rates[bucket] = self._bucket_rates.get(bucket, 0.0) + rate
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
            gateway_id=self._gateway_id,
            interval_ms=interval_ms,
            limit=quota.limit,
            limit_known=quota.limit_known,
            matched_entity=quota.matched_entity,
            bucket_user=quota.bucket_user,
            bucket_client_id=quota.bucket_client_id,
            muted_ms=muted_ms,
            decided_by=quota.decided_by,
            implied_limit=usage.implied.limit if usage.implied is not None else 0.0,
            requests=usage.requests,
        )

    def _byte_usage(
        self, client: _Client, address: str, counted_bytes: int, throttle_ms: int, now_ms: int, from_ms: int
    ) -> None:
        usage = self._clients.get(client) or self._admit(client, address, now_ms)
        if usage is None:
            return
        # Recorded even for 0 bytes: the broker records and un-records them, which keeps the sample alive.
        usage.add(counted_bytes, now_ms)
        usage.requests += 1
        if throttle_ms <= 0:
            return
        # A limit that the byte rate exceeded within a window counts as well: the broker also counts requests whose
        # responses never came, and rates of other gateways are some seconds old.
        if self._may_exceed(client, usage, throttle_ms, now_ms):
            usage.mute(throttle_ms, from_ms, self._taken)
            self._imply(client, usage, throttle_ms, now_ms)
        elif self._quota_of(*client).limit == usage.exceeded[0] and now_ms < usage.exceeded[1]:
            usage.mute(throttle_ms, from_ms, self._taken)
        else:
            self._throttled((_REQUEST, *client[1:]), address, throttle_ms, now_ms, from_ms)

    def _mutations(self, client: _Client, address: str, changes: Changes, now_ms: int) -> None:
        partitions = self.topics.cost(changes)
        if not partitions:
            return
        usage = self._clients.get(client) or self._admit(client, address, now_ms)
        if usage is not None:
            usage.add(0, now_ms)  # they are not bytes
            usage.rate.record(partitions, now_ms)

    def _imply(self, client: _Client, usage: _Usage, throttle_ms: int, now_ms: int) -> None:
        """Estimates the limit that the broker used, once all that is in the broker's window was seen. Not of a broker
        without one: Redpanda's token bucket holds one second, so that a burst would imply a fraction of the limit."""
        if usage.window.is_assumed:
            return
        quota, bucket, rate = self._seen_of_bucket(client, usage, now_ms)
        others = self._others.get(bucket) if self._has_others else 0.0
        if self._has_others:
            self._note_undecided(bucket)
        # A client that was elsewhere before may have used more than was seen of it.
        seen_since_ms = self._began_ms
        if self._has_others or self.left_out.total or seen_since_ms is None:
            seen_since_ms = usage.admitted_ms
        if others is None or now_ms - seen_since_ms < usage.window.length_ms:
            return
        if usage.implied is None:
            usage.implied = ImpliedLimit(response_is_unseen=client[0] == _CONSUMER)
        usage.implied.throttled(rate + others, usage.rate.elapsed_ms(now_ms), throttle_ms, now_ms)
        if quota.limit is None or 0 < usage.implied.limit < UNEXPLAINED * quota.limit:
            self._note_undecided(bucket)

    def _throttled(self, client: _Client, address: str, throttle_ms: int, now_ms: int, from_ms: int) -> None:
        usage = self._clients.get(client) or self._admit(client, address, now_ms)
        if usage is None:
            return
        usage.add(0, now_ms)
        usage.mute(throttle_ms, from_ms, self._taken)

    def _may_exceed(self, client: _Client, usage: _Usage, throttle_ms: int, now_ms: int) -> bool:
        """Whether the byte rate can have caused a throttle time. KafkaApis answers with the longer of the byte quota's
        and the request quota's throttle time and does not tell which. The latter is at most one window long
        (ClientRequestQuotaManager). Each gateway sees a part of a bucket's rate: where the parts of others are not
        known yet, the byte quota is named, whose limit clients reach more often.
        """
        quota, bucket, rate = self._seen_of_bucket(client, usage, now_ms)
        if not quota.limit_known or self._quota_of(_REQUEST, *client[1:]).limit is None:
            return True
        if quota.limit is None:
            return False
        if client[0] == _CONSUMER and usage.largest_bytes == 0:
            return True  # the size of its fetch responses is unknown
        if throttle_ms > usage.window.window_ms:
            return True
        # The highest rate that the broker may have measured for the bucket: the clients' rates and, because it
        # un-records a throttled Fetch, one more response of the client's largest size.
        if client[0] == _CONSUMER:
            rate += usage.largest_bytes / usage.window.full_s
        if rate <= _BELOW_LIMIT * quota.limit:
            self._note_undecided(bucket)
            if self._has_others:
                if bucket not in self._others:
                    return True
                rate += self._others[bucket]
        exceeds = rate > _BELOW_LIMIT * quota.limit
        if exceeds:
            usage.exceeded = (quota.limit, now_ms + usage.window.length_ms)
        return exceeds

    def _seen_of_bucket(self, client: _Client, usage: _Usage, now_ms: int) -> tuple[QuotaInForce, Bucket, float]:
        """The client's quota, the bucket that shares it, and what this gateway sees of the bucket's rate."""
        quota = self._quota_of(*client)
        bucket = (client[0], quota.bucket_user, quota.bucket_client_id, client[3])
        others_rate = max(self._bucket_rates.get(bucket, 0.0) - usage.last_rate, 0.0)
        return quota, bucket, others_rate + usage.rate.measure(now_ms)

    def _note_undecided(self, bucket: Bucket) -> None:
        if len(self._undecided) < _MAX_UNDECIDED:
            self._undecided.add(bucket)

    def _admit(self, client: _Client, address: str, now_ms: int) -> _Usage | None:
        chars = len(client[1]) + len(client[2])
        payer = payer_of(client[1], address)
        while len(self._clients) >= self._max_clients or self._name_chars + chars > self._max_name_chars:
            taken = self._places.taken_for(payer)
            self.left_out.add(payer if taken is None else self._forget(taken), now_ms)
            if taken is None:
                return None
        self._places.add(client, payer)
        if is_shortened(client[1]) or is_shortened(client[2]):
            self._long_named[client] = payer
        self._name_chars += chars
        usage = self._clients[client] = _Usage(self._window_at(client[3]), now_ms)
        return usage

    def _forget(self, client: _Client) -> str:
        """Returns the payer."""
        del self._clients[client]
        self._long_named.pop(client, None)
        self._name_chars -= len(client[1]) + len(client[2])
        return self._places.remove(client)


class _Usage:
    def __init__(self, window: QuotaWindow, now_ms: int) -> None:
        self.window = window
        self.admitted_ms = now_ms
        self.rate = window.rate()
        self.last_ms = 0
        self.muted: MutedTime | None = None
        self.late_ms = 0.0  # muted time that no row has yet, of intervals that have theirs
        self.implied: ImpliedLimit | None = None
        self.exceeded: tuple[float | None, int] = (None, 0)  # the limit that it exceeded, and the end of that window
        self.largest_bytes = 0
        self.begin_interval(0.0)

    def follow(self, window: QuotaWindow) -> None:
        """A broker with another window was restarted, and measures from nothing, too."""
        if window != self.window:
            self.window = window
            self.rate = window.rate()

    def begin_interval(self, last_rate: float) -> None:
        self.last_rate = last_rate
        self.active = False
        self.bytes = 0
        self.throttle_ms = 0
        self.throttled_requests = 0
        self.requests = 0
        if self.implied is not None:
            self.implied.begin_interval()

    def add(self, counted_bytes: int, now_ms: int) -> None:
        self.active = True
        self.last_ms = now_ms
        self.bytes += counted_bytes
        if counted_bytes > self.largest_bytes:
            self.largest_bytes = counted_bytes
        if counted_bytes and self.implied is not None:
            self.implied.transferred(counted_bytes, now_ms)
        self.rate.record(counted_bytes, now_ms)

    def mute(self, throttle_ms: int, from_ms: int, taken: tuple[int, int]) -> None:
        """`taken`: the last interval that has its row."""
        self.throttled_requests += 1
        if throttle_ms > self.throttle_ms:
            self.throttle_ms = throttle_ms
        if self.muted is None:
            self.muted = MutedTime()
        late_ms = -self.muted.muted_ms(*taken) if from_ms < taken[1] else 0.0
        self.muted.announce(from_ms, min(throttle_ms, MUTED_LOOKBACK_MS))  # readers look back no further
        if from_ms < taken[1]:
            late_ms += self.muted.muted_ms(*taken)
            self.late_ms = min(self.late_ms + late_ms, _MAX_LATE_MS)

    def take_muted_ms(self, from_ms: int, to_ms: int) -> int:
        """The muted time of [from_ms, to_ms), at most all of it, with what came late of the interval before."""
        if self.muted is None:
            return 0
        self.muted.drop_until(from_ms)
        all_ms = self.muted.muted_ms(from_ms, to_ms) + self.late_ms
        muted_ms = min(int(all_ms), to_ms - from_ms)
        self.late_ms = min(all_ms - muted_ms, _MAX_LATE_MS)
        return muted_ms
