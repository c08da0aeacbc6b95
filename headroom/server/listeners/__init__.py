"""Builds the listeners from their settings and opens them.

    gateway.py         with a cluster: as a proxy, or observing it
    sink.py            without a cluster, for telemetry only
    network.py         opens the Kafka listeners of both, with further network processes
    grpc_receiver.py   the gRPC server of `headroom serve`, built from its settings; imported only if configured
    otlp_receivers.py  builds and opens the OTLP receivers of `headroom serve`; imported only if configured

Imports the rest of headroom.server; nothing there but the composition imports it.
"""
