"""Memory that kernels take beside the tensors they return, measured by running them on this machine.

It depends on the processor, on the instructions that the libraries may use, and on the number of threads:
blocked copies of a convolution's inputs, packing buffers of a matrix product, code compiled for a shape. So
each different call of a traced step is run twice, on zeros, in a process forked for one trace, which has
warmed up as a run does.
"""

import gc
import os
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, Self

import torch
from torch import Tensor

from harness.device.cpu.heap import open_heap
from harness.errors import StepscopeError
from harness.predict.address_space import AddressSpace
from harness.predict.calls import Call
from harness.train.warming import warm_up

_RECURRENT = "mkldnn_rnn_layer"


class Footprint(NamedTuple):
    """Memory of one kernel in bytes, beside its results: kept after its first call for good, and at its
    fullest within a later one. `result_sizes` are the bytes of the storages that it returned."""

    kept_bytes: int
    temporary_bytes: int
    result_sizes: tuple[int, ...]


class KernelsError(StepscopeError):
    """The process that runs kernels has ended, or never came up."""


class Kernels:
    """Runs calls in a child process forked from this one, one at a time. What a kernel keeps it keeps for the
    next ones, as in a run, so open it anew for each trace.

    This process must not have used more than one of torch's threads: they do not survive a fork.
    """

    def __init__(self, threads: int) -> None:
        """`threads`: of torch, as many as the run has."""
        self._threads = threads
        self._pid: int | None = None
        self._calls: BinaryIO | None = None
        self._footprints: BinaryIO | None = None

    def __enter__(self) -> Self:
        calls_read, calls_write = os.pipe()
        answers_read, answers_write = os.pipe()
        gc.collect()
        self._pid = os.fork()
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
        """End the child process. Idempotent; waits for the call under way."""
        for pipe in (self._calls, self._footprints):
            if pipe is not None:
                pipe.close()
        if self._pid is not None:
            os.waitpid(self._pid, 0)
        self._pid = self._calls = self._footprints = None

    def measure(self, call: Call) -> Footprint | None:
        """The footprint of `call`; None where it cannot be run on zeros. Raises KernelsError."""
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
    """Answer until there are no more calls, and end without what the parent would do at its end."""
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
        return  # Without malloc's figures nothing is measured, and the prediction says so.
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
    """The layouts of a recurrent layer's input and weights."""
    return call.arguments[:3]


def _footprint(call: Call, space: AddressSpace, workspaces: Mapping[Any, int]) -> Footprint | None:
    """What `call` takes: its first run takes what is kept, the second one shows the rest. `workspaces`: bytes
    of those that recurrent layers filled for backward, by layer."""
    arguments, keywords = call.materialize()
    if call.operator == f"{_RECURRENT}_backward":
        if _layer(call) not in workspaces:
            return None
        arguments[-1] = torch.zeros(workspaces[_layer(call)], dtype=torch.uint8)
    function = call.function
    before_bytes = space.in_use_bytes
    try:
        function(*arguments, **keywords)
        kept_bytes = space.in_use_bytes - before_bytes
        temporary_bytes, result = space.measure(lambda: function(*arguments, **keywords))
    except (RuntimeError, IndexError, ValueError):  # Zeros are no fit values for it.
        return None
    return Footprint(max(0, kept_bytes), temporary_bytes, _storage_sizes(result))


def _storage_sizes(result: Any) -> tuple[int, ...]:
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(r.untyped_storage().nbytes() if isinstance(r, Tensor) else 0 for r in results)
