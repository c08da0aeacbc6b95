"""An asyncio Kafka admin client: connections, TLS and SASL from Kafka's client properties, requests, error messages.

Independent of the rest of the project: imports only quota_metrics.config (values of requests) and libraries.
"""
