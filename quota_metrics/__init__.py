"""Kafka client quotas: configuration, usage, utilisation and what-if simulation.

windows.py    Kafka's Rate and TokenBucket, to the last digit
config/       entities, precedence, validation, history of the configuration
measure/      bytes and throttle times -> usage and utilisation; quota callbacks
jmx/          the brokers' own quota sensors
simulation/   recorded usage replayed under other quotas (what-if)
kafka/        an asyncio admin client

Imports: simulation -> measure -> config; kafka -> config; jmx -> config. Of other packages only
`exporters`.
"""
