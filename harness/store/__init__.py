"""The run folder on disk: the only package that speaks SQL."""
