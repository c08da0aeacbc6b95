"""`headroom demo`: a real broker, sixteen real clients, quotas, and the evidence that the report is right."""
