"""`headroom subscriptions`: reads and alters a cluster's telemetry subscriptions.

commands.py  list, describe, alter, delete, preview (headroom.subscription_preview)
"""
