"""KIP-714 as decisions: which metrics a client is asked for, which requests are refused, how subscriptions change.

Sans-I/O except subscription_file.py.
`client_metrics.py` corresponds to Kafka's ClientMetricsManager.
"""
