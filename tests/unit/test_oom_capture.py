"""Test what is seen of a failed step while its frames are alive: phase, module, line, and no person's
folders."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._utils import ExceptionWrapper

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import LiveSite, OomPhase
from harness.analysis.oom.text import render
from harness.device.protocol import AllocatorReading
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.records.memory import AllocationRow, ProcessLimit
from harness.settings.spec import change
from harness.train.loop import take_step
from harness.train.workload import Workload
from harness.watch.oom.backward import reached
from harness.watch.oom.capture import FailedRun, OomCapture, capture_evidence
from harness.watch.oom.raised import clean
from harness.watch.oom.reporter import MOST_SITES, live_sites
from harness.watch.timing import StepTimer
from tests.oom_factories import some_facts
from tests.train_factories import Clock, a_device, a_workload, raising


def an_error() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def captured(
    workload: Workload | None,
    act: Callable[[], Any],
    phase: OomPhase = OomPhase.FORWARD,
    device: FakeDevice | None = None,
    cap_bytes: int | None = 1 << 30,
) -> OomCapture:
    """Return what is seen of the error that `act` raises."""
    settings = a_workload().settings if workload is None else workload.settings
    settings = change(settings, {"memory_cap_gib": None if cap_bytes is None else cap_bytes / 2**30})
    try:
        act()
    except (RuntimeError, MemoryError) as error:
        device = device or a_device()
        memory = device.read_memory()
        run = FailedRun(settings, device, workload, memory, 5, tuple)
        return capture_evidence(error, 7, phase, run)
    raise AssertionError("nothing failed")


def a_step_of(workload: Workload) -> Callable[[], Any]:
    return lambda: take_step(workload, StepTimer(Clock()), 1)


@pytest.fixture
def workload() -> Workload:
    return a_workload()


def test_a_failure_in_a_module_names_it_and_the_line_that_called_it(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [path for path, module in workload.model.named_modules() if isinstance(module, nn.Linear)]
    monkeypatch.setattr(workload.model.get_submodule(layers[1]), "forward", raising(an_error()))
    capture = captured(workload, a_step_of(workload))
    requests = capture.request
    assert (requests.phase, requests.module, requests.module_kind) == (OomPhase.FORWARD, layers[1], "Linear")
    assert requests.stack[1].startswith("harness/models/")
    assert requests.note is None
    assert capture.are_weights_intact
    assert (capture.step, capture.baseline_bytes, capture.memory_state.cap_bytes) == (7, 5, 1 << 30)


def test_the_backward_pass_has_no_frames_and_says_so(workload: Workload) -> None:
    def fail(_gradient: Tensor) -> Tensor:
        raise an_error()

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return fail(gradient)

    plain = workload.forward
    workload.forward = lambda *batch: Failing.apply(plain(*batch))  # type: ignore[no-untyped-call]
    capture = captured(workload, a_step_of(workload), OomPhase.BACKWARD)
    assert capture.request.note is None
    assert capture.request.site is not None
    assert capture.request.site.startswith("tests/unit/test_oom_capture.py:")


def fail_in_backward_of(module: nn.Module) -> None:
    """Have autograd itself, without a Python frame, fail when the gradient for what `module` gave is due."""

    def spoil(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        factor = torch.ones_like(output)
        scaled = output * factor
        factor.add_(1)  # Saved for backward and changed since: autograd refuses, in C++.
        return scaled

    module.register_forward_hook(spoil)


def test_the_module_that_backward_had_reached_is_told_by_the_gradients_that_are_there(
    workload: Workload,
) -> None:
    layers = [path for path, module in workload.model.named_modules() if isinstance(module, nn.Linear)]
    fail_in_backward_of(workload.model.get_submodule(layers[-2]))
    requests = captured(workload, a_step_of(workload), OomPhase.BACKWARD).request
    assert (requests.module, requests.module_kind) == (layers[-2], "Linear")
    assert requests.code == "loss.backward()"
    assert requests.note is not None
    assert "without Python frames" in requests.note
    assert "that of the one behind it was there" in requests.note


def test_gradients_that_are_there_from_before_tell_no_module(workload: Workload) -> None:
    for parameter in workload.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    layers = [module for module in workload.model.modules() if isinstance(module, nn.Linear)]
    fail_in_backward_of(layers[-2])
    requests = captured(workload, a_step_of(workload), OomPhase.BACKWARD).request
    assert requests.module is None
    assert requests.note is not None
    assert "is not known" in requests.note


def test_modules_that_run_in_another_order_than_listed_are_not_guessed_at(workload: Workload) -> None:
    first = next(module for module in workload.model.modules() if isinstance(module, nn.Linear))
    first.weight.grad, first.bias.grad = torch.zeros_like(first.weight), torch.zeros_like(first.bias)
    assert reached(workload) is None


def test_an_update_that_failed_may_have_changed_weights(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload.optimizer, "step", raising(an_error()))
    capture = captured(workload, a_step_of(workload), OomPhase.OPTIMIZER)
    assert not capture.are_weights_intact


class FailingModel(nn.Module):
    """Runs out of memory as it is made, or as it is called."""

    def __init__(self, *, is_made: bool, has_weights: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2) if has_weights else nn.Identity()
        if not is_made:
            raise an_error()

    def forward(self) -> None:
        """Run out of memory."""
        raise an_error()


@pytest.mark.parametrize(
    ("act", "phase"),
    [
        (raising(an_error()), OomPhase.SETUP),
        (lambda: FailingModel(is_made=False), OomPhase.BUILD),
        (lambda: FailingModel(is_made=True)(), OomPhase.FORWARD),
    ],
)
def test_before_there_is_a_training_the_frames_say_what_ran(act: Callable[[], Any], phase: OomPhase) -> None:
    """The data of a script, its model, or an evaluation of it."""
    capture = captured(None, act, OomPhase.SETUP)
    assert capture.request.phase is phase
    assert capture.request.module is None
    assert capture.categories == ()


def test_an_error_raised_from_the_one_of_memory_has_the_evidence_of_both(workload: Workload) -> None:
    def train() -> None:
        kept = torch.ones(5_000)
        try:
            raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB."))(kept)
        except torch.OutOfMemoryError as error:
            raise RuntimeError("batch 7 failed") from error

    capture = captured(workload, train)
    assert "Tried to allocate 64.00 MiB" in capture.error
    assert capture.request.error_bytes == 64 << 20
    functions = [call.rpartition(" ")[2] for call in capture.request.stack]
    assert (functions.count("train"), functions[-1]) == (1, "captured")
    assert capture.request.site != capture.request.stack[functions.index("train")]
    assert [one.name for one in capture.variables if one.held_bytes == 20_000] == ["kept"]


def test_behind_the_line_of_a_package_stands_the_one_of_the_script(workload: Workload) -> None:
    names: dict[str, Any] = {}
    source = "def run(depth, act):\n    return run(depth - 1, act) if depth else act()\n"
    exec(compile(source, "/usr/lib/python3/dist-packages/trainers/loop.py", "exec"), names)
    request = captured(workload, lambda: names["run"](12, raising(an_error()))).request
    assert request.site is not None
    assert request.site.startswith("tests/")
    act = partial(torch.zeros, 2**60)
    request = captured(workload, lambda: names["run"](12, act)).request
    assert (request.site, request.stack[-1]) == ("trainers/loop.py:2 run", "trainers/loop.py:2 run")
    assert request.script_site is not None
    assert request.script_site.startswith("tests/unit/test_oom_capture.py:")
    facts = some_facts(**request._asdict())
    assert f"… from {request.script_site}" in render(explain(facts))


def test_a_transform_of_a_dataset_is_no_forward_pass() -> None:
    transform = FailingModel(is_made=True, has_weights=False)
    assert captured(None, transform, OomPhase.SETUP).request.phase is not OomPhase.FORWARD


def test_a_batch_too_large_for_the_model_is_found_for_real(workload: Workload) -> None:
    plain = workload.to_device

    def huge(batch: Any) -> Any:
        inputs, targets = plain(batch)
        return inputs[:1].expand(2**40, *inputs.shape[1:]), targets

    workload.to_device = huge
    capture = captured(workload, a_step_of(workload))
    assert capture.request.phase is OomPhase.FORWARD
    assert capture.request.error_bytes is not None
    assert capture.request.error_bytes > 2**40
    assert capture.request.least_bytes == capture.request.most_bytes == capture.request.error_bytes


def test_on_cuda_the_size_in_the_error_is_a_segments(workload: Workload) -> None:
    device = FakeDevice(FAKE_FACTS)
    requests = captured(workload, raising(an_error()), device=device).request
    assert (requests.error_bytes, requests.least_bytes, requests.most_bytes) == (20 << 20, 1 << 20, 10 << 20)


def test_the_size_in_an_error_about_the_hosts_memory_is_the_arrays(workload: Workload) -> None:
    error = MemoryError("Unable to allocate 20.0 MiB for an array with shape (5, 1048576) and data type flo")
    requests = captured(workload, raising(error), device=FakeDevice(FAKE_FACTS)).request
    assert (requests.error_bytes, requests.least_bytes, requests.most_bytes) == (20 << 20,) * 3


@pytest.mark.parametrize("allocate", [np.random.rand, np.ones])
def test_the_line_of_an_array_is_not_one_of_numpy(
    workload: Workload, allocate: Callable[[int], object]
) -> None:
    def draw() -> None:
        allocate(1 << 45)

    site = captured(workload, draw).request.site
    assert site is not None
    assert site.endswith(" draw")


def test_the_line_of_a_workers_error_is_the_workers_own(workload: Workload) -> None:
    def load_sample() -> None:
        torch.empty(1 << 50)

    def run_worker() -> None:
        try:
            try:
                raise KeyError("not in the cache")
            except KeyError:
                load_sample()
        except RuntimeError:
            ExceptionWrapper(where="in DataLoader worker process 0").reraise()

    request = captured(workload, run_worker).request
    assert request.phase is OomPhase.WORKER
    assert [call.split()[-1] for call in request.stack] == [
        "load_sample",
        "run_worker",
        "run_worker",
        "captured",
    ]
    assert request.code == "torch.empty(1 << 50)"


def test_a_limit_that_the_script_set_is_the_cap_of_a_run_without_one(workload: Workload) -> None:
    text = "CUDA out of memory. Tried to allocate 20.00 MiB. 2.94 GiB allowed; Of the allocated memory 2.81"
    capture = captured(workload, raising(torch.OutOfMemoryError(text)), cap_bytes=None)
    assert capture.memory_state.cap_bytes == int(2.94 * 2**30)
    assert captured(workload, raising(torch.OutOfMemoryError(text))).memory_state.cap_bytes == 1 << 30


class LimitedDevice(FakeDevice):
    """A device in a process with `ulimit -d`."""

    def read_allocator(self) -> AllocatorReading:
        return super().read_allocator()._replace(process_limit=ProcessLimit("ulimit -d", 600, 590, 200))


def test_a_loaders_worker_fills_the_limit_with_memory_of_its_own(workload: Workload) -> None:
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 51200 bytes."
    device = LimitedDevice(FAKE_FACTS)
    limit = captured(workload, raising(RuntimeError(text)), device=device).memory_state.process_limit
    assert limit == ProcessLimit("ulimit -d", 600, 590, 200)

    def limit_of_worker(text: str, cap_bytes: int | None = None) -> ProcessLimit | None:
        error = RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n{text}")
        capture = captured(workload, raising(error), device=device, cap_bytes=cap_bytes)
        return capture.memory_state.process_limit

    assert limit_of_worker(text) == ProcessLimit("ulimit -d", 600, 600, 0)
    # The machine, the cap or /dev/shm may have refused these.
    assert limit_of_worker(text.replace("51200", str(1 << 50))) is None
    assert limit_of_worker(text, cap_bytes=1 << 30) is None
    assert limit_of_worker("unable to allocate shared memory(shm) for file </torch_1>: Success (0)") is None


def test_what_a_workers_error_says_is_not_cut_off(workload: Workload) -> None:
    frames = "".join(f'  File "torch/utils/data/{n}.py", line {n}, in fetch\n    code()\n' for n in range(90))
    error = RuntimeError(
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f"{frames}RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.\n"
    )
    assert captured(workload, raising(error)).error == (
        "Caught RuntimeError in DataLoader worker process 0. RuntimeError: DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 8 bytes."
    )


def test_holders_are_told_in_all_and_by_module(workload: Workload) -> None:
    categories = captured(workload, raising(an_error())).categories
    weights = sum(weight.nbytes for weight in workload.model.parameters())
    assert ("weights", None, weights) in categories
    assert sum(size for category, module, size in categories if category == "weights" and module) == weights


def test_what_others_hold_is_only_said_when_it_is_more_than_a_drivers_share(workload: Workload) -> None:
    device = FakeDevice(FAKE_FACTS)
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
        "{free} is free. Including non-PyTorch memory, this process has 70.00 GiB memory in use."
    )
    others = []
    for free in ("9.50 GiB", "2.00 GiB"):
        error = torch.OutOfMemoryError(text.format(free=free))
        others.append(captured(workload, raising(error), device=device).memory_state.others_bytes)
    assert others == [None, 8 << 30]


def test_nothing_of_the_step_is_kept(workload: Workload) -> None:
    capture = captured(workload, raising(an_error()))

    def values(row: Any) -> list[Any]:
        return [v for item in row for v in (values(item) if isinstance(item, tuple) else [item])]

    kinds = {type(value) for value in values(capture[:2] + capture[3:])}
    assert kinds <= {int, str, bool, type(None), OomPhase}


def test_an_errors_text_loses_its_folders_and_its_lines() -> None:
    home = str(Path.home())
    text = (
        f'Caught it.\n  File "{home}/code/venv/lib/python3.12/site-packages/torch/nn/x.py", line 3\n{home}/a'
    )
    assert clean(text) == 'Caught it. File "torch/nn/x.py", line 3 ~/a'


def test_live_tensors_are_told_by_line_the_largest_first() -> None:
    def row(site: str, live_bytes: int, stack: str = "a stack") -> AllocationRow:
        return AllocationRow(0, 1, "activations", "m", site, stack, live_bytes, 2, None, None)

    rows = [row("a.py:1 f", 5), row("b.py:2 g", 7), row("a.py:1 f", 6), row("weight", 99, "")]
    assert live_sites(rows) == [LiveSite("a.py:1 f", 11, 4), LiveSite("b.py:2 g", 7, 2)]
    assert len(live_sites(row(f"{n}.py:1 f", n) for n in range(100))) == MOST_SITES
