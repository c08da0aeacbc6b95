"""The facts of a cluster that Headroom's figures depend on: versions, quota windows, callback, limits per address.

facts           one immutable value, and what follows from it
decoding        responses of the brokers -> facts
reading         asks each broker; what could not be read, and what that means
document        facts as JSON
releases        feature levels -> Kafka releases
"""
