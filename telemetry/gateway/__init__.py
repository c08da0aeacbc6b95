"""The Kafka listeners: sockets between clients and brokers, request routing, client identity, the stand-alone broker.

`server.py`, `listener.py`, `broker_ports.py`, `client_connection.py` own sockets. The rest is sans-I/O:
`connection.py` decides per request (forward, hold, answer locally), `responses.py` per response (forward, rewrite) and
keeps the order of both, `connection_limits.py` says what clients may use, `security/` has TLS, SASL and principals.

networks.py           IP networks, and the administrators of a stand-alone sink
standalone_broker.py  responses of a listener without a cluster: a node without topics, and its CLIENT_METRICS
topic_sampling.py     chooses the frames whose topics are read, and reports what was read
"""
