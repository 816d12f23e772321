"""The classic programs, run as a user would."""
