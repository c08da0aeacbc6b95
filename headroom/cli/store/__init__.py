"""`headroom store`: whether a ClickHouse fits, before the first row."""
