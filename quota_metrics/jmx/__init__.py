"""Reads the brokers' quota sensors from the Prometheus JMX exporter or Jolokia.

scrape.py does the HTTP requests; prometheus.py and sensors.py (also Jolokia's messages) are sans-I/O. Imports only
`exporters` and quota_metrics.config.
"""
