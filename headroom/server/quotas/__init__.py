"""Quotas in `headroom serve`: effective quotas per broker, kafka_client_* metrics, JMX, stored limits."""
