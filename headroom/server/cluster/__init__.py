"""The cluster behind a gateway or an observer: when it answers, what it is like, and who is new.

cluster_start.py    waits until it answers, which may be long after the start
cluster_refresh.py  reads brokers and owners of delegation tokens again when clients show that one is new
facts_in_force.py   its facts: read again and again, compared with the settings, shown
"""
