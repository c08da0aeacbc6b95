"""Starts real parts for the demo and the tests: Kafka broker, JVM, admin tools, Prometheus, child processes.

admin.py          sets topics, client quotas and telemetry subscriptions with Kafka's own Java Admin
broker.py         a real Apache Kafka cluster on free local ports: KRaft, one or more nodes, started in seconds
class_archive.py  the class data archive of a broker's JVM (JEP 350): classes that one JVM has loaded are mapped by
                  the next ones
errors.py         errors that end the demo, each with a one-line message
jars.py           finds Java 17 and fetches the jars of Apache Kafka 4.3.1 once, with the Ivy in PySpark's wheel
jmx.py            reads byte-rate and throttle-time of a broker's quota sensors by JMX
jvm.py            a JVM with Kafka's classes, driven from Python through py4j: real Java clients, admin, JMX
pacing.py         paces records: the rate is exact over time, without a burst after a stall
processes.py      child processes that die with this process and do not receive the terminal's Ctrl-C
prometheus.py     a Prometheus of this machine that scrapes a `headroom serve` and evaluates the rules of
                  deploy/prometheus
service.py        base class of parts with a life cycle
serving.py        runs `headroom serve` in a child process, as a user would
"""
