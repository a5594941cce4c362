"""The models, one family per file."""
