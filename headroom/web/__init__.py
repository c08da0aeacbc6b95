"""The web pages and their JSON: who is near a limit, clients, quotas, subscriptions, Headroom's own state. Read-only.

access.py     who may read: Host header, token or trusted proxy, headers of every answer
queries.py    the SQL of the pages
data.py       parameters of a request -> rows; what `/api/v1/` and the pages share
api.py        `/api/v1/...` as JSON
pages.py      the pages: templates/ with jinja2; static/ is served as it is, static/vendor/ is htmx and uPlot

In: a reader of ClickHouse (exporters.clickhouse.reader), the subscriptions and readings of the running service.
Imports exporters, quota_metrics and headroom.config; headroom.server mounts it.
"""
