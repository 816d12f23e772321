"""The newsroom: two subjects, subscribers who come back (port 12345)."""
