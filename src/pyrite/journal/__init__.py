"""Durability of what the broker holds: group commit, the state database, recovery."""
