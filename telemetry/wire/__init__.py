"""Kafka's protocol as bytes and values: primitives, frame scanner, API table, errors, messages, address rewrites.

Sans-I/O. Knows neither rules nor spool; imports nothing of telemetry outside this package.

address_rewrites.py    replaces broker addresses in responses with the gateway's, and adds 71 and 72 to ApiVersions
apis.py                the Kafka APIs: newest version, first flexible version, and where the response has its throttle
                       time
config_messages.py     encodes and decodes the configuration APIs: ListConfigResources, DescribeConfigs,
                       (Incremental)AlterConfigs
errors.py              Kafka's error codes, and exceptions for invalid subscriptions and invalid patterns
fetch_endpoints.py     hides the brokers' addresses in Fetch responses, while they are forwarded
frames.py              Kafka's frames and the heads of requests: splits a byte stream into frames without buffering
                       those that are forwarded
mutations.py           how many partitions a request creates, adds or deletes: CreateTopics, CreatePartitions and
                       DeleteTopics
proxy_protocol.py      HAProxy's PROXY protocol, versions 1 and 2: the client's address before its first byte
telemetry_messages.py  encodes and decodes GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0
topic_bytes.py         reads the record bytes of each topic off a Produce request or a Fetch response while it is
                       forwarded
"""
