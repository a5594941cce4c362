"""The run folder on disk: the only package with SQL."""
