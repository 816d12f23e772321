"""Streams as Iceberg tables, over the very segments of the log.

DIR/tables/catalog.db            an Iceberg SQL catalog: the newest metadata file of each table
DIR/tables/NAME/data/            hard links to the sealed Parquet segments of stream NAME
DIR/tables/NAME/metadata/        Iceberg's metadata files, manifest lists and manifests

A table is derived from the segments of its stream, and from nothing else. A process beside the broker
compares the segments with the files of the table, and commits the difference: a sealed segment is appended,
small files are replaced by the file they were merged into, and files that retention dropped are deleted. So
there is nothing to repair after a crash: the comparison at the start does it.

No byte is written twice: the table holds hard links. The log removes its own names whenever it likes. A link
lasts until no retained snapshot refers to it, so no reader finds a file missing.
"""
