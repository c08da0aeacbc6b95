"""`headroom serve`: app.py builds and runs all parts, and stops them in reverse order, after startup_check.py
and addresses.py.

listeners/ builds and opens the listeners; http.py the HTTP endpoint (http_connection.py limits its connections);
pages.py the web pages; storage.py runs the store; quotas/ reads quotas and JMX; processes/ has the child processes and
their supervisors; minute_levels.py computes the levels of each minute that has ended; store_readings.py and
window_levels.py put contents of the store on /metrics; metrics.py and periodic.py are shared by all; process_memory.py
tunes malloc and forbids core dumps. Imports everything except headroom.cli and headroom.demo.
"""
