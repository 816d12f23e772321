"""Five classic small brokers, alive on Pyrite: see docs/classics.md."""
