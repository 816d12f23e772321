"""Faults against a cluster of real nodes, while real clients record what was acknowledged and delivered."""
