"""`headroom serve`: app.py builds all parts top to bottom, runs them and stops them in reverse order.

listeners/ builds and opens what clients connect to, http.py the HTTP endpoint; quotas/ adds quota readings; processes/
are the child processes and their supervisors; metrics.py and periodic.py serve all of them.
"""
