"""The Kafka listeners: sockets between clients and brokers, request routing, client identity, the stand-alone broker.

`server.py`, `listener.py`, `broker_ports.py`, `client_connection.py`, `upstream_connection.py` own sockets.
The rest is sans-I/O:
`connection.py` decides per request (forward, hold, answer locally), `responses.py` per response (forward, rewrite) and
keeps the order of both, `admission.py` limits what clients may use, `security/` has TLS, SASL and principals.
"""
