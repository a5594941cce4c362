"""Comparison of runs: figures with intervals, differing settings, aligned curves, gates. Pure functions."""
