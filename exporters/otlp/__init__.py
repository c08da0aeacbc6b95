"""Sends ExportMetricsServiceRequests to an OTLP endpoint.

outcome.py     what a sender raises: errors that are retried, errors that are not, and errors of the endpoint
grpc_sender.py OTLP/gRPC (grpcio)
http_sender.py OTLP/HTTP, protobuf (urllib3)

A request goes in, the number of rejected data points comes out. Imports modules of exporters only.
"""
