"""Leak detection: trend tests of each memory series, attribution among the series, and sentences."""
