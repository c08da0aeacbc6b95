"""Quota readings of `headroom serve`: effective quotas per broker, client metrics, JMX, limits from the store."""
