"""Memory errors that a script catches itself, and updates that it lets fail."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Dataset

from harness.attach import caught_memory
from harness.attach.caught_memory import CaughtMemoryErrors
from harness.attach.guard import ScriptGuard
from harness.device.cpu.device import CpuDevice
from harness.records.run import MemoryReading
from tests.memory_hogs import TOO_MUCH, Hungry
from tests.session_factories import a_session
from tests.train_factories import raising


class LayerForEight(nn.Linear):
    """A layer that runs out of memory with batches of another size."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if len(inputs) == 8 else torch.empty(TOO_MUCH))


def test_an_error_that_is_caught_in_an_evaluation_is_of_no_step(tmp_path: Path) -> None:
    with a_session(tmp_path) as attached:
        layer = LayerForEight(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(20):
            layer(torch.ones(8, 4)).sum().backward()
            optimizer.step()
            with suppress(RuntimeError), torch.set_grad_enabled(step == 15):
                if step in (10, 15):
                    layer(torch.ones(9, 4))
    with attached.log() as log:
        messages = [event.message for _, event in log.events() if event.label == "out of memory, caught"]
    assert [message.partition(";")[0] for message in messages] == [
        "Memory ran out in the evaluation at step 11",
        "Memory ran out in the forward pass of step 17",
    ]


def test_an_error_that_is_caught_after_many_steps_alike_is_of_the_step_under_way(tmp_path: Path) -> None:
    with a_session(tmp_path) as attached:
        layer = LayerForEight(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(60):
            with suppress(RuntimeError):
                layer(torch.ones(9 if step == 40 else 8, 4)).sum().backward()
                optimizer.step()
    with attached.log() as log:
        messages = [event.message for _, event in log.events() if event.label == "out of memory, caught"]
    assert ["pass of step 41;" in message for message in messages] == [True]


def caught(home: Path, label: str, train: Callable[[nn.Module, torch.optim.Optimizer], None]) -> list[str]:
    """The messages of the events with `label` of a script that catches its errors in `train`."""
    with a_session(home) as attached:
        layer = LayerForEight(4, 4)
        train(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    with attached.log() as log:
        return [event.message for _, event in log.events() if event.label == label]


def test_an_error_that_is_caught_in_the_first_call_of_the_model_is_an_event(tmp_path: Path) -> None:
    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for size in (10, 9, 8, 8):
            with suppress(RuntimeError):
                layer(torch.ones(size, 4)).sum().backward()
                optimizer.step()

    messages = caught(tmp_path, "out of memory, caught", train)
    assert [message.partition(";")[0] for message in messages] == [
        "Memory ran out in the forward pass of step 1"
    ]


@pytest.mark.parametrize("bad_step", [1, 2, 41])
def test_an_error_of_a_library_class_that_is_caught_is_an_event(tmp_path: Path, bad_step: int) -> None:
    class OpenCvError(Exception):
        """The class of OpenCV's errors: not a RuntimeError."""

        __module__ = "cv2"

    class Resizing(nn.Linear):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == bad_step:
                raise OpenCvError(
                    "OpenCV(4.11.0) /io/modules/core/src/alloc.cpp:73: error: (-4:Insufficient memory) "
                    "Failed to allocate 4294967296 bytes in function 'OutOfMemoryError'"
                )
            return super().forward(inputs)

    with a_session(tmp_path) as attached:
        layer = Resizing(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(60):
            with suppress(OpenCvError):
                layer(torch.ones(8, 4)).sum().backward()
                optimizer.step()
    with attached.log() as log:
        (message,) = (event.message for _, event in log.events() if event.label == "out of memory, caught")
    assert message.startswith(f"Memory ran out in the forward pass of step {bad_step}; the script caught")
    assert "The request was for 4.00 GiB." in message


@pytest.mark.parametrize("bad_batch", [3, 40])
def test_an_error_that_is_caught_in_loading_is_an_event(tmp_path: Path, bad_batch: int) -> None:
    class Batches(Dataset[Tensor]):
        def __len__(self) -> int:
            return 480

        def __getitem__(self, index: int) -> Tensor:
            return torch.empty(TOO_MUCH) if index == 8 * bad_batch else torch.ones(4)

    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        batches = iter(DataLoader(Batches(), batch_size=8))
        for _ in range(60):
            with suppress(RuntimeError):
                layer(next(batches)).sum().backward()
                optimizer.step()

    (message,) = caught(tmp_path, "out of memory, caught", train)
    assert message.startswith(f"Memory ran out in data loading at step {bad_batch + 1}; the script caught")


@pytest.mark.parametrize("error", [None, ValueError("no more")])
def test_an_error_that_is_caught_at_the_end_of_the_script_is_an_event(
    tmp_path: Path, error: ValueError | None
) -> None:
    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(6):
            layer(torch.ones(8, 4)).sum().backward()
            optimizer.step()
        try:
            layer(torch.ones(9, 4))
        except RuntimeError:
            if error is not None:
                raise error from None

    with suppress(ValueError), a_session(tmp_path) as attached:
        layer = LayerForEight(4, 4)
        train(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    with attached.log() as log:
        (message,) = (event.message for _, event in log.events() if event.label == "out of memory, caught")
        assert log.memory.oom_reports() == []
    assert message.startswith("Memory ran out in the forward pass of step 7; the script caught the error.")


@pytest.mark.parametrize(("bad_step", "kind"), [(3, Hungry), (40, Hungry), (40, None)])
def test_an_update_whose_error_is_caught_is_an_event(
    tmp_path: Path, bad_step: int, kind: type[torch.optim.Optimizer] | None
) -> None:
    class Alternating(torch.optim.SGD):
        updates = 0

        def step(self, closure: Any = None) -> Any:
            self.updates += 1
            if self.updates == bad_step:
                torch.empty(TOO_MUCH)
            return super().step(closure)

    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer = optimizer if kind is not None else Alternating(layer.parameters(), lr=0.1)
        for step in range(1, 61):
            layer(torch.ones(8, 4)).sum().backward()
            failing = Hungry(layer.parameters(), lr=0.1) if kind is not None and step == bad_step else None
            with suppress(RuntimeError):
                (failing or optimizer).step()

    (message,) = caught(tmp_path, "update failed, caught", train)
    assert message.startswith(f"The optimizer's update of step {bad_step} did not finish: the script caught")


@pytest.mark.parametrize("is_handling", [False, True])
def test_memory_that_runs_out_in_an_update_is_named_once_its_error_is_known(
    tmp_path: Path, is_handling: bool
) -> None:
    """While the script handles it, as where it tries again in the handler; else from the second one on."""

    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(1, 61):
            layer(torch.ones(8, 4)).sum().backward()
            try:
                (Hungry(layer.parameters(), lr=0.1) if step in (20, 30, 40) else optimizer).step()
            except RuntimeError:
                if is_handling:
                    layer(torch.ones(8, 4)).sum().backward()
                    optimizer.step()

    untouched = record_function.__exit__
    (message,) = caught(tmp_path, "out of memory, caught", train)
    # The first of them made no step.
    start = f"Memory ran out in the optimizer's update of step {20 if is_handling else 29}; the script caught"
    assert message.startswith(start)
    assert "The request was for" in message
    assert "updated in part" in message
    assert record_function.__exit__ is untouched


def test_a_fault_in_following_the_errors_of_updates_is_not_raised_in_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(caught_memory, "read_error", raising(ValueError("a fault of the watch")))
    untouched, errors = record_function.__exit__, list[str]()
    with a_session(tmp_path):
        layer = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(1, 31):
            layer(torch.ones(8, 4)).sum().backward()
            try:
                (Hungry(layer.parameters(), lr=0.1) if step in (10, 20) else optimizer).step()
            except RuntimeError as error:
                errors.append(str(error))
    assert len(errors) == 2
    assert not any("a fault of the watch" in error for error in errors)
    assert "ValueError: a fault of the watch" in capsys.readouterr().err
    assert record_function.__exit__ is untouched


def test_where_the_allocator_counts_requests_the_first_update_without_memory_is_one(tmp_path: Path) -> None:
    class Counting(CpuDevice):
        ooms = 0

        def read_memory(self) -> MemoryReading:
            return read_memory(self)._replace(ooms=Counting.ooms)

    class Counted(Hungry):
        def step(self, closure: Any = None) -> Any:
            Counting.ooms += 1
            return super().step(closure)

    def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(1, 41):
            layer(torch.ones(8, 4)).sum().backward()
            with suppress(RuntimeError):
                (Counted(layer.parameters(), lr=0.1) if step == 20 else optimizer).step()

    read_memory = CpuDevice.read_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "read_memory", Counting.read_memory)
        (message,) = caught(tmp_path, "out of memory, caught", train)
    assert message.startswith("Memory ran out in the optimizer's update of step 20;")


def test_what_a_closure_of_an_update_calls_is_no_failed_update(tmp_path: Path) -> None:
    def train(layer: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.1, max_iter=3)

        def closure() -> Tensor:
            loss: Tensor = layer(torch.ones(8, 4)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            return loss

        for _ in range(20):
            optimizer.step(closure)

    assert caught(tmp_path, "update failed, caught", train) == []


def test_an_error_that_passes_two_models_is_counted_once() -> None:
    caught = CaughtMemoryErrors(ScriptGuard())
    for request in (1, 2):
        error = torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {request}.00 MiB.")
        for _ in range(2):
            caught.failed(error, "the forward pass")
    assert caught._seen == 2


@pytest.mark.parametrize(("of_model", "expected"), [(0, ["2 requests"]), (1, ["1 request"]), (2, [])])
def test_requests_that_fail_outside_of_all_calls_are_counted_by_the_allocator(
    tmp_path: Path, of_model: int, expected: list[str]
) -> None:
    """As CUDA's allocator counts them; `of_model` of the two have an error of the model."""

    class Counting(CpuDevice):
        ooms = 0

        def read_memory(self) -> MemoryReading:
            return read_memory(self)._replace(ooms=Counting.ooms)

    class Layer(LayerForEight):
        def forward(self, inputs: Tensor) -> Tensor:
            Counting.ooms += len(inputs) != 8
            return super().forward(inputs)

    read_memory = CpuDevice.read_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "read_memory", Counting.read_memory)
        with a_session(tmp_path) as attached:
            layer = Layer(4, 4)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for step in range(40):
                layer(torch.ones(8, 4)).sum().backward()
                optimizer.step()
                time.sleep(0.02)
                if step == 20:
                    Counting.ooms = 2 - of_model
                    for _ in range(of_model):
                        with suppress(RuntimeError), torch.no_grad():
                            layer(torch.ones(9, 4))
        with attached.log() as log:
            messages = [event.message for _, event in log.events() if event.label == "out of memory, caught"]
    counted = [text.split("allocator refused ")[1] for text in messages if "allocator refused" in text]
    assert [text.split(" outside")[0] for text in counted] == expected
