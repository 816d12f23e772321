"""Simulated devices: they measure, publish, and go wrong on purpose."""
