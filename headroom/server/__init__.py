"""`headroom serve`: app.py builds and runs all parts, and stops them in reverse order, after startup_check.py
and addresses.py.

receivers/ builds and opens what clients connect to; http.py the HTTP endpoint (http_connection.py limits its clients);
pages.py the web pages; storage.py runs the store; quotas/ reads quotas and JMX; processes/ has the child processes and
their supervisors; levels_worker.py runs the levels process, in which level_schedule.py says when what is computed;
forwarding.py runs the forwarding process; store_readings.py puts contents of the store on /metrics; health.py says what
is wrong although the service is ready; reload.py reads the settings again; access.py reads certificates and tokens;
metrics.py and periodic.py are shared by all; process_limits.py tunes malloc and forbids core dumps. Imports everything
except headroom.cli and headroom.demo.
"""
