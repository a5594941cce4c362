"""Devices behind one protocol: memory, clocks, telemetry and limits."""
