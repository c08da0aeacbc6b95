"""Quotas in `headroom serve`: effective quotas per broker, JMX, stored limits.

jmx_recorder.py    reads the brokers' quota sensors periodically: rows of usage with source 'jmx'
other_gateways.py  what other gateways before the same cluster measured of a client, read from the store that they
                   share
quota_state.py     what a gateway knows of quotas, measures and writes: builds the parts for it; the history of limits
                   continues after a restart from those in the store
topic_usage.py     writes what was read of sampled frames to the spool, each minute, with the names of topics
"""
