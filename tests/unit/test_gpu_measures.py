"""The measurements of `make gpu-check` as far as they go on a CPU: their arithmetic and their draws."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from harness.device.cpu.device import CpuDevice
from harness.device.find import open_device
from harness.device.nvml.driver import Nvml
from harness.device.testing.allocation_history import FakeMemoryHistory, HeapOverflowError
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.profiling.events import Event, Role
from harness.records.run import AmpMode
from harness.settings.resolve import check_fit, resolve
from harness.tracking.history import CudaHistory
from tests.gpu import overflow, running_out, sections
from tests.gpu.comparing import DEFAULT, QUICK, Block, compare, summary
from tests.gpu.configurations import draw, label
from tests.gpu.context import Context
from tests.gpu.journal import ResultsFile, StageResults
from tests.gpu.measures import nvml, phases, refcount, suite, texts

MIB = 1 << 20


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_seed_draws_the_same_configurations_and_another_seed_others() -> None:
    drawn = draw(1, 60)
    assert drawn == draw(1, 60)
    assert drawn != draw(2, 60)
    assert len({label(values) for values in drawn}) == 60
    for values in drawn:
        check_fit(resolve(values))


def test_configurations_cover_models_presets_and_settings() -> None:
    drawn = draw(3, 60)
    assert len({values["model"] for values in drawn}) >= 10
    assert {values["preset"] for values in drawn} == {"laptop", "workstation", "h200"}
    assert {values["amp"] for values in drawn} == {"off", "bf16", "fp16"}
    assert {values["amp"] for values in draw(3, 60, amp_modes=(AmpMode.OFF,))} == {"off"}


def test_variants_are_held_against_the_default_of_their_own_round() -> None:
    rounds = [
        {DEFAULT: Block(1.0, 100), "fast": Block(0.5, 60)},
        {DEFAULT: Block(2.0, 100), "fast": Block(1.0, 60)},
        {DEFAULT: Block(2.0, 100), "fast": Block(0.5, 60)},
    ]
    result = summary([DEFAULT, "fast", "odd"], rounds, {"odd": "cannot be"})
    assert list(result["variants"]) == [DEFAULT, "fast", "odd"]
    fast = result["variants"]["fast"]
    assert (fast["speed"], fast["speed_low"], fast["speed_high"]) == (2.0, 2.0, 4.0)
    assert fast["memory"] == 0.6
    assert result["variants"][DEFAULT]["speed"] == 1.0
    assert result["variants"]["odd"] == {"refused": "cannot be"}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("from_host", [False, True])
def test_settings_are_compared_on_a_real_workload(from_host: bool) -> None:
    variants: dict[str, dict[str, Any]] = {
        "AMP bf16": {"amp": "bf16"},
        "AMP fp16": {"amp": "fp16"},
        "smaller": {"batch_size": 4},
    }
    values = {"model": "cnn", "batch_size": 64}
    result = compare(CpuDevice.open(), values, variants, QUICK, 1, from_host)
    assert (result["batch_size"], result["rounds"]) == (64, QUICK.most_rounds)
    rows = result["variants"]
    assert "cannot be 'fp16'" in rows["AMP fp16"]["refused"]
    assert rows[DEFAULT]["speed"] == 1.0
    assert rows["smaller"]["speed"] > 1.5, "a sixteenth of the work"
    assert rows["AMP bf16"]["speed_low"] <= rows["AMP bf16"]["speed"] <= rows["AMP bf16"]["speed_high"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_preset_that_is_too_slow_is_measured_with_a_smaller_batch() -> None:
    plan = QUICK._replace(most_s=1e-4)
    result = compare(CpuDevice.open(), {"model": "mlp", "batch_size": 8}, {}, plan, 1)
    assert result["batch_size"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_phases_agree_with_the_profiler_on_the_cpu() -> None:
    # Other processes lengthen single phases.
    results = [phases.compare(open_device("cpu"), {"model": "cnn"}) for _ in range(3)]
    for phase in ("forward", "backward", "optimizer"):
        assert 0.8 < median(result[phase] for result in results) < 1.25


def test_a_phase_is_held_against_its_kernels_and_a_step_against_their_span() -> None:
    """A step of 100 µs with kernels from 10 to 90: 30 µs in the forward pass, 40 in the backward pass."""

    def event(role: Role, name: str, start_us: int, end_us: int, **values: int) -> Event:
        return Event(role, name, start_us * 1000, end_us * 1000, 1, **values)

    events = [
        event(Role.STEP, "ProfilerStep#1", 0, 100),
        event(Role.PHASE, "forward", 0, 8),
        event(Role.OPERATOR, "aten::mm", 1, 6, correlation=1),
        event(Role.LAUNCH, "cudaLaunchKernel", 2, 4, correlation=11),
        event(Role.KERNEL, "gemm", 10, 40, correlation=11, linked=1),
        event(Role.PHASE, "backward", 9, 20),
        event(Role.OPERATOR, "aten::mm", 10, 16, correlation=2),
        event(Role.LAUNCH, "cudaLaunchKernel", 11, 14, correlation=12),
        event(Role.KERNEL, "gemm", 50, 90, correlation=12, linked=2),
    ]
    times = [{"step": 84_000, "forward": 33_000, "backward": 50_000, "optimizer": 0}]
    result = phases.against_kernels(times, events)
    assert result["step"] == pytest.approx(84 / 80)
    assert result["forward"] == pytest.approx(33 / 30)
    assert result["backward"] == pytest.approx(50 / 40)
    assert "optimizer" not in result


def test_references_are_counted() -> None:
    retained: list[bool] = []

    def leak() -> None:
        retained.append(False)

    result = refcount.count(leak, 500)
    if sys.version_info >= (3, 12):
        assert result["is_immortal"]
    else:
        assert not result["is_immortal"]
        assert result["after"] - result["before"] >= 500


class Recording(FakeMemoryHistory):
    """A ring with torch's rules that the sequence's own tensors fill."""

    def _snapshot(self) -> dict[str, object]:
        blocks = [{"frames": [1]}] * overflow.ALIVE
        return super()._snapshot() | {"segments": [{"blocks": blocks}]}


@pytest.mark.slow
@pytest.mark.parametrize("is_cleared", [True, False])
def test_the_sequence_overflows_a_ring_that_is_not_cleared(
    is_cleared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Recording()
    empty = torch.empty

    def recorded(*sizes: int, device: str) -> torch.Tensor:
        ring.record(1)
        return empty(0)

    monkeypatch.setattr(torch, "empty", recorded)
    history = CudaHistory(ring)
    if is_cleared:
        counts = overflow.provoke(history.keep, history, "cpu")
        assert counts == {"alive": 60_000, "events": 1, "blocks_with_stack": 60_000}
    else:
        with pytest.raises(HeapOverflowError):
            overflow.provoke(lambda: ring._record_memory_history("state"), history, "cpu")


def test_an_error_is_kept_verbatim_with_what_is_read_from_it() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which"
    )

    def fail(_device: object) -> None:
        raise torch.OutOfMemoryError(text)

    result = running_out.provoke(CpuDevice.open(), fail)
    assert (result["class"], result["text"]) == ("OutOfMemoryError", text)
    assert result["is_out_of_memory"]
    assert result["numbers"]["requested_bytes"] == 512 * MIB
    assert json.loads(json.dumps(result)) == result
    assert running_out.provoke(CpuDevice.open(), lambda _: None)["text"] is None


def test_the_cases_of_running_out_are_those_of_the_stage() -> None:
    assert {case for group in texts.GROUPS.values() for case in group.cases} == set(running_out.CASES)


def test_a_tool_that_is_missing_is_told() -> None:
    result = texts.run_group(texts.Group(("cap",), ("no-such-tool",)))
    assert result == [{"problem": "no-such-tool is not installed"}]


def test_the_text_of_an_error_in_another_process_is_whole() -> None:
    stderr = "Traceback…\n  File x\ntorch.AcceleratorError: CUDA error: out of memory\nCompile with DSA.\n"
    assert running_out.last_error(stderr) == (
        "torch.AcceleratorError: CUDA error: out of memory\nCompile with DSA."
    )


_SUITE = """
import os, signal
import pytest

def test_that_passes(record_property):
    record_property("figure", 42)

def test_that_fails():
    assert 1 == 2

@pytest.fixture
def odd():
    yield
    raise ValueError("left behind")

def test_whose_teardown_fails(odd):
    pass

def test_that_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_behind_the_crash():
    pass
"""
_RUN_SUITE = """
import sys
from pathlib import Path
from tests.gpu.context import Context
from tests.gpu.journal import ResultsFile
from tests.gpu.measures.suite import run_tests
run_tests(Context("tests", ResultsFile(Path(sys.argv[1]))), [sys.argv[2]], "not nothing")
"""


@pytest.mark.long
def test_tests_are_kept_one_by_one_and_a_crash_costs_one(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "card.jsonl")
    file = tmp_path / "test_things.py"
    file.write_text(_SUITE, encoding="utf-8")
    command = [sys.executable, "-c", _RUN_SUITE, str(results.path), str(file)]
    first = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert first.returncode == -9, first.stderr
    stage = results.read().stage("tests")
    assert stage.open_item is not None
    assert stage.open_item.endswith("test_that_crashes")
    results.failure("tests", stage.open_item, "killed by SIGKILL")
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert second.returncode == 0, second.stderr
    result = results.read().stage("tests").values
    outcomes = {name.rpartition("::")[2]: row["outcome"] for name, row in result.items()}
    assert outcomes == {
        "test_that_passes": "passed",
        "test_that_fails": "failed",
        "test_whose_teardown_fails": "failed",
        "test_behind_the_crash": "passed",
    }
    (passed,) = (row for name, row in result.items() if name.endswith("passes"))
    assert passed["figures"] == [["figure", "42"]]
    (failed,) = (row for name, row in result.items() if name.endswith("that_fails"))
    assert failed["reason"]


@pytest.mark.long
def test_a_file_of_tests_goes_on_in_another_process_behind_a_crash(tmp_path: Path) -> None:
    context = Context("tests", ResultsFile(tmp_path / "card.jsonl"))
    file = tmp_path / "test_things.py"
    file.write_text(_SUITE, encoding="utf-8")
    suite.run_file(context, str(file), "not nothing", 60)
    stage = ResultsFile(context.path).read().stage("tests")
    assert {name.rpartition("::")[2] for name in stage.values} == {
        "test_that_passes",
        "test_that_fails",
        "test_whose_teardown_fails",
        "test_behind_the_crash",
    }
    ((crashed, reason),) = stage.failures.items()
    assert crashed.endswith("test_that_crashes")
    assert reason.startswith("exit code -9")
    (failed,) = (row for name, row in stage.values.items() if name.endswith("that_fails"))
    assert (failed["reason"], failed["reason"] in failed["detail"]) == ("assert 1 == 2", True)
    assert context.has_time
    suite.run_file(context, str(file), "not nothing", 0)
    assert not context.has_time


@pytest.mark.long
def test_tests_that_cannot_be_collected_are_an_error(tmp_path: Path) -> None:
    context = Context("tests", ResultsFile(tmp_path / "card.jsonl"))
    with pytest.raises(RuntimeError, match="test_absent"):
        suite.run_file(context, str(tmp_path / "test_absent.py"), "gpu", 60)


def test_every_file_with_tests_for_a_gpu_is_run() -> None:
    root = Path(__file__).parents[2]
    marked = [path for path in (root / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()]
    modules = {path.relative_to(root).as_posix() for path in marked} - {"tests/unit/test_gpu_measures.py"}
    assert modules <= set(suite.test_files())


def test_each_query_of_nvml_is_timed_and_those_that_fail_are_left_out() -> None:
    gpu = FakeGpu()
    library = FakeNvml([gpu])
    library.fail("nvmlDeviceGetTotalEnergyConsumption", "NotSupported")
    times_ms = nvml.query_times(Nvml(library), gpu.uuid)
    assert {"util_pct", "sm_active_pct", "processes"} <= set(times_ms)
    assert "energy_j" not in times_ms
    assert all(ms >= 0 for ms in times_ms.values())
    assert library.gpm_samples == 0
    (line,) = filter(None, sections.nvml(StageResults(values={nvml.TIMES: times_ms})))
    assert line.startswith("processor time of each query: ")
    assert "util_pct 0.0" in line
