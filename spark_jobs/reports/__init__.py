"""What people and scripts read: rows as a terminal table, a self-contained HTML page, JSON, Parquet."""
