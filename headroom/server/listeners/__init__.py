"""Builds the listeners from their settings and opens them.

    gateway.py    with a cluster, as a proxy or observing it; opens the Kafka listeners, also those of a sink, and
                  starts further network processes
    sink.py       without a cluster, for telemetry only
    receivers.py  the gRPC and OTLP receivers with their TLS and tokens; imported only if one is configured

Imports the rest of headroom.server; nothing there but the composition imports it.
"""
