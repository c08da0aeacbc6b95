"""What other quotas would have done: the one engine behind `headroom quotas what-if`, the page, the API and `headroom
quotas plan`.

recording.py   SQL: the clients that a change may affect, their usage, the history of limits
answer.py      a question, and its answer from the recording and the simulation
harm.py        the clients that a plan hits, and those that it would have throttled
document.py    the answer as JSON, the same on each surface
brokers.py  what a replay has to know of the brokers, from rows of cluster_facts: quota windows, and classes that
            decide limits

Imports quota_metrics.simulation and exporters.clickhouse.
"""
