"""The measured memory of a person's own model in the catalog's loop."""

from pathlib import Path

import pytest

from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.warm_start import WarmProcess

_FILE = """
import torch
from torch import nn

LIBRARY = bytearray(16 << 20)

def build(settings):
    return nn.Linear(256, 1024), nn.functional.cross_entropy

dataset = torch.utils.data.TensorDataset(torch.ones(64, 256), torch.ones(64, dtype=torch.int64))
"""


@pytest.mark.parametrize("has_own_file", [False, True])
def test_what_its_file_imports_is_not_allocated_by_the_run(tmp_path: Path, has_own_file: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(_FILE)
    data = tmp_path / "mine_data.py" if has_own_file else file
    data.write_text(_FILE)
    values = {"model": f"{file}:build", "data": f"{data}:dataset", "device": "cpu"}
    folder = Home(tmp_path / "home").create(None, resolve({**values, "batch_size": 4, "max_steps": 6}), 0)
    assert WarmProcess(folder).wait(60) == 0
    with LogReader(folder.log) as log:
        allocated_bytes = log.steps(1, 6)[-1].allocated_bytes
    # The weight and the two moments of Adam; gradients are released between steps.
    assert allocated_bytes is not None
    assert 3 <= allocated_bytes / 2**20 <= 5
