"""The web pages and their JSON API: clients near a limit, quotas, subscriptions, Headroom's own state. Read-only.

access.py     access control (Host header, token, trusted proxy) and headers of every response
queries.py    the SQL of the pages
parameters.py parameters of a request
query_threads.py  threads for queries; sparse_log.py: few log lines about requests
data.py       parameters -> rows, for `/api/v1/` and the pages
rules.py      rows of quota_limits as rules
what_if.py    the what-if form: recorded rates against another limit (what_if_queries.py, what_if_outcome.py)
api.py        `/api/v1/...` as JSON
own/          an application's own view, for tokens that see some clients only
pages.py      the pages: templates/ with jinja2; static/ is served unchanged, static/vendor/ is htmx and uPlot

In: ClickHouse (exporters.clickhouse.client), the subscriptions and readings of the running service.
Imports exporters, quota_metrics, telemetry.subscriptions and headroom.config; headroom.server mounts it.
"""
