"""The catalogue of all metrics that Headroom exposes.

Metrics about Headroom have labels from closed sets, never client-made text. Labels that Prometheus' targets often have
(cluster, team, release) are not among them: Prometheus would rename ours. Those that a broker has, too (KIP-714,
group client-metrics), have the broker's name in Prometheus' form: kafka_server_client_metrics_*. Metrics about clients
(kafka_client_*) are off by default, and their number of series is limited by configuration.
"""

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# One value, or one per value of the only label, or one per combination of label values.
Values = Mapping[str, float] | Mapping[tuple[str, ...], float] | float


class SelfMetric(NamedTuple):
    """Name (as exposed; counters end in _total), help, labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    def family(self) -> Metric:
        """An empty metric family, to be filled at collection."""
        if self.name.endswith("_total"):
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


CLUSTER_INFO = SelfMetric(
    "headroom_cluster_info",
    "Always 1: the cluster's oldest release, and its metadata.version.",
    ("kafka_cluster", "kafka_release", "metadata_version"),
)
BROKER_INFO = SelfMetric(
    "headroom_broker_info",
    "Always 1: what the broker's configuration says that limits and rates depend on; empty: not set, or not read.",
    ("kafka_cluster", "broker_id", "kafka_release", "quota_window_num", "quota_window_size_seconds", "callback_class",
     "telemetry_max_bytes"),
)  # fmt: skip
FACTS_UNREAD = SelfMetric(
    "headroom_cluster_facts_unread", "Facts of the cluster that could not be read: headroom cluster show names them."
)
STALE_THROTTLES = SelfMetric(
    "headroom_cluster_stale_replication_throttles",
    "Configurations that throttle replication and are of no use: `headroom quotas stale` lists them.",
)
CLUSTER_REMARKS = SelfMetric(
    "headroom_cluster_remarks",
    "Facts of the cluster that differ from Kafka's defaults and change what figures mean: headroom cluster show.",
)
CONNECTIONS = SelfMetric("headroom_connections", "Open client connections.")
CONNECTIONS_TOTAL = SelfMetric("headroom_connections_accepted_total", "Client connections accepted.")
PROTOCOL_ERRORS = SelfMetric(
    "headroom_protocol_errors_total", "Connections closed because their bytes are not valid Kafka protocol."
)
PAYER_REFUSED = SelfMetric(
    "headroom_payer_refused_total",
    "Telemetry requests refused because a payer (a principal, or a source network) or one of its connections is over "
    "its budget, by resource.",
    ("resource",),
)
CONNECTIONS_REFUSED = SelfMetric(
    "headroom_connections_refused_total", "Client connections refused when they were opened, by reason.", ("reason",)
)
CONNECTIONS_CLOSED = SelfMetric(
    "headroom_connections_closed_total",
    "Client connections closed by a limit or a timeout, by reason; invalid bytes count as protocol errors instead.",
    ("reason",),
)
HELD_BYTES = SelfMetric("headroom_held_request_bytes", "Bytes held of requests that have arrived only in part.")
UPSTREAM_FAILURES = SelfMetric("headroom_upstream_failures_total", "Failed attempts to connect to a broker.")
CLIENT_INSTANCES = SelfMetric(
    "kafka_server_client_metrics_instances", "Client instances in the cache (KIP-714 ClientMetricsInstanceCount)."
)
UNKNOWN_SUBSCRIPTIONS = SelfMetric(
    "kafka_server_client_metrics_unknown_subscription_requests_total",
    "Pushes for a subscription id that is not the client's (KIP-714 ClientMetricsUnknownSubscriptionRequestCount).",
)
THROTTLES = SelfMetric(
    "kafka_server_client_metrics_throttles_total",
    "Telemetry requests answered with THROTTLING_QUOTA_EXCEEDED: those that came too early, and those that could"
    " not be stored (KIP-714 ClientMetricsThrottleCount).",
)
PLUGIN_EXPORTS = SelfMetric(
    "kafka_server_client_metrics_plugin_exports_total",
    "Pushes with metrics that were accepted for storage (KIP-714 ClientMetricsPluginExportCount).",
)
PLUGIN_ERRORS = SelfMetric(
    "kafka_server_client_metrics_plugin_errors_total",
    "Telemetry requests that failed by an internal error, and pushes answered with INVALID_RECORD"
    " (KIP-714 ClientMetricsPluginErrorCount).",
)
GETS = SelfMetric(
    "headroom_get_telemetry_subscriptions_total", "GetTelemetrySubscriptions requests by error code.", ("code",)
)
PUSHES = SelfMetric("headroom_push_telemetry_total", "PushTelemetry requests by error code.", ("code",))
PUSH_BYTES = SelfMetric("headroom_push_telemetry_bytes_total", "Compressed bytes of accepted pushes.")
GRPC_REFUSED = SelfMetric(
    "headroom_grpc_refused_total",
    "gRPC calls refused before the telemetry rules were applied, by status.",
    ("status",),
)
OTLP_REQUESTS = SelfMetric(
    "headroom_otlp_requests_total", "Requests to the OTLP receivers, by outcome.", ("transport", "outcome")
)
OTLP_POINTS = SelfMetric("headroom_otlp_points_total", "Data points that the OTLP receivers accepted.")
OTLP_REJECTED = SelfMetric(
    "headroom_otlp_rejected_points_total", "Data points that the OTLP receivers rejected (partial success)."
)
OTLP_REPLACED_TEXTS = SelfMetric(
    "headroom_otlp_requests_with_replaced_texts_total",
    "Requests to the OTLP receivers with texts that were no UTF-8, which are stored with replacement characters.",
)
REPLACED_TEXTS = SelfMetric(
    "headroom_pushes_with_replaced_texts_total",
    "Pushes with texts that were no UTF-8, which are stored with replacement characters, since the spool began.",
)
FORWARD_POINTS = SelfMetric(
    "headroom_forward_points_total", "Data points that the OTLP endpoint accepted, since the spool began."
)
FORWARD_PUSHES = SelfMetric(
    "headroom_forward_pushes_total", "Pushes that were forwarded to the OTLP endpoint, since the spool began."
)
FORWARD_LOST_PUSHES = SelfMetric(
    "headroom_forward_lost_pushes_total",
    "Pushes that were not forwarded: more than forward.max_lag_bytes waited (lag), or nothing can be read of them.",
    ("reason",),
)
FORWARD_LOST_POINTS = SelfMetric(
    "headroom_forward_lost_points_total",
    "Data points that the OTLP endpoint did not accept while it accepts others: refused as a push, or rejected alone.",
    ("reason",),
)
FORWARD_FAILURES = SelfMetric("headroom_forward_failures_total", "Requests that the OTLP endpoint did not accept.")
FORWARD_LAG_BYTES = SelfMetric("headroom_forward_lag_bytes", "Bytes of the spool that wait to be forwarded.")
FORWARD_UP = SelfMetric(
    "headroom_forward_up", "Whether forwarding runs and the OTLP endpoint accepted the last request (1 or 0)."
)
FORWARD_RESTARTS = SelfMetric("headroom_forward_restarts_total", "Restarts of the forwarding process.")
FORWARD_SEGMENTS_SKIPPED = SelfMetric(
    "headroom_forward_segments_skipped_total",
    "Segments of the spool that could not be linked for the forwarding process; their pushes are not forwarded.",
)
FLUSH_FAILURES = SelfMetric("headroom_spool_flush_failures_total", "Failed flushes of the spool.")
RECORDS_RECEIVED = SelfMetric(
    "headroom_records_received_total", "Records appended to the spool, since the spool began."
)
RECORDS = SelfMetric(
    "headroom_records",
    "Records by state: written (confirmed by the store), dropped, buffered in the spool.",
    ("state",),
)
RECORDS_DIFFERENCE = SelfMetric(
    "headroom_records_difference",
    "Records received minus those written, dropped and buffered; any value other than 0 means a bug or a loss.",
)
SPOOL_READ_BYTES = SelfMetric(
    "headroom_spool_read_bytes_total", "Bytes of the spool that the storage worker has finished, since the spool began."
)
SPOOL_OLDEST = SelfMetric(
    "headroom_spool_oldest_record_age_seconds",
    "Age of the oldest record in the spool that is not stored yet, by kind: pushes, usage; 0: none.",
    ("kind",),
)
WORKER_IDLE = SelfMetric(
    "headroom_worker_idle_seconds", "Seconds since the storage worker last made progress; 0 while it has nothing to do."
)
SPOOL_BYTES = SelfMetric("headroom_spool_bytes", "Bytes in the spool that the storage worker has not read yet.")
SPOOL_MAX_BYTES = SelfMetric("headroom_spool_max_bytes", "Bytes that the spool may hold (spool.max_bytes).")
KNOWN_ISSUES = SelfMetric(
    "headroom_clients_with_known_issues",
    "Client instances of the last 15 minutes whose version has a known telemetry bug (headroom.client_software).",
)
JOB_SUCCESS = SelfMetric(
    "headroom_job_last_success_timestamp_seconds", "Unix time of the last success of a Spark job.", ("spark_job",)
)
SPOOL_TORN = SelfMetric(
    "headroom_spool_torn_total", "Incomplete records at the ends of segments, left by a crash and never acknowledged."
)
DROPPED = SelfMetric("headroom_dropped_total", "Records received and not written, by reason.", ("reason",))
HOURS_TO_ROLL_UP = SelfMetric("headroom_rollups_pending", "Hours with new points whose rollup is not computed yet.")
USAGE_CLIENTS = SelfMetric("headroom_usage_clients", "Clients whose usage is measured.")
USAGE_LEFT_OUT = SelfMetric(
    "headroom_usage_left_out_total",
    "Exchanges not metered because the limit on measured clients or waiting rows was reached.",
)
USAGE_LONG_NAMES = SelfMetric(
    "headroom_usage_long_names_total",
    "Rows of usage of clients whose user or client id is longer than 255 characters, of which a part is stored.",
)
MUTATIONS_UNKNOWN = SelfMetric(
    "headroom_mutations_unknown_total",
    "Topics that clients created, enlarged or deleted whose number of partitions is not known: not in their usage.",
)
ADDRESSES_LEFT_OUT = SelfMetric(
    "headroom_addresses_left_out_total",
    "Rows of usage of client addresses that were omitted, because more than 1,000 had a limit at once.",
)
USAGE_ROWS_LOST = SelfMetric("headroom_usage_rows_lost_total", "Usage rows that could not be written to the spool.")
WORKER_RESTARTS = SelfMetric("headroom_worker_restarts_total", "Restarts of the storage worker.")
CLICKHOUSE_RESTARTS = SelfMetric("headroom_clickhouse_restarts_total", "Restarts of the managed ClickHouse server.")
WORKER_UP = SelfMetric("headroom_worker_up", "Whether the storage worker is running (1 or 0).")
STORE_UP = SelfMetric("headroom_store_up", "Whether the store accepts rows from the storage worker (1 or 0).")
TASK_FAULTS = SelfMetric(
    "headroom_task_faults_total", "Steps of a periodic task that failed unexpectedly, by task.", ("task",)
)
NETWORK_PROCESSES = SelfMetric("headroom_network_processes", "Network processes that accept clients.")
NETWORK_RESTARTS = SelfMetric("headroom_network_restarts_total", "Restarts of network processes.")

JMX_FAILURES = SelfMetric("headroom_jmx_scrape_failures_total", "Failed scrapes of a broker's quota sensors.")
JMX_LEFT_OUT = SelfMetric(
    "headroom_jmx_values_left_out_total", "Values of quota sensors that were ignored, by reason.", ("reason",)
)
JMX_WITHOUT_SENSORS = SelfMetric(
    "headroom_jmx_targets_without_sensors", "JMX targets that answered the last scrape without a known quota sensor."
)
CALLBACK_FAULTS = SelfMetric("headroom_quota_callback_faults_total", "Failed calls of the quota callback.")
SERIES_LEFT_OUT = SelfMetric(
    "headroom_quota_series_left_out_total",
    "Series of kafka_client_* omitted because the budget was exceeded, counted at each reading of the store.",
)

_WINDOW = ("kafka_cluster", "quota_type", "user", "client_id", "source")
WINDOW_START = SelfMetric(
    "kafka_client_quota_window_start_seconds", "Beginning of the 60 seconds that kafka_client_* are about."
)
CLIENT_LIMIT = SelfMetric(
    "kafka_client_quota_limit",
    "Effective quota of the client at its worst broker, +Inf when unlimited, none when it is not known.",
    _WINDOW,
)
CLIENT_USAGE = SelfMetric("kafka_client_quota_usage", "Mean rate of the client itself at its worst broker.", _WINDOW)
CLIENT_UTILIZATION = SelfMetric(
    "kafka_client_quota_utilization_ratio",
    "Mean rate of all clients that share the quota over its limit, at the worst broker; none without a limit"
    " (KIP-1373).",
    _WINDOW,
)
CLIENT_THROTTLE = SelfMetric(
    "kafka_client_throttle_seconds",
    "Longest throttle time announced to the client, or how long an earlier one muted it.",
    _WINDOW,
)
WINDOW_UTILIZATION = SelfMetric(
    "kafka_client_quota_window_utilization_ratio",
    "Rate of all clients that share the quota over its limit in that minute, at the worst broker, of all gateways:"
    " statistic mean or p95; none without a limit.",
    (*_WINDOW, "statistic"),
)
WINDOW_MUTED = SelfMetric(
    "kafka_client_quota_window_muted_ratio", "Share of that minute in which the worst broker muted the client.", _WINDOW
)
CLIENT_LEVEL = SelfMetric(
    "headroom_client_quota_level",
    "Level of the client in that minute, by its number in the column `level` of headroom_now: -1 unknown,"
    " 0 ok, and upwards to throttled. `client_team` is that of the operator's file of owners.",
    (*_WINDOW, "client_team"),
)
CLIENT_IMPACT = SelfMetric(
    "headroom_client_impact",
    "What the client feels in that minute by its own telemetry, as headroom_now has it: 3 losing, 2 falling-behind,"
    " 1 delayed, 0 none, -1 unknown.",
    _WINDOW,
)

CATALOGUE: tuple[SelfMetric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, SelfMetric))
