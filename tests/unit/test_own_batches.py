"""Batches of a person's own dataset."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.catalog.own_code import load_own
from harness.data.source import DataSource, open_source
from harness.errors import SettingError
from harness.settings.resolve import resolve

_CODE = """
import weakref
import torch

LIVE = weakref.WeakSet()
MOST = [0]


class Samples:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        sample = torch.full((3 if index < 900 else 4,), float(index))
        LIVE.add(sample)
        MOST[0] = max(MOST[0], len(LIVE))
        return sample, index


data = Samples()
"""


def _source(folder: Path) -> DataSource:
    (folder / "samples.py").write_text(_CODE)
    return open_source(resolve({"model": "mlp", "data": f"{folder}/samples.py:data"}))


def test_a_large_batch_has_its_samples_in_order_and_few_of_them_at_a_time(tmp_path: Path) -> None:
    source = _source(tmp_path)
    order = np.random.default_rng(0).permutation(900)[:333]
    inputs, targets = source.fetch(order)
    assert targets.tolist() == order.tolist()
    assert torch.equal(inputs, targets[:, None].expand(-1, 3).float())
    assert load_own("data", tmp_path / "samples.py", "MOST")[0] < 100


def test_samples_of_several_sizes_are_refused_in_one_sentence_wherever_they_are(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=re.escape("Samples of samples.py:data make no batch")):
        _source(tmp_path).fetch(np.arange(836, 1000))
