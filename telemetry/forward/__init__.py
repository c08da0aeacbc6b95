"""Forwards pushes to an OTLP endpoint.

selection.py   which clients and metrics are forwarded (the grammar of subscriptions)
resources.py   a push -> ResourceMetrics with the client's identity as resource attributes
forwarder.py   spool -> requests -> sender, with positions and counts of its own

Spool records go in, ExportMetricsServiceRequests come out. Imports decode and rules; of other packages `exporters`.
"""
