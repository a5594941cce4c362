"""Analysis of memory: breakdown, pressure, snapshots, alerts, and the verdict on a run."""
