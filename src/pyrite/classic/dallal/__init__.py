"""Dallal: publish and subscribe over TCP (1373) and UDP (1234)."""
