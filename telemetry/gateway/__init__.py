"""Sockets between Kafka clients and brokers: listeners, connections, exchanges, client identity, the stand-alone
broker.

`server.py` and `listeners.py` own sockets; `connection.py` decides per frame, sans-I/O: forward, rewrite or answer.
Imports telemetry.receiver, telemetry.rules, telemetry.wire and exporters.
"""
