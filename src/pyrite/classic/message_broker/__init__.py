"""The message broker: publish and subscribe over TCP (1370), every message to every subscriber."""
