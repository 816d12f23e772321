"""Topic names and filters: what is valid, what matches, and a tree that finds topics by filter."""
