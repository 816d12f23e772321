"""Several nodes as one broker: every node applies the same groups, in the order of a replicated log."""
