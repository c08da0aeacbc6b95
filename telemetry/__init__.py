"""KIP-714 client telemetry: from bytes on a socket to rows in the store.

gateway/        sockets of Kafka clients and brokers     -> requests
receiver/       a request in, decision and spool record out (Kafka protocol and gRPC)
subscriptions/  KIP-714 as decisions: client instances, subscriptions, their administration
wire/           Kafka's bytes: primitives, frames, messages, address rewrites
decode/         OTLP payload -> columns
ingest/         spool -> tables in the store
forward/        spool -> an OTLP endpoint
verification/   checks whether a client does what KIP-714 asks of it
proto/          the gRPC service and its generated messages

Imports: gateway -> receiver -> subscriptions -> wire, ingest -> decode -> wire, forward -> decode, subscriptions,
and verification -> gateway, decode.
"""
