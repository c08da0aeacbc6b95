"""Builds the listeners from their settings and opens them; called by app.py.

    gateway     with a cluster: as a proxy, or observing it
    sink        without a cluster, for telemetry only
    network     opens the Kafka listeners of both, with further network processes
    cluster_refresh  reads brokers and owners of delegation tokens again when clients show that one is new
    grpc, otlp  receivers of forwarded telemetry; imported only if configured

Imports the rest of headroom.server except app.py and pages.py.
"""
