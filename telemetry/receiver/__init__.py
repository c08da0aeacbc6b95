"""Turns telemetry requests into decisions and spool records: Kafka protocol (receiver.py), gRPC (grpc_*.py) and
OTLP (otlp_*.py).

`group_commit.py` flushes the spool once per turn of the event loop; acknowledgements are sent after the flush.
Imports telemetry.subscriptions, telemetry.wire, telemetry.decode, telemetry.proto and exporters.
"""
