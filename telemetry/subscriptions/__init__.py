"""KIP-714 as decisions: which metrics a client is asked for, which requests are refused, how subscriptions change.

Sans-I/O except subscription_file.py, which reads and writes the subscriptions of a stand-alone sink.

kip714_rules.py  the rules that a broker applies to GetTelemetrySubscriptions and PushTelemetry, among them the push
                 interval, and the client instances: Kafka's ClientMetricsManager
config_admin.py  administration of CLIENT_METRICS resources by a broker's rules: encoded requests in, encoded
                 responses out
payer_budgets.py budgets of telemetry by who pays: a principal, or the source network of clients without one, and each
                 connection
subscription.py  subscriptions: parses and validates one CLIENT_METRICS resource as Kafka does, and merges those that
                 match a client
subscription_id.py the subscription id of a client instance, by CRC32C
"""
