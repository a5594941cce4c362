"""The data sources a run can train on, one source a file."""
