"""Starters of real parts that the demo and the tests share: Kafka broker, JVM, clients' tools, child processes."""
