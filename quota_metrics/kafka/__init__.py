"""An asyncio Kafka admin client: connections, TLS and SASL from Kafka's client properties, requests, error messages.

Could be lifted out of the project: imports nothing but quota_metrics.config (values of requests) and libraries.
"""
