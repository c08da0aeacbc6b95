"""Builds the listeners from their settings and opens them.

kafka_listeners.py  of a gateway or a sink, with further network processes; an observer has none
receivers.py        the gRPC and OTLP receivers with their TLS and tokens; imported only if one is configured
"""
