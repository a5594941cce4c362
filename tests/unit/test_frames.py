"""Test which frames of a stack are a person's own code."""

import pytest

from harness.tracking.frames import NO_SITE, StackFrame, is_library, reduce_stack, site

STEP = StackFrame("project/train.py", 12, "step")


@pytest.mark.parametrize(
    "file",
    [
        "thread48.o",
        "clone.S",
        "CUDACachingAllocator.cpp",
        "libc.so.6",
        "torch/nn/modules/module.py",
        "??",
        "x.inl",
        "numpy/random/_common.pyx",
        "numpy/_core/numeric.py",
        "z3/cz3vcpgktv5ml3u33u6ylioqz73qzckh5lb5msnz4b7q6gkaykiv.py",
    ],
)
def test_libraries_other_languages_and_what_torch_compile_writes_are_no_persons_code(file: str) -> None:
    frames = reduce_stack([StackFrame(file, 0, "allocate"), STEP])
    assert is_library(file)
    assert site(frames) == STEP.text
    assert site(reduce_stack([StackFrame(file, 0, "start_thread")])) == NO_SITE


@pytest.mark.parametrize(
    "file", ["project/train.py", "<stdin>", "notebook.ipynb", "project/foo", "ops.o.py", "z3/cz3.py"]
)
def test_python_is(file: str) -> None:
    assert not is_library(file)


def test_a_stack_has_no_frames_of_what_passes_batches_on_to_the_script() -> None:
    stack = [StackFrame("torch/utils/data/dataloader.py", 7, "__next__")]
    stack += [
        StackFrame("harness/attach/remarks.py", 9, "_timed"),
        StackFrame("stepscope/run.py", 8, "_until"),
    ]
    assert site(reduce_stack([*stack, STEP])) == STEP.text
