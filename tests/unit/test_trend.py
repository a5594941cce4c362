"""Test what the statistics of the leak detector retain: on the CPU it is a part of the memory they judge."""

import subprocess
import sys

from harness.analysis.leak.growth import LEAST_RISE

# In a process of its own: what is retained was not there before.
CODE = """
import tracemalloc
import numpy as np
from harness.analysis.leak.history import MOST_BLOCKS
from harness.analysis.leak.trend import mann_kendall, trend
tracemalloc.start()
for length in range(2, MOST_BLOCKS + 1):
    steps = np.arange(float(length))
    mann_kendall(steps)
    trend(steps, steps)
print(tracemalloc.get_traced_memory()[0])
"""


def test_trends_of_series_of_all_lengths_retain_less_than_a_leak() -> None:
    retained = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert 0 < int(retained) < LEAST_RISE
