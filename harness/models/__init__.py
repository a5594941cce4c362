"""The models a run can train, one family a file."""
