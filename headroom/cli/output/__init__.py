"""Prints results on standard output: tables, JSON, KIP-546's text.

quota_plan.py  prints plans and drift of quotas: tables, JSON, markdown
quotas.py      quotas and resolutions on standard output: KIP-546's text, tables, JSON
tables.py      a table on standard output: aligned lines, in a pipe of any length, on a terminal as wide as it is
what_if.py     prints the result of `headroom quotas what-if` as a table or JSON
"""
