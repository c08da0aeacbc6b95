"""What clients and senders connect to, each built from its settings and opened; app.py calls these.

    gateway  in front of a cluster, or beside it;  sink  a listener for telemetry alone
    network  opens the listeners of both, with their further network processes;  brokers  which of them have one
    grpc, otlp  receivers of telemetry that is forwarded; imported only where they are wanted

Imports the rest of headroom.server except app.py and pages.py.
"""
