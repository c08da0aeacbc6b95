"""`headroom serve`: app.py builds and runs all parts, and stops them in reverse order, after startup_check.py
and addresses.py.

listeners/ builds and opens what clients connect to; cluster/ reads the cluster, quotas/ its quotas and JMX; http.py
is the HTTP endpoint; pages.py has the web pages; storage.py runs the store and compares the counts of records;
processes/ has the child processes and their parent's side; store_readings.py puts contents of the store on /metrics;
health.py says what is wrong although the service is ready; reload.py reads the settings again; metrics.py and
periodic.py are shared by all; process_limits.py tunes malloc and forbids core dumps.
"""
