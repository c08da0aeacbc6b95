"""How near a client is to its quota: windows of usage, levels, and the reason in words.

The definitions stand here once. ClickHouse and Spark compute with the same texts: ``windows_query`` makes windows from
samples of usage, ``definition`` has utilisation and worst broker as SQL expressions that both engines understand,
level and reason as ClickHouse's, ``minute`` the statement with which ``headroom serve`` computes each minute.
docs/levels.md explains them.
"""
