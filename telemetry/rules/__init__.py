"""KIP-714 as decisions: what clients are asked for, which requests are refused, how subscriptions are administered.

Sans-I/O except subscription_file.py and cluster_subscriptions.py, which read and write where subscriptions are stored.
`client_metrics.py` is the counterpart of Kafka's ClientMetricsManager. Imports telemetry.wire and exporters.
"""
