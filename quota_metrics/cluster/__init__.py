"""The facts of a cluster that Headroom's figures depend on: versions, quota windows, callback, limits per address.

facts.py        one immutable value, and what follows from it; feature levels -> Kafka releases
reading.py      asks each broker; what could not be read, and what that means; topics of a Metadata response
document.py     facts as JSON
replication.py  replication throttles: which of them limit nothing any more, and the commands that remove them
"""
