"""Usage, effective quotas and utilisation. Sans-I/O.

usage_meter.py     usage of each client from the exchanges that pass the gateway
payers.py          who holds how many places of the meter, and whose exchanges were left out
quota_in_force.py  the quota of a client at a moment, as columns of quota_usage
quota_manager.py   a broker's quotas by a callback; callbacks.py, callback_models.py: callbacks in Python
utilization.py     usage / quota per quota group and broker, and each client at its worst broker

Imports quota_metrics.config, quota_metrics.windows and exporters.
"""
