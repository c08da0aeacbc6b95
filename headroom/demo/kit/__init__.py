"""Starts real parts for the demo and the tests: Kafka broker, JVM, admin tools, Prometheus, child processes."""
