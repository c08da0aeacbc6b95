"""Predicts the resources of a deployment: measured figures (figures.json) and the model that applies them.

In: number of clients, push interval, Kafka traffic. Out: gateways, cores, memory, disk, network.
Imports no other package of this repository. docs/scale.md explains the model and its limits.

figures.py  costs measured by `make scale` and `make bench`, each with its date and machine
model.py    the model of `headroom plan`: a workload times the measured figures
"""
