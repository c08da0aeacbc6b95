"""KIP-714 as decisions: which metrics a client is asked for, which requests are refused, how subscriptions change.

Sans-I/O except subscription_file.py, which reads and writes the subscriptions of a stand-alone sink.

kip714_rules.py  the rules of GetTelemetrySubscriptions and PushTelemetry, with push intervals; client instances
config_admin.py  administration of CLIENT_METRICS resources: encoded requests in, encoded responses out
payer_budgets.py budgets of telemetry by who pays, and of each connection
subscription.py  parses and validates one CLIENT_METRICS resource as Kafka does, and merges those that match a client
subscription_id.py the subscription id of a client instance, by CRC32C
"""
