"""The Kafka listener: sockets between clients and brokers, request routing, client identity, the stand-alone broker.

`server.py`, `listeners.py`, `listener.py`, `client_connection.py` and `upstream_connection.py` own sockets. The
rest is sans-I/O: `connection.py` decides per request (forward, hold, answer locally), `broker_responses.py` per
response (forward, rewrite), `exchanges.py` keeps the order of both, `push_fast_path.py` skips the parsing of repeated
push headers, `broker_names.py` maps TLS server names to brokers, `admission.py` limits what clients may use,
`security/` has TLS, SASL and principals.
Imports telemetry.receiver, telemetry.rules, telemetry.wire and exporters.
"""
