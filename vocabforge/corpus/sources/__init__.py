"""Sources of texts (files, Parquet, JSON lines, the Hub) and their division into shards."""
