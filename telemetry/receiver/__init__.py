"""Telemetry requests in, rules, spool record, answer out: for the Kafka protocol (receiver.py) and for gRPC
(grpc_*.py).

`group_commit.py` flushes the spool once per turn of the event loop; an acknowledgement leaves after the flush.
Imports telemetry.rules, telemetry.wire, telemetry.proto and exporters.
"""
