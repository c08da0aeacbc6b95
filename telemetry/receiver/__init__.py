"""Turns telemetry requests into decisions and spool records: Kafka protocol (telemetry_requests.py), gRPC
(grpc_*.py) and OTLP (otlp_*.py).

`group_commit.py` flushes the spool once per turn of the event loop, or more often; acknowledgements follow the flush.

grpc_auth.py      authenticates gRPC callers and determines which client a request belongs to
grpc_codec.py     the gRPC service without sockets: decodes a request, applies the rules and encodes the response
grpc_server.py    the gRPC server of headroom.telemetry.v1
otlp_export.py    converts an OTLP ExportMetricsServiceRequest to spool records, one per client in it
otlp_grpc.py      the OTLP/gRPC receiver
otlp_http.py      the OTLP/HTTP receiver: POST /v1/metrics, protobuf or JSON, plain, gzip or zstd
otlp_identity.py  maps OTLP attributes of several broker plug-ins to the identity of a client
otlp_parsing.py   bytes or JSON to an OTLP ExportMetricsServiceRequest
otlp_receiver.py  what both do with a request: parse, split by client, append to the spool, wait for the flush
"""
