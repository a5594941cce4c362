"""The memory of an evaluation, which is that of no step."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.store.reader import LogReader
from tests.attach_factories import attached

MIB = 1 << 20


# Peaks are sampled in steps of 40 ms and more.
@pytest.mark.slow
def test_the_step_after_an_evaluation_has_its_own_peak(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.zeros(8, 16, 64)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(2):
            for batch in batches:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                time.sleep(0.06)
            with torch.no_grad():
                model.eval()
                large = torch.zeros(64 * MIB // 4)
                for _ in range(10):
                    model(batches[0])
                    time.sleep(0.06)
                del large
                model.train()
        session.end(None)
    assert guard.message is None
    with LogReader(folder.log) as log:
        peaks = [row.peak_allocated_bytes or 0 for row in log.last_steps(100)]
    assert len(peaks) == 16
    assert max(peaks) < 32 * MIB
