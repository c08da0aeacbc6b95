"""`headroom serve`: app.py builds all parts top to bottom, runs them and stops them in reverse order.

gateway.py, sink.py, grpc.py and http.py each build and open one listener; quotas/ adds quota readings; processes/ are
the child processes and their supervisors; metrics.py and periodic.py serve all of them.
"""
