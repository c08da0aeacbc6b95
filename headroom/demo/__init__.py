"""`headroom demo`: a real broker, sixteen real clients with quotas, and evidence that the report is correct.

run.py is the entry point, script.py the clients' rates and quotas, scenario.py starts and measures, evidence.py
compares with the broker's own numbers, levels.py reads the level that each interface shows. kit/ starts real parts and
is shared with the tests.

java_clients.py        eight unmodified Java clients in one JVM, each driven by a Python thread
job.py                 the Spark job and its report in a separate process, so that everything Spark starts ends with
                       it
librdkafka_clients.py  eight unmodified librdkafka clients in a separate process
screenshots.py         screenshots of the web pages by a Chromium of this machine
"""
