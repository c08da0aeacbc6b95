"""The web pages and their JSON API: clients near a limit, quotas, subscriptions, Headroom's own state. Read-only.

access.py     access control (Host header, token, trusted proxy) and headers of every response
queries.py    the SQL of the pages
parameters.py parameters of a request, the errors that answer it, and few log lines about it
data.py       parameters -> rows, for `/api/v1/` and the pages; who pays for telemetry; the threads of queries
what_if.py    the what-if form: recorded rates against another limit
api.py        `/api/v1/...` as JSON
own_view.py   an application's own view, for tokens that see some clients only
pages.py      the pages: templates/ with jinja2; static/ is served unchanged, static/vendor/ is htmx and uPlot
overview_rows.py  what the overview adds to each client's row: a short reason, a sparkline, and the question of
                  another limit; the sparklines of tiles
rendering.py      how templates show values: times with their zone, ages, clients' links. jinja2 escapes every value
runbooks.py       the runbooks of docs/runbooks, which the pages show beside what is wrong
slowed.py         who makes the requests of one client slow in the newest minute: what a client's page asks the store
                  for
store_watch.py    whether the store answers, and how old the newest levels are that pages show
tiles.py          the state of Headroom in five tiles with their last hour, for people: page Status and `headroom
                  status`
usage_chart.py    the chart of a client: rate, limit and throttling per broker over any range, quota changes and
                  restarts

In: ClickHouse (exporters.clickhouse.client), the subscriptions and readings of the running service.
Imports exporters, quota_metrics, telemetry.subscriptions and headroom.config; headroom.server mounts it.
"""
