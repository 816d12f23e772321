"""The at-sign broker: lines of type@topic@contents@flag (port 8000)."""
