"""The five classic brokers, reimplemented on Pyrite; see docs/classics.md."""
