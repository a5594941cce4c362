"""Snapshots and profiles of the steps that follow a request."""
