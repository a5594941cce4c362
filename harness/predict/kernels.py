"""Memory of kernels besides their results, measured by running them on this machine.

It depends on the processor, on the instructions that the libraries may use, and on the number of threads:
blocked copies of a convolution's inputs, packing buffers of a matrix product, code compiled for a shape. So
each distinct call of a traced step runs twice, on zeros, in a process forked for one trace, after the same
warm-up as a run.
"""

import gc
import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Self

import torch

from harness.device.cpu.heap import open_heap
from harness.errors import StepscopeError
from harness.predict.address_space import AddressSpace
from harness.predict.calls import Call, storage_bytes
from harness.train.warming import warm_up

_RECURRENT = "mkldnn_rnn_layer"


class Footprint(NamedTuple):
    """Memory of one kernel in bytes, besides its results: retained permanently after its first call, and at
    the high-water mark of a later one. `result_sizes` are the bytes of the storages that it returned."""

    retained_bytes: int
    temporary_bytes: int
    result_sizes: tuple[int, ...]


class KernelsError(StepscopeError):
    """The process that runs kernels has exited or failed to start."""


class Kernels:
    """Runs calls in a child process forked from this one, one at a time. As in a run, kernels retain memory
    for later calls, so open a new instance per trace.

    This process must not have used more than one of torch's threads: they do not survive a fork.
    """

    def __init__(self, threads: int) -> None:
        """`threads` is the number of torch's threads in the run."""
        self._threads = threads
        self._pid: int | None = None
        self._calls: BinaryIO | None = None
        self._footprints: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Start the child process. Raises KernelsError."""
        gc.collect()
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            self._pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            raise KernelsError(f"The process that runs kernels did not start: {error.strerror}.") from None
        calls_read, calls_write, answers_read, answers_write = ends
        if self._pid == 0:
            os.close(calls_write)
            os.close(answers_read)
            _become_child(calls_read, answers_write, self._threads)
        os.close(calls_read)
        os.close(answers_write)
        self._calls, self._footprints = open(calls_write, "wb"), open(answers_read, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process. Idempotent; waits for the current call."""
        if self._calls is not None:
            with suppress(BrokenPipeError):  # The child has ended, and did not read the last call.
                self._calls.close()
        if self._footprints is not None:
            self._footprints.close()
        if self._pid is not None:
            os.waitpid(self._pid, 0)
        self._pid = self._calls = self._footprints = None

    def measure(self, call: Call) -> Footprint | None:
        """Return the footprint of `call`; None if it cannot run on zeros. Raises KernelsError."""
        assert self._calls is not None
        assert self._footprints is not None
        try:
            pickle.dump(call, self._calls)
            self._calls.flush()
            footprint: Footprint | None = pickle.load(self._footprints)
        except (BrokenPipeError, EOFError):
            raise KernelsError("The process that runs kernels has ended.") from None
        return footprint


def _become_child(calls: int, answers: int, threads: int) -> None:
    """Serve calls until there are no more, and exit without the parent's exit handlers."""
    code = 1
    try:
        gc.freeze()
        gc.disable()
        with open(calls, "rb") as questions, open(answers, "wb") as footprints:
            _serve(questions, footprints, threads)
        code = 0
    finally:
        os._exit(code)


def _serve(calls: BinaryIO, footprints: BinaryIO, threads: int) -> None:
    heap = open_heap()
    if heap is None:
        return  # Without malloc's figures nothing is measured, and the prediction has a note on it.
    space = AddressSpace(heap)
    torch.set_num_threads(threads)
    warm_up(torch.device("cpu"))
    workspaces: dict[Any, int] = {}
    while True:
        try:
            call: Call = pickle.load(calls)
        except EOFError:
            return
        with torch.set_grad_enabled(call.is_grad_enabled):
            footprint = _footprint(call, space, workspaces)
        if footprint is not None and call.operator == _RECURRENT:
            workspaces[_layer(call)] = footprint.result_sizes[-1]
        pickle.dump(footprint, footprints)
        footprints.flush()


def _layer(call: Call) -> Any:
    """Return the layouts of a recurrent layer's input and weights."""
    return call.arguments[:3]


def _footprint(call: Call, space: AddressSpace, workspaces: Mapping[Any, int]) -> Footprint | None:
    """Measure `call`: its first run allocates the retained memory, the second one shows the temporary memory.
    `workspaces`: bytes of the workspaces that recurrent layers return for backward, by layer."""
    arguments, keywords = call.materialize()
    if call.operator == f"{_RECURRENT}_backward":
        if _layer(call) not in workspaces:
            return None
        arguments[-1] = torch.zeros(workspaces[_layer(call)], dtype=torch.uint8)
    function = call.function
    before_bytes = space.in_use_bytes
    try:
        function(*arguments, **keywords)
        retained_bytes = space.in_use_bytes - before_bytes
        temporary_bytes, result = space.measure(lambda: function(*arguments, **keywords))
    except (RuntimeError, IndexError, ValueError):  # Zeros are invalid inputs for it.
        return None
    return Footprint(max(0, retained_bytes), temporary_bytes, _storage_sizes(result))


def _storage_sizes(result: Any) -> tuple[int, ...]:
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(map(storage_bytes, results))
