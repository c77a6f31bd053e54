"""Where texts come from: files, Parquet, JSON lines, the Hub; how they are divided."""
