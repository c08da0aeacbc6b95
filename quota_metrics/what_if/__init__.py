"""What other quotas would have done: the one engine behind `headroom quotas what-if`, the page, the API and `headroom
quotas plan`.

recording.py   SQL: the clients that a change may affect, their usage, the history of limits; the brokers' windows
answer.py      a question, its answer from the recording and the simulation; the clients that a plan hits and throttles
document.py    the answer as JSON, the same on each surface

Imports quota_metrics.simulation and exporters.clickhouse.
"""
