"""The cluster behind a gateway or an observer: when it answers, what it is like, and who is new.

cluster_metadata.py  its brokers and owners of delegation tokens: read until it answers, and again when one is new
facts_in_force.py    its facts: read again and again, compared with the settings, shown
"""
