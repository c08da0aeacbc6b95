"""What a deployment costs before it is built: measured figures (figures.json) and the model that multiplies them.

In: how many clients, how often they push, how much Kafka traffic. Out: gateways, cores, memory, disk, network.
Imports nothing of ours. docs/scale.md explains the model and where it breaks.
"""
