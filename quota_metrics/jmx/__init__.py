"""The brokers' quota sensors by the Prometheus JMX exporter or Jolokia. scrape.py reads them; all else is sans-I/O."""
