"""Streams on disk: every message in Arrow and Parquet files, and the broker's state beside them."""
