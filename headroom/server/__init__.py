"""`headroom serve`: app.py builds and runs all parts, and stops them in reverse order, after startup_check.py
and addresses.py.

receivers/ builds and opens what clients connect to; http.py the HTTP endpoint (http_connection.py limits its clients);
pages.py the web pages; storage.py runs the store; quotas/ reads quotas and JMX; processes/ has the child processes and
their supervisors; minute_levels.py computes the levels of each minute that has ended; store_readings.py and
window_levels.py put contents of the store on /metrics; metrics.py and periodic.py are shared by all; process_limits.py
tunes malloc and forbids core dumps. Imports everything except headroom.cli and headroom.demo.
"""
