"""Staging and the exactly-once commit of what Spark and Flight write."""
