"""Measure what Stepscope costs, measured as ratios within one run: `python -m tests.bench [NAME…]
[--quick]`."""
