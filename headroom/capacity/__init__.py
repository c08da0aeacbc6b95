"""Predicts the resources of a deployment: measured figures (figures.json) and the model that applies them.

In: number of clients, push interval, Kafka traffic. Out: gateways, cores, memory, disk, network.
Imports no other package of this repository. docs/scale.md explains the model and its limits.

model.py  the model of `headroom plan`: a workload times the measured figures
"""
