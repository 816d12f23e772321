"""The classic programs, run as a person would."""
