"""The settings with their defaults (settings.py and a file per large section), and their sources (sources.py).

Imports no other package of this repository except for constants.

listener.py   settings of the Kafka listener's security: protocol, TLS files, principals
quotas.py     settings of quotas: the brokers' windows, their JMX agents, quotas on /metrics
receivers.py  settings of the receivers that are off by default: gRPC and OTLP
reference.py  the settings as data for `headroom config reference` and docs/settings.md, read from the fields of their
              models
store.py      settings of ClickHouse: the managed server, a cluster, TLS to it, batches and retention
types.py      types of settings: addresses, sizes, times, sections
"""
