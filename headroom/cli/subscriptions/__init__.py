"""`headroom subscriptions`: commands read and alter a cluster's telemetry subscriptions.

commands  list, describe, alter, delete, preview
preview   which known clients a subscription would match, and how many points a second they would send
"""
