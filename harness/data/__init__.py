"""The data sources, one per file."""
