"""Usage and effective quotas. Sans-I/O.

usage_meter.py        usage of each client from the exchanges that pass the gateway
places_by_payer.py    who holds how many places of the meter, and whose exchanges were left out
quota_in_force.py     the quota of a client at a moment, as columns of quota_usage; the function of `quotas.callback`
connection_quotas.py  the brokers' quotas on addresses: max.connections.per.ip and connection_creation_rate (KIP-612)
throttle_times.py     how long a client was muted, and the limit that a broker must have used (`implied_limit`)
topic_meter.py        sums what was read of sampled frames by client and topic, within bounds
topic_partitions.py   what changes of topics cost of controller_mutation_rate, by the partitions that topics have

Imports quota_metrics.config, quota_metrics.windows and exporters.
"""
