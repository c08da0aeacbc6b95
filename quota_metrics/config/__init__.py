"""Quota configuration: entities, the eight levels of precedence, validation, JSON files, history. Sans-I/O.

entities.py         entities, filters, alterations
resolution.py       the eight levels of precedence, the quota of a client, the clients that share it
broker_refusals.py  what a broker refuses
json_file.py        quotas as JSON
quota_file.py       quotas as code: the YAML file
quota_plan.py       what has to change so that a cluster has the quotas and subscriptions of a file
timeline.py         the rows of quota_limits, and the quotas of clients over time, before and after a change
owners.py           which team a client or a topic belongs to, by patterns on names; prices of traffic; the capacity

Imports only `exporters`.
"""
