"""Analysis of a machine's telemetry: energy, throttling, notices."""
