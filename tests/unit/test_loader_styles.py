"""Scripts in several styles whose batch size and mixed precision change while they run."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, _utils

from harness.attach.launch import Script, execute
from tests.loader_factories import Watched, watched

SCRIPTS = Path(__file__).parents[1] / "scripts"
UPDATES_BEFORE = 2
"""Optimizer steps before the request, which is carried out at the end of the step under way."""


def run_changed(run: Watched, script: str, **values: Any) -> BaseException | None:
    """Run a script in this process, and request `values` after some of its optimizer steps."""
    updates = 0

    def stepped(*_arguments: Any) -> None:
        nonlocal updates
        updates += 1
        if updates == UPDATES_BEFORE:
            run.request(**values)

    argv, path, threads = sys.argv, list(sys.path), torch.get_num_threads()
    handle = register_optimizer_step_post_hook(stepped)
    try:
        with redirect_stdout(StringIO()):
            return execute(Script(str(SCRIPTS / script), (), is_module=False))
    finally:
        handle.remove()
        sys.argv, sys.path[:] = argv, path
        torch.set_num_threads(threads)


def record_fetches(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Return the indices that are loaded from now on in this process, by dataset, in order."""
    fetched: dict[int, list[int]] = defaultdict(list)
    datasets = []
    fetch: Any = _utils.fetch._MapDatasetFetcher.fetch

    def recorded(fetcher: Any, indices: Sequence[int]) -> Any:
        datasets.append(fetcher.dataset)  # Its id stays its own.
        fetched[id(fetcher.dataset)] += indices
        return fetch(fetcher, indices)

    monkeypatch.setattr(_utils.fetch._MapDatasetFetcher, "fetch", recorded)
    return fetched


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["image_classifier.py", "vae.py", "gan.py", "checkpointing.py", "several_models.py"]
)
def test_a_script_whose_batch_size_and_amp_change_sees_every_sample_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fetched = record_fetches(monkeypatch)
    with watched(tmp_path) as run:
        assert run_changed(run, script, batch_size=4, amp="bf16") is None
    (answer,) = [message for state, message in run.answers() if state == "applied"]
    assert "→ 4" in answer
    assert 4 in run.samples_per_step()
    for indices in fetched.values():
        whole = len(set(indices))
        assert whole == max(indices) + 1
        epochs = [sorted(indices[at : at + whole]) for at in range(0, len(indices), whole)]
        assert epochs == [list(range(whole))] * len(epochs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "size", "drop_last", "state"),
    [
        (nn.BatchNorm1d(4), 5, False, "rejected"),  # 56 samples are in an epoch
        (nn.BatchNorm1d(4), 13, False, "rejected"),  # 40 samples are left of this epoch
        (nn.BatchNorm1d(4), 6, False, "applied"),
        (nn.BatchNorm1d(4), 5, True, "applied"),
        (nn.BatchNorm1d(4).eval(), 5, False, "applied"),
        (nn.LayerNorm(4), 5, False, "applied"),
    ],
)
def test_a_batch_size_that_leaves_one_sample_to_batch_normalization_is_rejected(
    tmp_path: Path, layer: nn.Module, size: int, drop_last: bool, state: str
) -> None:
    data: Any = torch.arange(56 * 4.0).reshape(56, 4)
    loader: DataLoader[Any] = DataLoader(data, batch_size=8, drop_last=drop_last)
    model = nn.Sequential(layer, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watched(tmp_path) as run:
        for step, batch in enumerate(loader, start=1):
            if step == 2:
                run.request(batch_size=size)
            model(batch).mean().backward()
            optimizer.step()
    ((answer, message),) = run.answers()
    assert answer == state, message
    assert (state == "rejected") == ("would have 1 sample" in message)
