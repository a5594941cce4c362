"""Metrics of live and recently ended runs, for Prometheus (docs/export-and-alerts.md)."""

from harness.metrics.exposition import Exposition, Scrape

__all__ = ["Exposition", "Scrape"]
