"""The texts by which a Kafka client is configured, read as Java and librdkafka read them.

java_properties.py  a properties file, as java.util.Properties
jaas.py             sasl.jaas.config, as Kafka's JaasConfig
names.py            which properties have an effect here; others of sasl.* and ssl.* are refused
oauthbearer.py      where tokens come from, and which extensions go with them
bootstrap_servers.py  HOST:PORT,..., also with a protocol
"""
