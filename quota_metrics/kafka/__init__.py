"""An asyncio Kafka admin client: connections, TLS and SASL from Kafka's client properties, requests, error messages.

Independent of the rest of the project: imports only quota_metrics.config (values of requests) and libraries.

admin.py              an asyncio admin client: quotas, nodes, and any request that kio has classes for
authentication.py     authenticates to a broker by TLS and SASL, whose client mechanisms are generators
bootstrap_servers.py  HOST:PORT,..., also with a protocol
client_metrics.py     reads and alters the CLIENT_METRICS resources, where Kafka's tools store subscriptions (KIP-714)
cluster.py            a cluster's nodes, as values
connection.py         one connection to one broker: sends kio's requests and returns kio's responses, one at a time
errors.py             errors of requests to a cluster
frames.py             encodes kio's requests as frames and decodes frames to kio's responses
jaas.py               sasl.jaas.config, as Kafka's JaasConfig
oauthbearer.py        where tokens come from (a file, an issuer, unsigned for tests), and which extensions go with them
primitives.py         reads (with bounds checks) and writes Kafka's primitive types: of clients, and of brokers' answers
properties.py         a client's properties file (--command-config), as java.util.Properties; which names have an effect
tls.py                TLS by a client's properties (ssl.*, as named by Java and librdkafka), renewed without a restart
"""
