"""Runs over a real Ray cluster on this machine: `make ray-check`."""
