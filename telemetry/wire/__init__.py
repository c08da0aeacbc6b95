"""Kafka's protocol as bytes and values. Sans-I/O. Knows neither rules nor spool; imports nothing else of telemetry.

address_rewrites.py    replaces broker addresses in responses with the gateway's, adds 71 and 72 to ApiVersions
apis.py                the Kafka APIs: newest version, first flexible version, place of the throttle time
config_messages.py     ListConfigResources, DescribeConfigs, (Incremental)AlterConfigs
errors.py              Kafka's error codes, and exceptions for invalid subscriptions and invalid patterns
fetch_endpoints.py     hides the brokers' addresses in Fetch responses, while they are forwarded
frames.py              splits a byte stream into frames without buffering those that are forwarded; heads of requests
mutations.py           how many partitions a request creates, adds or deletes
proxy_protocol.py      HAProxy's PROXY protocol, versions 1 and 2: the client's address before its first byte
telemetry_messages.py  GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0
topic_bytes.py         reads the record bytes of each topic while a Produce request or Fetch response is forwarded
"""
