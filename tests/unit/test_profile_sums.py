"""Test what a profiler recorded is added up by operator, kernel, module and phase; CUDA's events among it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from harness.errors import SettingError
from harness.profiling.cupti import TEARDOWN, missing_kernels_reason, prepare
from harness.profiling.events import Event, Role, read
from harness.profiling.frames import frame_name
from harness.profiling.nesting import OperatorSum, ProfileSums, SelfSum, sum_events, union_ns
from harness.profiling.rows import MOST_MODULES, MOST_OPERATORS, MOST_STACKS, NO_LINES, around, rows
from harness.records.profile import OperatorKind
from harness.settings.profile_steps import parse_profile_at

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def a_step_on_a_gpu() -> list[Event]:
    """The loop in thread 1, autograd in thread 2: a linear layer forward and backward, then the optimizer.

    Forward: addmm [20, 40) launches a kernel that runs [30, 130). Backward: its node runs mm [60, 80), whose
    kernel runs [130, 330). The optimizer's kernel [340, 350) is launched without an operator.
    """
    launch, kernel = Role.LAUNCH, Role.KERNEL
    return [
        Event(Role.STEP, "ProfilerStep#1", 0, 400, 1),
        Event(Role.PHASE, "forward", 10, 50, 1),
        Event(Role.MODULE, "", 12, 48, 1),
        Event(Role.MODULE, "layer", 15, 45, 1),
        Event(Role.OPERATOR, "aten::addmm", 20, 40, 1, sequence=7, correlation=1),
        Event(launch, "cudaLaunchKernel", 25, 30, 1, correlation=1, linked=1),
        Event(kernel, "gemm_a", 30, 130, 0, correlation=1, linked=1),
        Event(Role.PHASE, "backward", 50, 100, 1),
        Event(Role.NODE, NODE, 55, 85, 2, sequence=7, forward_thread=1, correlation=2),
        Event(Role.OPERATOR, "AddmmBackward0", 56, 84, 2, sequence=7, forward_thread=1, correlation=3),
        Event(Role.OPERATOR, "aten::mm", 60, 80, 2, correlation=4),
        Event(launch, "cudaLaunchKernel", 65, 70, 2, correlation=2, linked=4),
        Event(kernel, "gemm_b", 130, 330, 0, correlation=2, linked=4),
        Event(Role.NODE, "autograd::engine::evaluate_function: AccumulateGrad", 86, 90, 2, correlation=5),
        Event(Role.PHASE, "optimizer", 100, 120, 1),
        Event(launch, "cudaLaunchKernel", 105, 110, 1, correlation=3),
        Event(kernel, "adam", 340, 350, 0, correlation=3),
    ]


def test_a_range_that_an_operator_opens_goes_on_after_it() -> None:
    """As under a dispatch mode. The shortest step is noted."""
    events = [
        Event(Role.OPERATOR, "PythonDispatchMode", 0, 5_000, 1),
        Event(Role.STEP, "ProfilerStep#1", 2_000, 40_000, 1),
        Event(Role.OPERATOR, "aten::mm", 10_000, 30_000, 1),
        Event(Role.STEP, "ProfilerStep#2", 40_000, 70_000, 1),
    ]
    sums = sum_events(events, is_on_device=False)
    assert (sums.wall_ns, sums.busy_ns, sums.fastest_ns) == (68_000, 3_000 + 20_000, 30_000)


def test_kernels_belong_to_the_operator_that_launched_them() -> None:
    sums = sum_events(a_step_on_a_gpu(), is_on_device=True)
    addmm, node = sums.operators["aten::addmm", False], sums.operators[NODE, False]
    assert (addmm.self_cpu_ns, addmm.total_cpu_ns) == (15, 20)
    assert (addmm.self_device_ns, addmm.total_device_ns) == (100, 100)
    assert (node.self_cpu_ns, node.total_cpu_ns) == (2, 30)
    assert (node.self_device_ns, node.total_device_ns) == (0, 200)
    assert sums.operators["cudaLaunchKernel", False].self_device_ns == 0
    assert {name: result.self_device_ns for (name, _), result in sums.kernels.items()} == {
        "gemm_a": 100,
        "gemm_b": 200,
        "adam": 10,
    }


def test_what_runs_backward_belongs_to_the_module_of_its_forward_operator() -> None:
    sums = sum_events(a_step_on_a_gpu(), is_on_device=True)
    device = {place: result.self_device_ns for place, result in sums.modules.items() if result.self_device_ns}
    assert device == {
        ("layer", "forward"): 100,
        ("layer", "backward"): 200,
        ("<optimizer>", "optimizer"): 10,
    }
    assert sums.modules["layer", "backward"].self_cpu_ns == 30 + 4
    assert sums.modules["layer", "forward"].calls == 1
    assert sum(result.self_device_ns for result in sums.modules.values()) == 310
    assert sum(result.self_cpu_ns for result in sums.modules.values()) == sum(
        result.self_cpu_ns for result in sums.operators.values()
    )


def test_idle_is_what_no_kernel_covers() -> None:
    sums = sum_events(a_step_on_a_gpu(), is_on_device=True)
    assert (sums.wall_ns, sums.busy_ns) == (400, 310)
    assert sum_events(a_step_on_a_gpu(), is_on_device=False).busy_ns == (40 - 20) + (85 - 55) + 4 + 5


def test_an_operator_within_itself_is_counted_once_in_its_total() -> None:
    outer, inner = Event(Role.OPERATOR, "aten::sum", 0, 10, 1), Event(Role.OPERATOR, "aten::sum", 2, 6, 1)
    result = sum_events([outer, inner], is_on_device=False).operators["aten::sum", False]
    assert (result.calls, result.self_cpu_ns, result.total_cpu_ns) == (2, 10, 10)


def test_memory_belongs_to_the_innermost_operator() -> None:
    events = [
        Event(Role.OPERATOR, "aten::linear", 0, 100, 1),
        Event(Role.OPERATOR, "aten::addmm", 10, 50, 1),
        Event(Role.MEMORY, "[memory]", 20, 20, 1, size_bytes=512),
        Event(Role.MEMORY, "[memory]", 60, 60, 1, size_bytes=-128),
        Event(Role.MEMORY, "[memory]", 200, 200, 1, size_bytes=4),
    ]
    operators = sum_events(events, is_on_device=False).operators
    assert operators["aten::addmm", False].size_bytes == 512
    assert operators["aten::linear", False].size_bytes == -128


def test_stacks_go_from_the_outermost_line_to_the_operator() -> None:
    events = [
        Event(Role.FRAME, "train.py(10): train", 0, 100, 1),
        Event(Role.FRAME, "hidden.py(1): call", 5, 95, 1),
        Event(Role.FRAME, "model.py(20): forward", 10, 90, 1),
        Event(Role.OPERATOR, "aten::linear", 20, 80, 1, sequence=3),
        Event(Role.NODE, NODE, 110, 120, 1, sequence=3, forward_thread=1),
    ]

    def show(name: str) -> str | None:
        return None if name.startswith("hidden") else name

    stacks = sum_events(events, False, show).stacks
    forward = ("train.py(10): train", "model.py(20): forward")
    assert {frames: result.self_cpu_ns for frames, result in stacks.items()} == {
        (*forward, "aten::linear"): 60,
        (*forward, "AddmmBackward0", NODE): 10,
    }


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: tuple(sorted(pair))))


@given(SPANS, st.integers(0, 30), st.integers(30, 60))
def test_the_union_counts_every_moment_once(spans: list[tuple[int, int]], first: int, last: int) -> None:
    moments = {at for start, end in spans for at in range(start, end) if first <= at < last}
    assert union_ns(spans, first, last) == len(moments)


@st.composite
def nested(draw: st.DrawFn, start: int = 0, end: int = 400, depth: int = 0) -> list[Event]:
    """Operators and modules within each other."""
    result: list[Event] = []
    at = start
    while at + 2 < end and draw(st.booleans()):
        begin = draw(st.integers(at, end - 2))
        stop = draw(st.integers(begin + 1, end - 1))
        role = draw(st.sampled_from([Role.OPERATOR, Role.MODULE, Role.PHASE, Role.NODE, Role.FRAME]))
        name = "forward" if role is Role.PHASE else draw(st.sampled_from("abc"))
        result.append(Event(role, name, begin, stop, 1, draw(st.integers(-1, 3))))
        if depth < 4:
            result += draw(nested(begin, stop, depth + 1))
        at = stop
    return result


@given(nested())
def test_own_times_add_up_to_what_operators_cover(events: list[Event]) -> None:
    window = Event(Role.STEP, "ProfilerStep#1", 0, 400, 1)
    sums = sum_events([window, *events], is_on_device=False)
    own = sum(result.self_cpu_ns for result in sums.operators.values())
    assert own == sums.busy_ns
    assert own == sum(result.self_cpu_ns for result in sums.modules.values())
    assert own == sum(result.self_cpu_ns for result in sums.stacks.values())
    made = rows(1, sums, {}, is_on_device=False, with_memory=False, with_stacks=True)
    assert own == sum(row.self_cpu_ns for row in made.operators)
    assert own == sum(row.self_cpu_ns for row in made.modules)


def many(count: int) -> ProfileSums:
    sums = ProfileSums(wall_ns=10**9, busy_ns=10**8)
    for number in range(count):
        sums.operators[f"aten::mm_{number}", False] = OperatorSum(1, 10 + number, 10 + number)
        sums.modules[f"a{number % 7}.b{number}.c", "forward"] = SelfSum(1, 10 + number, 0)
        sums.stacks[f"f.py:{number} f", "aten::mm"] = SelfSum(1, 10 + number, 0)
    return sums


def test_stacks_without_a_line_of_python_say_so() -> None:
    sums = many(0)
    sums.stacks["AddmmBackward0", "aten::mm"] = SelfSum(1, 10, 0)
    assert rows(1, sums, {}, False, with_memory=False, with_stacks=True).left_out == [NO_LINES]
    assert rows(1, sums, {}, False, with_memory=False, with_stacks=False).left_out == []
    sums.stacks["train.py:3 main", "aten::mm"] = SelfSum(1, 10, 0)
    assert rows(1, sums, {}, False, with_memory=False, with_stacks=True).left_out == []


def test_what_is_too_much_is_summed_up_and_said() -> None:
    count = 2 * MOST_MODULES
    sums = many(count)
    own = sum(result.self_cpu_ns for result in sums.operators.values())
    made = rows(1, sums, {"a1": "Block"}, is_on_device=False, with_memory=True, with_stacks=True)
    assert len(made.operators) <= MOST_OPERATORS + len(OperatorKind)
    assert len(made.modules) == 1 + 7
    assert len(made.stacks) == MOST_STACKS
    assert sum(row.self_cpu_ns for row in made.operators) == own
    assert sum(row.self_cpu_ns for row in made.modules) == own
    assert {row.self_device_ns for row in made.operators} == {None}
    assert len(made.left_out) == 3
    assert all(sentence.endswith(".") for sentence in made.left_out)


def test_the_optimizer_s_work_is_its_own_kind_whatever_it_is_called() -> None:
    sums = ProfileSums()
    sums.kernels["elementwise_kernel", True] = OperatorSum(1, 0, 0, 5, 5)
    sums.kernels["elementwise_kernel", False] = OperatorSum(1, 0, 0, 7, 7)
    sums.kernels["ncclDevKernel_AllReduce", True] = OperatorSum(1, 0, 0, 3, 3)
    made = rows(1, sums, {}, is_on_device=True, with_memory=False, with_stacks=False)
    assert [(row.kind, row.self_device_ns, row.is_kernel) for row in made.operators] == [
        (OperatorKind.ELEMENTWISE, 7, 1),
        (OperatorKind.OPTIMIZER, 5, 1),
        (OperatorKind.COMMUNICATION, 3, 1),
    ]


def test_around_a_module_are_all_those_on_its_path() -> None:
    assert around("blocks.0.query") == ["blocks.0.query", "blocks.0", "blocks", ""]
    assert around("") == [""]
    assert around("<loss>") == ["<loss>"]


class _Kineto(NamedTuple):
    """An event as PyTorch hands it out."""

    facts: dict[str, Any]

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name not in self.facts:
            raise AttributeError(name)
        return lambda: self.facts[name]


def an_event(name: str, device: Any = DeviceType.CPU, **facts: Any) -> _Kineto:
    usual = {
        "start_ns": 1,
        "duration_ns": 2,
        "start_thread_id": 1,
        "sequence_nr": -1,
        "fwd_thread_id": 0,
        "correlation_id": 3,
        "linked_correlation_id": 0,
        "nbytes": 0,
        "is_user_annotation": False,
    }
    return _Kineto({**usual, "name": name, "device_type": device, **facts})


@pytest.mark.parametrize("tells_activity", [True, False])
def test_of_a_gpu_s_track_only_its_work_counts(tells_activity: bool) -> None:
    def told(name: str, kind: str, device: Any = DeviceType.CUDA, **facts: Any) -> _Kineto:
        return an_event(name, device, **facts, **({"activity_type": kind} if tells_activity else {}))

    result = read(
        [
            told("phase: forward", "user_annotation", DeviceType.CPU, is_user_annotation=True),
            told("module: a.b", "cpu_op", DeviceType.CPU),
            told("ProfilerStep#4", "user_annotation", DeviceType.CPU, is_user_annotation=True),
            told("somebody's", "user_annotation", DeviceType.CPU, is_user_annotation=True),
            told("aten::mm", "cpu_op", DeviceType.CPU),
            told("cudaLaunchKernel", "cuda_runtime", DeviceType.CPU),
            told("gemm", "kernel", linked_correlation_id=3),
            told("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
            told("phase: forward", "gpu_user_annotation"),
            told("Context Sync", "cuda_sync"),
            told("[memory]", "cpu_instant_event", nbytes=512),
            told("[memory]", "cpu_instant_event", DeviceType.CPU, nbytes=64),
        ],
        is_on_device=True,
    )
    assert [(event.role, event.name) for event in result] == [
        (Role.PHASE, "forward"),
        (Role.MODULE, "a.b"),
        (Role.STEP, "ProfilerStep#4"),
        (Role.OPERATOR, "aten::mm"),
        (Role.LAUNCH, "cudaLaunchKernel"),
        (Role.KERNEL, "gemm"),
        (Role.KERNEL, "Memcpy HtoD (Pinned -> Device)"),
        (Role.MEMORY, "[memory]"),
    ]
    assert result[-1].size_bytes == 512


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/home/me/project/model.py(20): forward", "project/model.py:20 forward"),
        ("torch/nn/modules/linear.py(1): forward", None),
        ("contextlib.py(9): __enter__", None),
        ("<built-in method addmm>", None),
        ("<frozen os>(12): get", None),
        ("harness/profiling/ranges.py(12): inside", None),
        ("harness/watch/capture/profiles.py(12): before_step", None),
        ("harness/watch/guard.py(12): run", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_a_stack_shows_a_person_s_own_lines(name: str, expected: str | None) -> None:
    assert (
        frame_name(name, lambda path: "/".join(path.split("/")[-2:]) if path[0] == "/" else path) == expected
    )


@pytest.mark.parametrize(
    ("cuda", "before", "after"),
    [("12.6", None, "1"), ("13.0", None, "1"), ("12.6", "0", "0"), ("12.4", None, None), (None, None, None)],
)
def test_cupti_is_let_go_of_where_that_is_safe(
    cuda: str | None, before: str | None, after: str | None
) -> None:
    environ = {} if before is None else {TEARDOWN: before}
    prepare(environ, cuda)
    assert environ.get(TEARDOWN) == after


def denied() -> str:
    return "EnableMSI: 1\nRmProfilingAdminOnly: 1\n"


def missing() -> str:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("environ", "parameters", "can_record", "is_root", "expected"),
    [
        ({}, missing, False, False, "built without CUPTI"),
        ({"CUDA_INJECTION64_PATH": "/opt/nsight.so"}, missing, True, False, "another profiler is attached"),
        ({"CUDA_INJECTION64_PATH": "none"}, denied, True, False, "ERR_NVGPUCTRPERM"),
        ({}, denied, True, True, "in use by another profiler"),
        ({}, missing, True, False, "it is missing"),
    ],
)
def test_why_a_gpu_shows_nothing_is_said_with_what_to_do(
    environ: dict[str, str],
    parameters: Callable[[], str],
    can_record: bool,
    is_root: bool,
    expected: str,
) -> None:
    assert expected in missing_kernels_reason(environ, parameters, is_root, can_record)


def test_steps_to_profile_at_are_read_in_order() -> None:
    assert parse_profile_at("1000, 100,100") == (100, 1000)
    assert parse_profile_at(None) == parse_profile_at(" ") == ()


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "a", "1,,2", "1 2", ",".join(map(str, range(1, 60)))])
def test_what_names_no_step_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(SettingError, match="profile_at"):
        parse_profile_at(text)
