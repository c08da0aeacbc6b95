"""`headroom subscriptions`: reads and alters a cluster's telemetry subscriptions.

commands  list, describe, alter, delete, preview
preview   computes which known clients a subscription would match, and how many points per second they would send
"""
