"""Kafka client quotas: configuration, usage, utilisation and what-if simulation.

windows.py    Kafka's Rate and TokenBucket, to the last digit; amounts.py formats rates, shares and levels
config/       entities, precedence, validation, history of the configuration
cluster/      the cluster's own facts: versions, windows, callback class, limits per address
minutes/      rows of usage -> minutes (usage_1m) -> windows; the levels that `headroom serve` writes
verdict/      windows -> level, reason, cause and impact
measure/      bytes and throttle times -> usage and utilisation; quota callbacks
jmx/          the brokers' own quota sensors
simulation/   recorded usage replayed under other quotas, sans-I/O
what_if/      the one what-if engine: recording, simulation, answer
suggestion/   quotas that would fit a recorded fleet, each with its reason, sans-I/O
kafka/        an asyncio admin client

Layers: what_if and suggestion > simulation > measure > cluster > minutes > verdict > config. kafka and jmx are beside
minutes and import config. Of other packages only `exporters`.
"""
