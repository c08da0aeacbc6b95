"""Quotas in `headroom serve`: effective quotas per broker, JMX, stored limits.

jmx_scraper.py     reads the brokers' quota sensors periodically: rows of usage with source 'jmx'
other_gateways.py  what other gateways before the same cluster measured of a client, read from the store that they
                   share
quota_state.py     the state of quotas in the gateway: rules, facts, limits of clients and addresses, JMX sensors
stored_limits.py   reads the latest stored quotas of a cluster, from which the history continues after a restart
topic_usage.py     writes what was read of sampled frames to the spool, each minute, with the names of topics
"""
