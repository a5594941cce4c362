"""Scripts in the styles that people write, bare and under watch: the same numbers, and the right steps."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.attach.launch import attaching
from harness.device.cpu.device import CpuDevice
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.vital_signs import read_vital_signs
from tests.attach_factories import SCRIPTS, ran, ran_watched, record_each_evaluation, recorded, steps_of
from tests.script_factories import an_origin
from tests.train_factories import raising

# Lightning's own, with this torch.
LIGHTNING_MARKS = (
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
)
STYLES = [
    ("image_classifier.py",),
    ("word_language_model.py",),
    ("word_language_model.py", "--manual"),
    ("gan.py",),
    ("gan.py", "3"),
    ("vae.py",),
    ("char_gpt.py",),
    ("checkpointing.py",),
    ("lbfgs.py",),
    ("several_models.py",),
    ("update_in_backward.py",),
    pytest.param(("hf_trainer.py",), marks=pytest.mark.slow),
    pytest.param(("lightning_module.py",), marks=LIGHTNING_MARKS),
    ("accelerate_loop.py",),
]
# The steps before which a script has created another optimizer: its model is searched for.
SEARCHES = {"several_models.py": {11, 21}}


def name_of(style: object) -> str:
    return " ".join(style) if isinstance(style, tuple) else ""


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES, ids=name_of)
def test_a_script_trains_as_without_watch_and_its_steps_are_counted_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: tuple[str, ...]
) -> None:
    record_each_evaluation(monkeypatch)
    script = SCRIPTS / style[0]
    bare = ran(script, *style[1:])
    watched, folder = ran_watched(tmp_path, script, *style[1:])
    assert (bare.error, bare.stderr) == (None, "")
    assert (watched.error, watched.stdout, watched.stderr) == (None, bare.stdout, "")
    log = recorded(folder)
    steps = int(bare.stdout.rsplit("steps ", 1)[1])
    assert log.run.state == RunState.FINISHED
    assert log.run.state_message == f"The script ended after {steps} steps."
    assert [row.step for row in log.steps] == list(range(1, steps + 1))
    for row in log.steps:
        phases = [row.data_wait_ns, row.h2d_ns, row.forward_ns, row.backward_ns, row.optimizer_ns]
        assert sum(phases) <= row.step_ns
    assert all(row.samples for row in log.steps)
    assert all(row.forward_ns > 0 and row.backward_ns > 0 for row in log.steps[1:])
    assert log.unexplained_gaps_ns().keys() <= SEARCHES.get(style[0], set())


def test_the_first_forward_phase_ends_where_the_model_returns(tmp_path: Path) -> None:
    between_ns: list[int] = []

    def train() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            first = model(torch.ones(2, 4))
            began_ns = time.perf_counter_ns()
            torch.randn(20_000).sort()
            between_ns.append(time.perf_counter_ns() - began_ns)
            (first + model(torch.ones(2, 4))).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    log = steps_of(tmp_path, train)
    assert [row.step for row in log.steps] == [1, 2]
    for row, one_ns in zip(log.steps, between_ns, strict=True):
        phases_ns = row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns + row.optimizer_ns
        assert row.step_ns - phases_ns >= one_ns


def test_a_script_goes_on_if_its_session_cannot_be_opened_and_its_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "open", raising(ValueError("no memory figures")))
    folder = Home(tmp_path).create_for_script(None, an_origin(), 0)
    with attaching(folder, {}) as attachment:
        attachment.attach()
        assert attachment.session is None
        attachment.end(None)
    signs = read_vital_signs(folder.alive)
    assert signs is not None
    assert signs.state == RunState.FINISHED
    assert "ValueError: no memory figures; the script goes on without Stepscope." in signs.message
