"""The texts by which a Kafka client is configured, read as Java and librdkafka read them.

java_properties     a properties file, as java.util.Properties
jaas                sasl.jaas.config, as Kafka's JaasConfig
names               which properties have an effect here; others of sasl.* and ssl.* are refused
oauthbearer         where tokens come from, and which extensions go with them
bootstrap_servers   HOST:PORT,..., also with a protocol
"""
