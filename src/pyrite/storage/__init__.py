"""Arrow and Parquet on disk: segments, index, checksums, tiering, verification, range reads."""
