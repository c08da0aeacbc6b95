"""`headroom demo`: a real broker and sixteen real clients with quotas, and the report of a minute.

run.py is the entry point, script.py the clients' rates and quotas, scenario.py starts and stops all of it. Tests start
brokers, JVMs and child processes with the same parts; tests/headroom/demo proves that the demo ends as its script says.

broker.py              a real Apache Kafka cluster on free local ports: KRaft, one or more nodes, started in seconds
jars.py                finds Java 17 and fetches the jars of Apache Kafka 4.3.1 once, with the Ivy in PySpark's wheel
java_clients.py        eight unmodified Java clients in one JVM, each driven by a Python thread
job.py                 the Spark job and its report in a separate process, so that everything Spark starts ends with
                       it
jvm.py                 a JVM with Kafka's classes, driven from Python through py4j: real Java clients, JMX, and Kafka's
                       own Admin, which sets topics, client quotas and telemetry subscriptions
librdkafka_clients.py  eight unmodified librdkafka clients in a separate process
processes.py           child processes that die with this process and do not receive the terminal's Ctrl-C, parts that
                       are made of them, and the error that ends the demo
"""
