"""Errors of scripts after live changes: the outcome names the change, or leaves it out."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.declaration import declare
from harness.records.run import RunState
from tests.loader_factories import Stream
from tests.session_factories import Attached, a_session

pytestmark = pytest.mark.slow


class Script:
    """A script with an error in its loop: `check` is called with step, inputs and output."""

    def __init__(
        self, loader: DataLoader[Any], check: Callable[[int, torch.Tensor, torch.Tensor], None]
    ) -> None:
        self.loader = loader
        self.check = check
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, run: Attached, requests: dict[int, dict[str, Any]], epochs: int = 1) -> None:
        """Train; `requests` are made in the steps of these numbers."""
        step = 0
        for _ in range(epochs):
            for (inputs,) in self.loader:
                step += 1
                if step in requests:
                    run.ask(**requests[step])
                output = self.model(inputs)
                self.check(step, inputs, output)
                loss = output.square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


def a_loader(count: int = 400, size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(count, 4)), batch_size=size, **options)


def fixed_view(_step: int, _inputs: torch.Tensor, output: torch.Tensor) -> None:
    output.view(8, -1)


def failing_at(number: int) -> Callable[..., None]:
    def check(step: int, _inputs: torch.Tensor, _output: torch.Tensor) -> None:
        if step == number:
            raise ValueError("no such column")

    return check


def outcome_of(home: Path, script: Script, requests: dict[int, dict[str, Any]], epochs: int = 1) -> str:
    with suppress(RuntimeError, ValueError), a_session(home) as run:
        script.run(run, requests, epochs)
    with run.log() as log:
        row = log.run()
    assert row.state == RunState.FAILED
    return row.state_message


def test_a_view_with_the_earlier_size_names_the_change_and_both_sizes(tmp_path: Path) -> None:
    text = outcome_of(tmp_path, Script(a_loader(), fixed_view), {4: {"batch_size": 9}})
    assert text == (
        "RuntimeError: shape '[8, -1]' is invalid for input of size 18. It failed in the first step after a "
        "live change: Batch size 8 → 9, before step 5. The error names 8, the earlier batch size: the change "
        "is the likely cause. When it is run again, the script begins with its own values (batch 8)."
    )


def test_an_error_without_a_change_before_it_is_recorded_alone(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, Script(a_loader(), failing_at(7)), {}) == "ValueError: no such column"


def test_values_that_failed_in_the_loader_are_named_as_undone(tmp_path: Path) -> None:
    def collate(samples: list[Any]) -> Any:
        if len(samples) > 8:
            raise ValueError("at most eight")
        return torch.utils.data.default_collate(samples)

    script = Script(a_loader(collate_fn=collate), failing_at(9))
    text = outcome_of(tmp_path, script, {4: {"batch_size": 16}})
    assert "the last of 2 live changes: Batch size 8 → 16, before step 5; Batch size 16 → 8" in text
    assert text.endswith("One of them may be the cause.")


def test_a_smaller_batch_at_the_end_of_the_first_pass_leads_back_to_the_change(tmp_path: Path) -> None:
    def squeezed(_step: int, inputs: torch.Tensor, _output: torch.Tensor) -> None:
        if len(inputs.squeeze()) != len(inputs):
            raise ValueError("sizes differ")

    script = Script(a_loader(count=600), squeezed)
    text = outcome_of(tmp_path, script, {2: {"batch_size": 11}}, epochs=2)
    assert "It failed 53 steps after a live change: Batch size 8 → 11, before step 3." in text


def test_a_change_that_had_to_wait_counts_from_the_next_epoch(tmp_path: Path) -> None:
    loader = DataLoader(Stream(800), batch_size=8, collate_fn=lambda rows: (torch.randn(len(rows), 4),))
    text = outcome_of(tmp_path, Script(loader, fixed_view), {4: {"batch_size": 9}}, epochs=2)
    assert "It failed in the first step after a live change: Batch size 8 → 9, before step 101." in text
    script = Script(loader, failing_at(9))
    text = outcome_of(tmp_path / "waiting", script, {4: {"batch_size": 9}})
    assert "Batch size 8 → 9, requested before step 5 and not in effect yet." in text


def test_a_setting_of_the_script_is_named(tmp_path: Path) -> None:
    script = Script(a_loader(), failing_at(9))

    def check(step: int, inputs: torch.Tensor, output: torch.Tensor) -> None:
        if step == 2:
            run.session.remarks.declare(declare("width", 1, None, None, None))
        failing_at(9)(step, inputs, output)

    script.check = check
    with suppress(ValueError), a_session(tmp_path) as run:
        script.run(run, {4: {"width": 2}})
    with run.log() as log:
        assert "a live change: width 1 → 2, before step 5." in log.run().state_message
