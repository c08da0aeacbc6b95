"""Kafka client quotas: configuration, usage, utilisation and what-if simulation.

windows.py    Kafka's Rate and TokenBucket, to the last digit
config/       entities, precedence, validation, history of the configuration
cluster/      the cluster's own facts: versions, windows, callback class, limits per address
levels/       utilisation and muted time -> level and reason
measure/      bytes and throttle times -> usage and utilisation; quota callbacks
jmx/          the brokers' own quota sensors
simulation/   recorded usage replayed under other quotas, sans-I/O
what_if/      the one what-if engine: recording, simulation, answer
suggestion/   quotas that would fit a recorded fleet, each with its reason, sans-I/O
kafka/        an asyncio admin client

Imports: suggestion -> measure; what_if -> simulation -> measure -> cluster -> kafka, config; kafka -> config; jmx ->
config. Of other packages only `exporters`.
"""
