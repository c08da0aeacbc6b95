"""Quotas that would fit a recorded fleet: which dimension, which default, who needs a quota of its own. Sans-I/O.

dimension.py        whether defaults are for users, client ids or both; which rule a client keeps
suggested_quotas.py demands and rules -> suggestions, each with its reason

Imports quota_metrics.config, .verdict and .amounts.
"""
