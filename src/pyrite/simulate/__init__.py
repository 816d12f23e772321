"""Simulated devices that publish telemetry, with deliberate faults."""
